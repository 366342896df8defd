"""An HTTP server that does what a test says, request by request, down to the bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived. connection: which one it came over, counted from 0."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Misbehaving:
    """Answers the nth request with the nth reply, and what comes after the last with the last.

    A reply writes bytes and returns; what it closes stays closed. asked: what has come; arrived: set at the
    first of them. most: how many requests were under way at once.
    """

    def __init__(self, *replies: Reply) -> None:
        self.replies: list[Reply] = list(replies)
        self.asked: list[Asked] = []
        self.arrived = asyncio.Event()
        self.most = 0
        self._now = 0
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Misbehaving:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self) -> str:
        return kubeconfig(self.url)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection, self._connections = self._connections, self._connections + 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = head[0].split(" ")
                url = urlsplit(target)
                query = dict(parse_qsl(url.query))
                self.asked.append(Asked(method, url.path, query, headers, body, connection))
                self.arrived.set()
                reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
                self._now += 1
                self.most = max(self.most, self._now)
                try:
                    await reply(writer)
                    await writer.drain()
                finally:
                    self._now -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        except asyncio.CancelledError:
            pass  # the test is over; asyncio would log it
        finally:
            self._tasks.discard(task)
            writer.close()


def kubeconfig(url: str, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> str:
    """The simplest one."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url, **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def raw(data: bytes, *, close: bool = False) -> Reply:
    """These bytes, and perhaps the end of the connection."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            await writer.drain()
            writer.close()

    return reply


def http(status: int, body: bytes, *headers: str) -> bytes:
    """An answer's bytes."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def answer(content: Any, status: int = 200) -> Reply:
    """A JSON answer."""
    return raw(http(status, json.dumps(content).encode(), "Content-Type: application/json"))


def says(status: int, reason: str, message: str = "", causes: Sequence[str] = ()) -> Reply:
    """A Status object, as API servers refuse."""
    return answer(status_object(status, reason, message, causes), status)


def status_object(status: int, reason: str, message: str = "", causes: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
        "details": {"causes": [{"reason": cause, "message": "of a budget"} for cause in causes]},
    }


def a_list(names: Sequence[str], version: str = "7", following: str = "") -> Reply:
    """A page of a list."""
    metadata = {"resourceVersion": version, **({"continue": following} if following else {})}
    items = [{"metadata": {"name": name}} for name in names]
    return answer({"kind": "List", "metadata": metadata, "items": items})


def stream(*lines: Any, close: bool = True, tail: bytes = b"") -> Reply:
    """A watch's answer: JSON lines, then perhaps some bytes more, then its end or silence."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for data in [*((json.dumps(line) + "\n").encode() for line in lines), *([tail] if tail else [])]:
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        if not close:
            await asyncio.Event().wait()
        writer.write(b"0\r\n\r\n")

    return reply


async def silence(writer: asyncio.StreamWriter) -> None:
    """Never a word."""
    await asyncio.Event().wait()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """The end of the connection instead of an answer."""
    writer.close()
