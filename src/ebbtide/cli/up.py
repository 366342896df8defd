"""`ebbtide up`: database, API, loops and a fleet in one process, and the story if asked for."""

from __future__ import annotations

import asyncio
import gc
import shlex
import socket
import threading
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog

from ebbtide import __version__, assembly, backends
from ebbtide.assembly import System
from ebbtide.cli import connection, exits, logs, output
from ebbtide.cli.connection import Connection
from ebbtide.cli.demo.run import demo_settings, tell_story
from ebbtide.cli.exits import UsageError
from ebbtide.cli.fleet import packaged_fleet_file, read_fleet_file
from ebbtide.cli.listening import Server, listen, server_of, settled, signals, url_of
from ebbtide.cli.server import DEFAULT_PORT
from ebbtide.clock import monotonic
from ebbtide.errors import EbbtideError, StartupError, Unauthenticated
from ebbtide.services import fleet_file
from ebbtide.services.details import Caller, PoolDetails, Role
from ebbtide.services.fleet_file import FleetFile
from ebbtide.settings import Settings, from_environment

T = TypeVar("T")

log = structlog.get_logger(__name__)
DATABASE_FOLDER = "database"
PROVIDER_FILE = "provider"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The command's options. None: not given."""

    data: Path
    fleet: Path | None
    host: str
    port: int | None
    drain_window_s: int | None
    provider: str | None
    demo: bool
    once: bool


def run_up(options: UpOptions) -> int:
    """Run until a signal, or with `once` until the story's end; answers the exit code.

    Raises StartupError, UsageError and BadInput before anything runs.
    """
    begun = monotonic()
    settings = _settings(options)
    file = _read(options.fleet)
    with listen(options.host, options.port, DEFAULT_PORT) as listener:
        _prepare_folder(options.data, settings.provider)
        database = assembly.embedded_database(options.data / DATABASE_FOLDER)
        try:
            url = database.start()
            assembly.prepare_database(url)
            return asyncio.run(_Up(options, settings, file, listener, begun).run(url))
        finally:
            database.stop()
            gc.freeze()  # collecting a server's whole heap at exit takes longer than everything before it


def _settings(options: UpOptions) -> Settings:
    settings = from_environment()
    if options.provider is not None:
        settings = replace(settings, provider=options.provider)
    backends.check(settings)
    if options.demo and settings.provider not in ("simulated", "kwok"):
        raise UsageError(f"--demo plays on simulated or kwok, not on {settings.provider}; leave it out")
    if options.demo:
        settings = demo_settings(settings)
    if options.drain_window_s is not None:
        settings = replace(settings, drain_window_s=options.drain_window_s)
    return settings


def _read(path: Path | None) -> FleetFile:
    """The fleet file that was given, or the one that comes with Ebbtide."""
    if path is None:
        return fleet_file.parse(packaged_fleet_file(), "demo.yaml")
    return fleet_file.parse(read_fleet_file(path), path.name)


def _prepare_folder(data: Path, provider: str) -> None:
    """Make the folder, or see that it is this provider's: those of another know other machines."""
    mark = data / PROVIDER_FILE
    try:
        before = "simulated" if (data / DATABASE_FOLDER).exists() else provider
        before = mark.read_text(encoding="ascii").strip() if mark.exists() else before
        if before != provider:
            raise StartupError(
                f"{data} belongs to --provider {before}; for {provider} give a folder of its own: --data DIR"
            )
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.write_text(f"{provider}\n", encoding="ascii")
        logs.to_file(data / "ebbtide.log")
    except OSError as error:
        raise StartupError(
            f"{data} cannot be the data folder: {error.strerror}; give another --data"
        ) from error


class _Up:
    """One run of the process, once the database is there."""

    def __init__(
        self, options: UpOptions, settings: Settings, file: FleetFile, listener: socket.socket, begun: float
    ) -> None:
        self._options = options
        self._settings = settings
        self._file = file
        self._listener = listener
        self._begun = begun
        self._stop = asyncio.Event()
        self._reloads: set[asyncio.Task[None]] = set()
        self._pools: tuple[PoolDetails, ...] = ()

    async def run(self, database_url: str) -> int:
        journal = self._options.data / assembly.JOURNAL
        system = assembly.build(
            self._settings,
            database_url,
            data_dir=self._options.data,
            journal=journal,
            alone=True,
            secret_keys=assembly.secret_keys_in(self._options.data),
        )
        try:
            with signals(self._stop, lambda: self._begin_reload(system)):
                return await self._run(system)
        finally:
            await system.close()

    async def _run(self, system: System) -> int:
        findings = await system.begin()
        operator, found = await self._operator(system)
        await self._apply_fleet(system, operator)
        self._pools = await system.services.fleet.pools(operator)
        server = server_of(system.app(), self._listener)
        tasks = [
            asyncio.create_task(system.run(self._stop), name="loops"),
            asyncio.create_task(server.serve(sockets=[self._listener]), name="API"),
        ]
        try:
            await self._watched(server.ready(), tasks)
            settled()
            connection.write(self._options.data / connection.FILE_NAME, found, operator.project_id)
            self._greet(found, findings.sentences)
            if self._options.demo:
                return await self._watched(self._story(system, found), tasks)
            await self._watched(self._stop.wait(), tasks)
            return exits.OK
        finally:
            output.note("stopping ...")
            await self._end(server, tasks)

    async def _watched(self, what: Awaitable[T], tasks: list[asyncio.Task[None]]) -> T:
        """Await `what`, but end with the error of a part that ends before the process is asked to."""
        main = asyncio.ensure_future(what)
        await asyncio.wait([main, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if main.done() or self._stop.is_set():
            return await main
        main.cancel()
        for task in tasks:
            if task.done():
                task.result()
                raise StartupError(
                    f"{task.get_name()} ended by itself; see {self._options.data / 'ebbtide.log'}"
                )
        return await main

    async def _end(self, server: Server, tasks: list[asyncio.Task[None]]) -> None:
        self._stop.set()
        server.should_exit = True
        for task in self._reloads:
            task.cancel()
        await asyncio.gather(*tasks, *self._reloads, return_exceptions=True)

    # --- the fleet ---

    async def _apply_fleet(self, system: System, operator: Caller) -> None:
        """The given file; without one the fleet that comes with Ebbtide, unless the folder has another."""
        if self._options.fleet is None:
            known = {pool.name for pool in await system.services.fleet.pools(operator)}
            if not known <= {pool.name for pool in self._file.pools}:
                if self._options.demo:
                    raise StartupError(
                        f"{self._options.data} has another fleet; give the demo a fresh folder: --data DIR"
                    )
                return
        await system.apply_fleet(self._file)

    def _begin_reload(self, system: System) -> None:
        task = asyncio.get_running_loop().create_task(self._reload(system))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self, system: System) -> None:
        """Read the fleet file again. A bad one changes nothing and is told."""
        if self._options.fleet is None:
            output.note("SIGHUP: there is no fleet file to read again; start with --fleet FILE")
            return
        try:
            changes = await system.apply_fleet(_read(self._options.fleet))
        except EbbtideError as error:
            output.complain(error.message, "correct the file and send SIGHUP again; nothing has changed")
            return
        output.note(f"read {self._options.fleet} again:")
        for sentence in (*changes.done, *(f"kept: {each}" for each in changes.kept)) or (
            "nothing to change",
        ):
            output.note(f"  {sentence}")

    # --- keys ---

    async def _operator(self, system: System) -> tuple[Caller, Connection]:
        """The operator's key: the one in the connection file while it is good, else a new one."""
        url = url_of(self._listener)
        known = connection.read(self._options.data / connection.FILE_NAME).get("EBBTIDE_API_KEY")
        if known:
            try:
                caller = await system.services.access.authenticate(known)
            except Unauthenticated:
                log.info("the connection file's key is not good any more; a new one is made")
            else:
                if caller.is_operator:
                    return caller, Connection(url, known)
        issued = await system.first_key(Role.OPERATOR, "default", "Default")
        return await system.services.access.authenticate(issued.secret), Connection(url, issued.secret)

    # --- what is said ---

    def _greet(self, found: Connection, findings: tuple[str, ...]) -> None:
        took_s = monotonic() - self._begun
        for sentence in findings:
            output.say(f"  {sentence}", "yellow")
        output.say("")
        output.say(f"  Ebbtide {__version__} is up after {took_s:.1f} s", "bold")
        asked = DEFAULT_PORT if self._options.port is None else self._options.port
        if self._options.port is None and not found.url.endswith(f":{asked}"):
            output.say(f"  (port {asked} is taken, so it listens on another)", "yellow")
        output.say("")
        output.print_facts([("  URL", found.url), ("  key", found.key)])
        if self._settings.provider == "kwok":
            output.print_facts(
                [("  clusters", "real Kubernetes control planes on this machine, some 600 MB each")]
            )
        if self._settings.drain_window_s != Settings().drain_window_s:
            output.print_facts([("  drain window", f"{self._settings.drain_window_s} s instead of 300 s")])
        if not self._options.demo:
            output.say("")
            self._suggest()
            output.say("  Ctrl-C stops it.", "dim")

    def _suggest(self) -> None:
        """Three commands to try, on the largest pool that there is."""
        pool = max(self._pools, key=lambda each: (each.name != "story", each.hosts))
        gpus = pool.gpus_per_host
        output.say("  Try in another terminal:")
        source = f"source {shlex.quote(str(self._options.data / connection.FILE_NAME))}"
        place = f"--region {pool.region} --gpu-type {pool.gpu_type}"
        target = f"{place} --preemptible-gpus {2 * gpus} --wait"
        first = f"ebbtide clusters create first {target} --gpus {gpus}"
        if not self._settings.makes_clusters:
            first = f"ebbtide clusters import first {target} --kubeconfig FILE --standard-selector LABELS"
        for command in (source, "ebbtide fleet pools", first):
            output.say(f"    {command}", "cyan")
        output.say("")

    # --- the story ---

    async def _story(self, system: System, found: Connection) -> int:
        asked = threading.Event()
        telling = asyncio.create_task(
            tell_story(system, found, self._options.data, asked, watched=not self._options.once)
        )
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([telling, stopping], return_when=asyncio.FIRST_COMPLETED)
        asked.set()
        happened = await telling
        if self._stop.is_set() and not happened:
            return exits.INTERRUPTED if self._options.once else exits.OK
        if self._options.once:
            stopping.cancel()
            return exits.OK if happened else exits.REFUSED
        output.say("")
        output.say("  The service stays up; regions local-1 and local-2 are yours.", "bold")
        self._suggest()
        await stopping
        return exits.OK if happened else exits.REFUSED
