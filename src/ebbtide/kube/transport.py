"""HTTP to one API server: connections, and what goes wrong with them."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from ebbtide import __version__
from ebbtide.kube.errors import KubeError, Unreachable, from_status
from ebbtide.kube.way_in import WayIn

Param = str | int | bool | None

_CONNECT_S = 5.0
_KEEP_IDLE_S = 60.0  # less than the API server's 90, so that it is we who close
_UNACKNOWLEDGED_MS = 6_000
_SAFE_IN_PATHS = "/:@!$&'()*+,;="
_COMPACT = (",", ":")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. path: begins with a slash. limit_s: until the last byte of its answer."""

    method: str
    path: str
    params: Mapping[str, Param]
    limit_s: float
    body: Any = None
    content_type: str = "application/json"

    @property
    def what(self) -> str:
        """For messages."""
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class _Pool:
    session: aiohttp.ClientSession
    users: int = 0
    condemned: bool = False


class Transport:
    """Connections to one API server. Belongs to the event loop in which it is first used."""

    def __init__(self, way: WayIn) -> None:
        self._way = way
        self._pool: _Pool | None = None

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, its body unread. Raises Unreachable, also for what happens to the
        connection while the body is read within the block.

        Where a request fell silent, all idle connections are given up: what swallowed one has swallowed
        the others, and nothing but silence would say so.
        """
        pool = self._open()
        pool.users += 1
        try:
            async with self._sent(pool, request) as answer:
                yield answer
        except TimeoutError as error:
            pool.condemned = True
            raise Unreachable(f"{request.what}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{request.what}: {type(error).__name__}: {error}") from error
        finally:
            pool.users -= 1
            if pool.condemned:
                self._pool = None if self._pool is pool else self._pool
                if not pool.users:
                    await pool.session.close()

    async def close(self) -> None:
        """Close all connections; what is in flight fails. Closed already: does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.condemned = True
            await pool.session.close()

    def _sent(self, pool: _Pool, request: Request) -> Any:
        body = request.body
        return pool.session.request(
            request.method,
            self._url(request),
            data=None if body is None else json.dumps(body, separators=_COMPACT).encode(),
            headers=None if body is None else {"Content-Type": request.content_type},
            allow_redirects=False,
            server_hostname=self._way.server_name,
            timeout=aiohttp.ClientTimeout(
                total=request.limit_s, sock_connect=min(_CONNECT_S, request.limit_s)
            ),
        )

    def _url(self, request: Request) -> URL:
        query = urlencode(_params(request.params), quote_via=quote)
        path = quote(request.path, safe=_SAFE_IN_PATHS)
        return URL(
            f"{self._way.server}{path}?{query}" if query else f"{self._way.server}{path}", encoded=True
        )

    def _open(self) -> _Pool:
        if self._pool is None:
            connector = aiohttp.TCPConnector(
                limit=0,  # the client counts
                ssl=self._way.tls if self._way.tls is not None else True,
                keepalive_timeout=_KEEP_IDLE_S,
                socket_factory=_socket,
            )
            session = aiohttp.ClientSession(
                connector=connector,
                headers={
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",  # small pages, near by; and nothing that blows up
                    "User-Agent": f"ebbtide/{__version__}",
                    **self._way.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
            session._retry_connection = False  # it would send a DELETE or PUT again by itself
            self._pool = _Pool(session)
        return self._pool


async def body_of(what: str, answer: aiohttp.ClientResponse, largest: int) -> bytes:
    """The whole body. Raises Unreachable where it is larger than that many bytes."""
    announced = answer.content_length
    if announced is not None and announced <= largest:
        return await answer.read()
    parts: list[bytes] = []
    size = 0
    while announced is None and size <= largest:
        part = await answer.content.readany()
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    answer.close()
    raise Unreachable(f"{what}: the answer is larger than {largest} bytes", status=answer.status)


async def lines_of(what: str, answer: aiohttp.ClientResponse, largest: int) -> AsyncIterator[bytes]:
    """The lines of a stream, as they come; half a line at its end is dropped."""
    parts: list[bytes] = []
    size = 0
    while chunk := await answer.content.readany():
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            full = b"".join([*parts, line]) if parts else line
            parts, size = [], 0
            if full.strip():
                yield full
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > largest:
            answer.close()
            raise Unreachable(f"{what}: an event is larger than {largest} bytes")


def refusal(what: str, answer: aiohttp.ClientResponse, content: bytes) -> KubeError:
    """The error that an answer other than 2xx means."""
    retry_after_s = _retry_after(answer)
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return from_status(what, status, code=answer.status, retry_after_s=retry_after_s)
    # What it says instead is not repeated: it may be some other server's inside.
    return Unreachable(
        f"{what}: {answer.status} with something that is no answer of an API server "
        f"({answer.headers.get('Content-Type', 'no content type')})",
        status=answer.status,
        retry_after_s=retry_after_s,
    )


def _params(params: Mapping[str, Param]) -> dict[str, str]:
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in params.items()
        if value is not None
    }


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _socket(address: Any) -> socket.socket:
    """A socket on which a peer that is gone is noticed, also when nothing is said."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return made
