"""Following one kind of objects in one cluster, whatever happens to the connection.

    mirror = Mirror(client, "/api/v1/nodes", slim)
    async for news in mirror.follow():
        for change in news.changes: ...

First everything is listed, then watched from the list's version on (never from an object's: that would
replay old history as news). A watch that ends, breaks or falls silent goes on from where it was; when that
version is no longer kept (an expiry within the stream, a compacted etcd, one restored from a backup),
everything is listed again and compared with what was there, so that nothing is missed and nothing is told
twice.

Of each object only what `slim` makes of it is kept, and a change that does not show in that is no change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from ebbtide.clock import monotonic
from ebbtide.kube.client import WATCH_S, KubeClient, Object, WatchEvent
from ebbtide.kube.errors import Expired, KubeError, Rejected, Unreachable
from ebbtide.kube.transport import Param

log = structlog.get_logger()

T = TypeVar("T")

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
REFUSED_WAIT_S = 60.0
_LISTED_AGAIN_AFTER = 3  # bad answers in a row: the version itself may be what the server cannot serve
_AT_ONCE_S = 1.0
_SETTLED_S = 60.0  # a version that lasted so long has not expired again at once
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """before: None when it came. after: None when it went."""

    before: T | None
    after: T | None


@dataclass(frozen=True, slots=True)
class News(Generic[T]):
    """first: everything was listed for the first time; `changes` is empty then, for there was no before."""

    changes: tuple[Change[T], ...]
    first: bool = False


class Mirror(Generic[T]):
    """What there is of one kind, by Kubernetes' uid, as of the last news. items: read only."""

    def __init__(
        self,
        client: Callable[[], KubeClient],
        path: str,
        slim: Callable[[Object], T | None],
        *,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        watch_s: int = WATCH_S,
        **params: Param,
    ) -> None:
        """client: asked before each connection. slim: what to keep of an object, comparable; None to ignore
        it. wait: how to wait before another try. watch_s: how long one connection may last, and so about
        how soon one that died is noticed. params: of both list and watch, selectors for instance.
        """
        self.items: dict[str, T] = {}
        self.listed = False
        self._client = client
        self._path = path
        self._slim = slim
        self._wait = wait
        self._watch_s = watch_s
        self._params: dict[str, Any] = params
        self._version: str | None = None
        self._failures = 0
        self._refusals = 0
        self._expiries = 0
        self._listed_at = monotonic()

    async def follow(self) -> AsyncGenerator[News[T], None]:
        """News, for ever. Never ends by itself, and raises nothing for trouble in the cluster."""
        while True:
            try:
                if self._version is None:
                    yield await self._list()
                async with aclosing(self._watch(self._version or "")) as watched:
                    async for news in watched:
                        yield news
            except Expired as error:
                await self._expired(error)
            except KubeError as error:
                if _answered(error):
                    self._refusals += 1
                    if self._refusals % _LISTED_AGAIN_AFTER == 0:
                        self._version = None
                # A right that is missing does not come by asking.
                await self._pause(error, REFUSED_WAIT_S if isinstance(error, Rejected) else LONGEST_WAIT_S)
                self._failures += 1

    async def _expired(self, error: Expired) -> None:
        """List again; with growing waits where it expires again and again, whatever was told in between."""
        self._version = None
        if monotonic() - self._listed_at >= _SETTLED_S:
            self._expiries = 0
        self._failures = max(self._failures, self._expiries)
        if self._failures:
            await self._pause(error, LONGEST_WAIT_S)
        self._failures = self._expiries = self._failures + 1

    async def _pause(self, error: KubeError, longest_s: float) -> None:
        doubled: int = 2 ** min(self._failures, 8)
        wait_s = min(FIRST_WAIT_S * doubled, longest_s)
        log.info("watch interrupted", path=self._path, why=error.message, again_in_s=wait_s)
        await self._wait(wait_s)

    async def _list(self) -> News[T]:
        found: dict[str, T] = {}
        version = ""
        async with aclosing(self._client().pages(self._path, page=_PAGE, **self._params)) as pages:
            async for page in pages:
                for each in page.items:
                    kept = self._slim(each)
                    if kept is not None:
                        found[_uid(each)] = kept
                version = page.resource_version
        before, self.items = self.items, found
        self._version = version
        self._listed_at = monotonic()
        if not self.listed:
            self.listed = True
            return News((), first=True)
        uids = [*found, *(uid for uid in before if uid not in found)]
        compared = (Change(before.get(uid), found.get(uid)) for uid in uids)
        return News(tuple(change for change in compared if change.before != change.after))

    async def _watch(self, version: str) -> AsyncGenerator[News[T], None]:
        """News of one connection. One that ends at once is a failure, else a server could keep us busy."""
        began = monotonic()
        watched = self._client().watch(
            self._path, resource_version=version, watch_s=self._watch_s, **self._params
        )
        async with aclosing(watched) as events:
            async for event in events:
                self._version = event.resource_version or self._version
                self._failures = self._refusals = 0
                if event.kind != "BOOKMARK" and (change := self._take(event)):
                    yield News((change,))
        if monotonic() - began < _AT_ONCE_S:
            raise Unreachable(f"watch {self._path}: ended at once")
        self._failures = self._refusals = 0

    def _take(self, event: WatchEvent) -> Change[T] | None:
        uid = _uid(event.object)
        before = self.items.pop(uid, None)
        after = None if event.kind == "DELETED" else self._slim(event.object)
        if after is not None:
            self.items[uid] = after
        return None if before == after else Change(before, after)


def _uid(thing: Object) -> str:
    metadata = thing.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""


def _answered(error: KubeError) -> bool:
    """Whether it was the API server that spoke."""
    return isinstance(error, Rejected) or (isinstance(error, Unreachable) and error.status is not None)
