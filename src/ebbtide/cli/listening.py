"""Serving the app on a socket inside a process that has more to do, and that handles signals itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from ebbtide.api import server as api_server
from ebbtide.errors import StartupError

_NEXT_PORTS = 50


def listen(host: str, port: int | None, default_port: int) -> socket.socket:
    """A listening socket on the port, or without one on the default port or the next free one.

    Raises StartupError with what to change.
    """
    if port is not None:
        return _bind(host, port)
    for candidate in range(default_port, default_port + _NEXT_PORTS):
        with contextlib.suppress(_PortTaken):
            return _bind(host, candidate)
    return _bind(host, 0)


def settled() -> None:
    """What is there now stays until the process ends: the garbage collector need not look at it again, which
    it would do most when thousands of pods are told to go.
    """
    gc.collect()
    gc.freeze()


class _PortTaken(StartupError):
    """Somebody else listens there."""


def _bind(host: str, port: int) -> socket.socket:
    try:
        return api_server.bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _PortTaken(
                f"port {port} on {host} is taken; give another --port, or 0 for any free one"
            ) from error
        raise StartupError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --host"
        ) from error


def url_of(listener: socket.socket) -> str:
    """The address that people on this machine use."""
    host, port = listener.getsockname()[:2]
    named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104  compared
    return f"http://{named}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, leaving signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell endless answers to end; otherwise each would be waited for."""
        closing = getattr(getattr(self.config.app, "state", None), "closing", None)
        if closing is not None:
            closing.set()
        await super().shutdown(sockets)

    async def ready(self) -> None:
        """Return when it answers requests."""
        while not self.started and not self.should_exit:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.01)


def server_of(app: FastAPI, listener: socket.socket, *, proxy_headers: bool = False) -> Server:
    """A server for the app, to be run with `serve(sockets=[listener])`."""
    host, port = listener.getsockname()[:2]
    return Server(api_server.config(app, host, port, proxy_headers=proxy_headers))


@contextlib.contextmanager
def signals(stop: asyncio.Event, reload: Callable[[], None] | None = None) -> Iterator[None]:
    """SIGINT and SIGTERM set `stop`; a second SIGINT interrupts at once. SIGHUP calls `reload`."""
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
