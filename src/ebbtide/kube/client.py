"""A client for one cluster's API server, and a cache of them.

    client = KubeClient(kubeconfig_text)
    nodes = await client.list("/api/v1/nodes", labelSelector="together.ai/compute-class=preemptible")

What every call has: a time limit; a place among the bounded number of requests in flight to this cluster, so
that a sick one keeps nobody else waiting; an outcome with a type (see `errors`). Reads are repeated once if
they failed in a way that passes; writes are sent once, because whether a write may be sent again is known to
its caller only. Redirects are not followed, answers' sizes are bounded: the server may be a stranger's.

Parameters are Kubernetes' own, by their names there; None leaves one out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ebbtide.clock import monotonic
from ebbtide.kube.errors import Expired, Forbidden, Rejected, Unauthorized, Unreachable, from_status
from ebbtide.kube.server_time import ServerTime
from ebbtide.kube.transport import Param, Request, Transport, body_of, lines_of, refusal
from ebbtide.kube.way_in import way_in

Object = dict[str, Any]

LARGEST_ANSWER = 64 * 1024 * 1024
LONGEST_WAITS = 2.0  # how many requests' times one may wait for a place
LISTING_S = 240.0  # of one listing, all its pages; API servers keep its version for five minutes
_WHOLE_LIST = 2  # largest answers: what may be kept of one listing
_MOST_LISTED = 300_000  # twice the pods that the largest of clusters has
WATCH_S = 40  # the server ends a watch after this, and we do a little later: so silence is noticed
_WATCH_SLACK_S = 8.0
_READY = "/readyz"
_BY_ROLES = " cannot "  # User "ebbtide" cannot list resource "pods"
_RETRY_WAIT_S = 0.2
_NEARLY = 0.9  # those who wait came a moment after those who try
_LONGEST_RETRY_WAIT_S = 2.0


class PatchKind(StrEnum):
    """How a patch is meant: its content type. APPLY needs the parameter `fieldManager`."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class KubeList:
    """A whole list, or one page of it.

    resource_version: from where a watch goes on. size: in bytes, as it was sent.
    """

    items: list[Object]
    resource_version: str
    following: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """value: what an answer said. size: its bytes."""

    value: Object
    size: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. kind: ADDED, MODIFIED, DELETED or BOOKMARK (whose object has a version and nothing else)."""

    kind: str
    object: Object

    @property
    def resource_version(self) -> str | None:
        """The version to go on from after this event."""
        metadata = self.object.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        return version if isinstance(version, str) and version else None


class KubeClient:
    """One cluster. Belongs to the event loop in which it is first used.

    busy:  calls and watches under way
    turns: as many as there are places; for callers who make several calls about each of many things and want
           one thing done before the next is begun
    """

    def __init__(
        self,
        kubeconfig: str,
        *,
        in_flight: int = 32,
        limit_s: float = 10.0,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        largest: int = LARGEST_ANSWER,
    ) -> None:
        """kubeconfig: its text; see `way_in` for what is refused (BadInput).

        in_flight: how many requests this cluster is sent at once, watches not counted
        limit_s:   how long one request may take, from when it is sent to its answer's last byte
        wait:      how to wait before a read is repeated
        largest:   the size in bytes at which an answer is taken for nonsense
        """
        self._transport = Transport(way_in(kubeconfig))
        self._limit_s = limit_s
        self._largest = largest
        self._wait = wait
        self._places = asyncio.Semaphore(in_flight)
        self.turns = asyncio.Semaphore(in_flight)
        self._spoke_at = monotonic()
        self.server_time = ServerTime()
        self.busy = 0

    async def get(self, path: str, **params: Param) -> Object:
        """One object. Raises KubeError."""
        return (await self._read(path, params)).value

    async def list(self, path: str, *, page: int = 500, **params: Param) -> KubeList:
        """All objects, page by page; once more from the start if the version expired meanwhile.

        Bounded as `pages` is, and in all bytes: what is listed whole is kept whole.
        """
        try:
            return await self._all_pages(path, page, params)
        except Expired:
            return await self._all_pages(path, page, params)

    async def pages(self, path: str, *, page: int = 500, **params: Param) -> AsyncGenerator[KubeList, None]:
        """The same a page at a time, for those who keep little of it. Raises Expired between two pages if
        the version is no longer kept: what came before is then to be thrown away. A listing that does not
        come to its end (too many objects, too long, the same page again) is Unreachable.
        """
        what = f"GET {path}"
        following: str | None = None
        listed, ends_at = 0, monotonic() + LISTING_S
        while True:
            asked = {**params, "limit": page, "continue": following}
            part = _as_list(what, await self._read(path, asked))
            listed += len(part.items)
            yield part
            if not part.following:
                return
            if part.following == following or listed >= _MOST_LISTED or monotonic() >= ends_at:
                raise Unreachable(f"{what}: the list has no end")
            following = part.following

    async def create(self, path: str, body: Mapping[str, Any], **params: Param) -> Object:
        """POST. Raises Conflict if it is there already."""
        return await self._send(Request("POST", path, params, self._limit_s, body))

    async def patch(
        self, path: str, body: Any, *, kind: PatchKind = PatchKind.MERGE, **params: Param
    ) -> Object:
        """PATCH; body: an object, or for JSON patches a list of operations."""
        return await self._send(Request("PATCH", path, params, self._limit_s, body, kind))

    async def put(self, path: str, body: Mapping[str, Any]) -> Object:
        """PUT."""
        return await self._send(Request("PUT", path, {}, self._limit_s, body))

    async def delete(
        self, path: str, *, uid: str | None = None, grace_s: int | None = None, propagation: str | None = None
    ) -> Object:
        """DELETE; with a uid: of that very object or nothing (Conflict)."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self._send(Request("DELETE", path, {}, self._limit_s, options))

    async def watch(
        self, path: str, *, resource_version: str, watch_s: int = WATCH_S, **params: Param
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after that version over one connection, bookmarks included.

        Ends when the server ends it, after `watch_s` at the latest; a connection that has died without a
        word is given up a few seconds later (Unreachable). Raises Expired if the version is no longer kept,
        also when the server says so within the stream.
        """
        asked = {
            **params,
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": watch_s,
        }
        request = Request("GET", path, asked, watch_s + _WATCH_SLACK_S)
        what = f"watch {path}"
        self.busy += 1
        try:
            async with self._transport.answer(request) as answer:
                if answer.status != 200:
                    raise refusal(what, answer, await body_of(what, answer, self._largest))
                async for line in lines_of(what, answer, self._largest):
                    yield _as_event(what, line)
        except (Forbidden, Unauthorized) as error:
            await self._settle(error)
            raise
        finally:
            self.busy -= 1

    async def close(self) -> None:
        """Close all connections; what is in flight fails. Closed already: does nothing."""
        await self._transport.close()

    async def _all_pages(self, path: str, page: int, params: Mapping[str, Param]) -> KubeList:
        items: list[Object] = []
        version, size, most = "", 0, self._largest * _WHOLE_LIST
        async with aclosing(self.pages(path, page=page, **params)) as parts:
            async for part in parts:
                size += part.size
                if size > most:
                    raise Unreachable(f"GET {path}: the list is larger than {most} bytes")
                items += part.items
                version = part.resource_version
        return KubeList(items, version, size=size)

    async def _read(self, path: str, params: Mapping[str, Param]) -> _Answer:
        request = Request("GET", path, params, self._limit_s)
        try:
            return await self._exchange(request)
        except Unreachable as error:
            if not _passes(error):
                raise
            await self._wait(min(error.retry_after_s or _RETRY_WAIT_S, _LONGEST_RETRY_WAIT_S))
        return await self._exchange(request)

    async def _send(self, request: Request) -> Object:
        return (await self._exchange(request)).value

    async def _exchange(self, request: Request) -> _Answer:
        """The answer. An API server that has just started forbids everything until it has read its roles, and
        nobody may conclude from that that a right is missing. So what is forbidden, and thus has changed
        nothing, is asked for once more when the server calls itself ready.
        """
        self.busy += 1
        try:
            try:
                return await self._once(request)
            except (Forbidden, Unauthorized) as error:
                await self._settle(error)
            return await self._once(request)
        finally:
            self.busy -= 1

    async def _once(self, request: Request) -> _Answer:
        began = monotonic()
        await self._take_place(request)
        try:
            sent_at = monotonic()
            if sent_at - began >= self._limit_s / 2:
                self._raise_if_silent(request, sent_at)
            async with self._transport.answer(request) as answer:
                content = await body_of(request.what, answer, self._largest)
                self._spoke_at = monotonic()
                self.server_time.saw(answer.headers.get("Date"), sent_at, self._spoke_at)
                if 200 <= answer.status < 300:
                    return _Answer(_as_object(request.what, answer.status, content), len(content))
                raise refusal(request.what, answer, content)
        finally:
            self._places.release()

    async def _take_place(self, request: Request) -> None:
        """A slow server with a long queue is not away; but who waits for longer than this would miss a
        deadline of its own, so it is told.
        """
        if not self._places.locked():  # the usual case, without the cost of a timer
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(self._limit_s * LONGEST_WAITS):
                await self._places.acquire()
        except TimeoutError as error:
            message = f"{request.what}: the API server is so slow that there was no turn for this in time"
            raise Unreachable(message) from error

    async def _settle(self, error: Rejected) -> None:
        """Raise what it was; return where only another try can tell."""
        if isinstance(error, Forbidden) and _BY_ROLES not in error.detail:
            raise error
        if not await self._is_ready():
            raise Unreachable(f"the API server is starting: {error.message}", status=error.status) from error

    async def _is_ready(self) -> bool:
        """By its own word, which it gives to everybody; taken for ready where it does not."""
        request = Request("GET", _READY, {}, self._limit_s)
        async with self._transport.answer(request) as answer:
            await body_of(request.what, answer, self._largest)
            return answer.status < 400 or answer.status in (401, 403, 404)

    def _raise_if_silent(self, request: Request, now: float) -> None:
        """For who waited long for a place.

        Once nothing at all has come back for a request's whole time, those who have waited for the most of it
        do not try in their turn.
        """
        if now - self._spoke_at >= self._limit_s * _NEARLY:
            message = f"{request.what}: the API server has answered nothing for {self._limit_s:g} s"
            raise Unreachable(message) from TimeoutError()


@dataclass(slots=True)
class _Kept:
    client: KubeClient
    used_at: float


class Clients:
    """Clients by cluster and kubeconfig, as long as they are used."""

    def __init__(
        self,
        make: Callable[[str], KubeClient] = KubeClient,
        *,
        idle_s: float = 300.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """make: a client from a kubeconfig. idle_s: how long one may rest before it is closed."""
        self._make = make
        self._idle_s = idle_s
        self._now = now
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, cluster_id: str, kubeconfig: str) -> KubeClient:
        """The client for this cluster with this kubeconfig. Raises BadInput. Not to be kept by the caller:
        what is not asked for, and not busy, is closed after a while.
        """
        now = self._now()
        key = (cluster_id, kubeconfig)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(self._make(kubeconfig), now)
        kept.used_at = now
        self._close_idle(now)
        return kept.client

    def __len__(self) -> int:
        return len(self._kept)

    async def close(self) -> None:
        """Close all of them."""
        kept, self._kept = list(self._kept.values()), {}
        for each in kept:
            await each.client.close()
        await asyncio.gather(*self._closing)

    def _close_idle(self, now: float) -> None:
        idle = [
            key
            for key, kept in self._kept.items()
            if now - kept.used_at >= self._idle_s and not kept.client.busy
        ]
        for key in idle:
            task = asyncio.get_running_loop().create_task(self._kept.pop(key).client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _passes(error: Unreachable) -> bool:
    """Whether a read that failed like this is worth repeating at once."""
    if error.status is None:
        return not isinstance(error.__cause__, TimeoutError)  # that has had all its time
    return error.status == 429 or error.status >= 500


def _as_object(what: str, status: int, content: bytes) -> Object:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unreachable(f"{what}: the answer is no JSON object", status=status)
    return value


def _as_list(what: str, answer: _Answer) -> KubeList:
    items, metadata = answer.value.get("items"), answer.value.get("metadata")
    items = [] if items is None else items  # Go writes an empty list as null here and there
    if not isinstance(items, list) or not isinstance(metadata, dict):
        raise Unreachable(f"{what}: the answer is no list")
    if not all(isinstance(item, dict) for item in items):
        raise Unreachable(f"{what}: the answer is a list of something else")
    following = str(metadata.get("continue") or "") or None
    return KubeList(items, str(metadata.get("resourceVersion", "")), following, answer.size)


def _as_event(what: str, line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        kind, found = event["type"], event["object"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise Unreachable(f"{what}: an event is no JSON") from None
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise Unreachable(f"{what}: an event is no event")
    if kind == "ERROR":
        raise from_status(what, found)
    return WatchEvent(kind, found)
