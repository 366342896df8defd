"""A Kubernetes control plane on this machine: etcd, API server, scheduler, controller manager.

    async with ControlPlane(Path("cluster-a")) as plane:
        print(plane.url, plane.kubeconfig)      # kubectl --kubeconfig cluster-a/kubeconfig get nodes

`start` returns when the API server answers and pods may be created: after a few seconds on an idle machine,
after ten on a busy one. A control plane takes some 550 MB of memory. What lies in its folder (mode 0700):

    kubeconfig   the administrator's way in; one file, works wherever it is copied to
    etcd/        everything the cluster knows; moving the folder moves the cluster
    pki/         its authority, certificates, keys; what ends within 30 days is renewed at a start
    logs/        one file per server; the one before is kept as NAME.log.1
    port         the API server's port, taken again at the next start if it is free
    lock         held while a process uses the folder

No root is needed. The servers end with the process that started them, however that ends: each has a keeper
(see `keeper`). Started again, a control plane has all its objects, and the same address unless something else
took the port meanwhile.

Nothing here restarts a server that died: `ended` says which did, and what to do is the caller's to decide.
`stop_server` and `start_server` are there for those who test what happens without one.

Methods are coroutines but not bound to one event loop: what was started in one may be stopped in another. One
`start` or `stop` at a time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import ssl
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from ebbtide.clock import AnchoredClock, Clock, monotonic
from ebbtide.errors import StartupError
from ebbtide.kube.certificates import Authority
from ebbtide.kube.keeper import Kept
from ebbtide.kube.kubeconfig import Access
from ebbtide.kube.places import Places, places
from ebbtide.kube.servers import HOST, Keys, Options, commands, make_keys

_START_LIMIT_S = 120.0
_ASK_LIMIT_S = 2.0
_ASK_EVERY_S = 0.1
_PORTS_TRIED = 3
_LOG_LINES_SHOWN = 12
_PORT_TAKEN = "address already in use"


class ServerEnded(StartupError):
    """A server ended while the control plane was starting. name: which; the message has its last lines."""

    def __init__(self, name: str, code: int, lines: str) -> None:
        super().__init__(
            f"{name} ended with {code} while it was starting:\n{lines}", code="kube_server_ended"
        )
        self.name = name
        self.port_taken = _PORT_TAKEN in lines


class NotAnswering(StartupError):
    """The API server did not answer within the time it had."""


class FolderInUse(StartupError):
    """Another process runs a control plane in this folder."""


class ControlPlane:
    """One control plane in one folder. An asynchronous context manager; see the module."""

    def __init__(
        self,
        folder: Path,
        options: Options | None = None,
        *,
        where: Places | None = None,
        clock: Clock | None = None,
        start_limit_s: float = _START_LIMIT_S,
    ) -> None:
        """folder: created if missing. where: where programs are; from the environment if not given."""
        self.folder = folder.absolute()
        self.options = options or Options()
        self._where = where
        self._clock = clock or AnchoredClock()
        self._start_limit_s = start_limit_s
        self._lock: IO[str] | None = None
        self._keys: Keys | None = None
        self._port = 0
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, Kept] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The API server's address. Raises StartupError before the first start."""
        return self.access.url

    @property
    def access(self) -> Access:
        """The administrator's way in. Raises StartupError before the first start."""
        if self._keys is None:
            raise StartupError(f"the control plane in {self.folder} has not been started")
        authority = self._keys.authority.certificate
        return Access(self.options.name, f"https://{HOST}:{self._port}", authority, self._keys.admin)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; there once `start` has returned."""
        return self.folder / "kubeconfig"

    @property
    def ended(self) -> tuple[str, ...]:
        """Servers that ended though nobody stopped them."""
        return tuple(name for name, kept in self._running.items() if kept.exit_code is not None)

    def log(self, name: str) -> Path:
        """The log of a server."""
        return self.folder / "logs" / f"{name}.log"

    def ssl_context(self) -> ssl.SSLContext:
        """For any HTTP client: trusts this API server and no other, and is its administrator."""
        access = self.access
        context = ssl.create_default_context(cafile=str(access.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
        context.load_cert_chain(access.pair.certificate, access.pair.key)
        return context

    async def start(self) -> str:
        """Start what does not run and return the API server's address when pods may be created.

        Running already: returns the address. Raises MissingPrograms, FolderInUse, ServerEnded or NotAnswering
        (all StartupError); then, and when cancelled, nothing is left running.
        """
        if set(self._running) == set(self.options.programs) and not self.ended:
            return self.url
        programs = (self._where or places()).require(self.options.programs)
        try:
            self._prepare()
            for left in range(_PORTS_TRIED - 1, -1, -1):
                self._port = self._choose_port()
                assert self._keys is not None
                self._commands = commands(programs, self._keys, self.options, self.folder, self._port)
                try:
                    await self._start_all()
                    break
                except ServerEnded as error:
                    if not error.port_taken or left == 0:
                        raise
                    (self.folder / "port").unlink(missing_ok=True)
                    await self._stop_all()
            self.access.write(self.kubeconfig)
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def stop(self) -> None:
        """Stop all servers, in the order in which they need each other. Stopped already: does nothing."""
        await self._stop_all()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def delete(self) -> None:
        """Stop, and remove the folder with all that was in it."""
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def stop_server(self, name: str) -> None:
        """Stop one server (say, "kube-apiserver"). Stopped already: does nothing."""
        kept = self._running.pop(name, None)
        if kept is not None:
            await kept.stop()

    async def start_server(self, name: str) -> None:
        """Start one server again, as it was, and wait until the API server answers."""
        kept = self._running.get(name)
        if kept is None or kept.exit_code is not None:
            self._launch(name)
        await self._wait_until_ready()

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._take_lock()
        (self.folder / "logs").mkdir(exist_ok=True)
        pki = self.folder / "pki"
        self._keys = make_keys(Authority(pki, self._clock.now()), pki)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = (self.folder / "lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise FolderInUse(f"{self.folder} is in use by another process ({holder})") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _choose_port(self) -> int:
        """The last start's port if it is free, else any."""
        file = self.folder / "port"
        text = file.read_text(encoding="ascii").strip() if file.exists() else ""
        last = int(text) if text.isdigit() else 0  # a killed start may have left it empty
        for port in (last, 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the API server does
                try:
                    probe.bind((HOST, port))
                except OSError:
                    continue
                chosen: int = probe.getsockname()[1]
            file.write_text(f"{chosen}\n", encoding="ascii")
            return chosen
        raise StartupError(f"no port of {HOST} is free")

    async def _start_all(self) -> None:
        self._launch("etcd")
        self._launch("kube-apiserver")  # it waits for etcd by itself
        await self._wait_until("/readyz")
        for name in self.options.programs[2:]:
            self._launch(name)
        await self._wait_until_ready()

    async def _wait_until_ready(self) -> None:
        await self._wait_until("/readyz")
        if "kube-controller-manager" in self._running:  # pods cannot be created before it has made this
            await self._wait_until("/api/v1/namespaces/default/serviceaccounts/default")

    async def _stop_all(self) -> None:
        for name in reversed(self.options.programs):
            await self.stop_server(name)

    def _launch(self, name: str) -> None:
        log = self.log(name)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        with log.open("wb") as output:
            self._running[name] = Kept(name, self._commands[name], output=output, folder=self.folder)

    async def _wait_until(self, path: str) -> None:
        """Wait until the API server answers this with 200."""
        late = monotonic() + self._start_limit_s
        said = "nothing"
        async with httpx.AsyncClient(
            base_url=self.url, verify=self.ssl_context(), timeout=_ASK_LIMIT_S, trust_env=False
        ) as client:
            while monotonic() < late:
                self._raise_if_ended()
                try:
                    answer = await client.get(path)
                    if answer.status_code == httpx.codes.OK:
                        return
                    said = f"{answer.status_code}: {answer.text[:500]}"
                except httpx.TransportError as error:
                    said = f"{type(error).__name__}: {error}"
                await asyncio.sleep(_ASK_EVERY_S)
        raise NotAnswering(
            f"{self.url}{path} was not there within {self._start_limit_s:g} s; it said last: {said}\n"
            f"the servers' logs are in {self.folder / 'logs'}",
            code="kube_not_answering",
        )

    def _raise_if_ended(self) -> None:
        for name in self.ended:
            lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
            code = self._running[name].exit_code
            assert code is not None
            raise ServerEnded(name, code, "\n".join(lines[-_LOG_LINES_SHOWN:]))
