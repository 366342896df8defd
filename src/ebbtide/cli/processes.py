"""`ebbtide serve` and `ebbtide worker`: the API and the loops as own processes, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import structlog

from ebbtide import assembly
from ebbtide.assembly import System
from ebbtide.cli import logs, output
from ebbtide.cli.fleet import read_fleet_file
from ebbtide.cli.listening import listen, server_of, settled, signals, url_of
from ebbtide.errors import EbbtideError, StartupError
from ebbtide.services import fleet_file
from ebbtide.services.access import IssuedKey
from ebbtide.services.details import Role
from ebbtide.settings import from_environment

log = structlog.get_logger(__name__)


def run_api(database_url: str, host: str, port: int, *, proxy_headers: bool) -> None:
    """Serve the API until a signal. Raises StartupError."""
    logs.to_stderr()
    settings, keys = from_environment(), secret_keys()
    with listen(host, port, port) as listener:
        assembly.prepare_database(database_url)
        system = assembly.build(settings, database_url, secret_keys=keys)
        system.backend.world = None  # the simulated world, where there is one, lives in the worker
        asyncio.run(_serve(system, listener, proxy_headers))


async def _serve(system: System, listener: socket.socket, proxy_headers: bool) -> None:
    stop = asyncio.Event()
    server = server_of(system.app(), listener, proxy_headers=proxy_headers)
    try:
        with signals(stop):
            keeping = [asyncio.create_task(system.keep_time()), asyncio.create_task(system.keep_settings())]
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await server.ready()
            settled()
            output.note(f"the API listens at {url_of(listener)}; Ctrl-C stops it")
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopping.cancel()
            for task in keeping:
                task.cancel()
            await serving
    finally:
        await system.close()


def run_worker(database_url: str, fleet: Path | None, data: Path) -> None:
    """Run the loops until a signal. Raises StartupError, and BadInput for the fleet file."""
    logs.to_stderr()
    settings, keys = from_environment(), secret_keys()
    if fleet is not None:
        fleet_file.parse(read_fleet_file(fleet), fleet.name)  # told before anything starts
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    assembly.prepare_database(database_url)
    system = assembly.build(
        settings, database_url, data_dir=data, journal=data / assembly.JOURNAL, secret_keys=keys
    )
    asyncio.run(_work(system, fleet))


async def _work(system: System, fleet: Path | None) -> None:
    stop = asyncio.Event()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(_apply(system, fleet))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    try:
        with signals(stop, reload):
            findings = await system.begin()
            for sentence in findings.sentences:
                output.note(sentence)
            await _apply(system, fleet)
            settled()
            output.note("the loops run; Ctrl-C stops them")
            await system.run(stop)
    finally:
        await asyncio.gather(*reloads, return_exceptions=True)
        await system.close()


async def _apply(system: System, fleet: Path | None) -> None:
    """Apply the fleet file, if there is one. A bad one changes nothing and is told."""
    if fleet is None:
        return
    try:
        changes = await system.apply_fleet(fleet_file.parse(read_fleet_file(fleet), fleet.name))
    except EbbtideError as error:
        output.complain(error.message, "correct the file and send SIGHUP; nothing has changed")
        return
    log.info("fleet file applied", done=changes.done, kept=changes.kept)


def issue_first_key(database_url: str, project_slug: str, role: str) -> IssuedKey:
    """A key written straight into the database: how a server on its own PostgreSQL gets its first."""
    assembly.prepare_database(database_url)

    async def issue() -> IssuedKey:
        system = assembly.build(from_environment(), database_url)
        try:
            return await system.first_key(Role(role), project_slug, project_slug.capitalize())
        finally:
            await system.close()

    return asyncio.run(issue())


def secret_keys() -> list[str]:
    """The keys that seal secrets at rest. Raises StartupError: processes that share a database share them."""
    keys = assembly.secret_keys_of(os.environ)
    if not keys:
        raise StartupError(
            f"{assembly.KEYS_VARIABLE} is not set. `ebbtide secrets new-key` makes a key; "
            "give the same to every server and worker of this database."
        )
    return keys
