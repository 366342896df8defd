"""Turning what is seen in clusters into hints, so that a drain ends when its last pod has gone and not at the
next timed look. Only hints: a visit reads anew, and without any of this all ends well, later.

Each cluster has a task of its own, so one that is sick keeps no other waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

import structlog

from ebbtide.clock import monotonic
from ebbtide.drivers.base import ClusterRef, DriverError, Watcher
from ebbtide.errors import Unavailable
from ebbtide.store import clusters, visits, watching
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database
from ebbtide.store.visits import Loop
from ebbtide.workers.refs import ref_of

log = structlog.get_logger()

REFRESH_S = 10.0  # how soon a new cluster is watched
APART_S = 0.05  # between the beginnings of two watches: each reads all there is
REST_S = 0.5  # between two hints about the nodes of one cluster
LOOK_REST_S = 10.0  # between two about the whole of it: that costs a read of everything there


@dataclass(slots=True)
class _Watch:
    ref: ClusterRef
    task: asyncio.Task[None]


class Watches:
    """Follows every live cluster that has a control plane."""

    def __init__(
        self,
        db: Database,
        watcher: Watcher,
        *,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """wait, now: how to wait, and a clock for spans."""
        self._db = db
        self._watcher = watcher
        self._wait = wait
        self._now = now
        self._watches: dict[str, _Watch] = {}

    async def run(self) -> None:
        """For ever; cancelled, it takes its watches down first."""
        try:
            while True:
                try:
                    await self.refresh()
                except Unavailable as error:
                    log.info("clusters to watch not known for now", why=error.message)
                await self._wait(REFRESH_S)
        finally:
            await self._end(list(self._watches))

    async def refresh(self) -> None:
        """Watch what is new, leave what is gone, begin anew where the way in has changed or a watch ended."""
        async with self._db.read() as tx:
            rows = await clusters.live(tx)
        refs = {ref.cluster_id: ref for row in rows if row.control_plane_ready for ref in self._refs(row)}
        await self._end([key for key, watch in self._watches.items() if refs.get(key) != watch.ref])
        begun = 0
        for key, ref in refs.items():
            watch = self._watches.get(key)
            if watch is None or watch.task.done():
                if watch is not None:
                    _say_why(watch)
                task = asyncio.create_task(self._follow(ref, begun * APART_S))
                self._watches[key] = _Watch(ref, task)
                begun += 1

    def _refs(self, row: ClusterRow) -> list[ClusterRef]:
        """How its watcher names it; nothing where its kubeconfig cannot be opened: others are watched."""
        try:
            return [ref_of(self._db, row)]
        except DriverError as error:
            log.warning("a cluster is not watched", cluster=row.id, why=error.message)
            return []

    async def _end(self, keys: list[str]) -> None:
        tasks = [self._watches.pop(key).task for key in keys]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, ref: ClusterRef, wait_s: float) -> None:
        if wait_s:
            await self._wait(wait_s)
        looked_at = self._now() - LOOK_REST_S
        async with aclosing(self._watcher.changes(ref)) as changes:
            async for uids in changes:
                look_in_s = max(0.0, looked_at + LOOK_REST_S - self._now())
                try:
                    await self._hint(ref.cluster_id, uids, look_in_s)
                except Unavailable as error:
                    log.info("hints lost", cluster=ref.cluster_id, why=error.message)
                looked_at = self._now() + look_in_s
                await self._wait(REST_S)

    async def _hint(self, cluster_id: str, uids: frozenset[str], look_in_s: float) -> None:
        """Make due: these nodes' visits now, if they wait for something; the cluster's in so many seconds."""
        async with self._db.transaction() as tx:
            awaited = await watching.awaited_among(tx, cluster_id, sorted(uids))
            await visits.wake_existing(tx, Loop.LIFECYCLE, awaited)
            due_at = tx.now + timedelta(seconds=look_in_s)
            await visits.wake_existing(tx, Loop.OBSERVATION, [cluster_id], due_at=due_at)


def _say_why(watch: _Watch) -> None:
    """A watch ends by itself where the kubeconfig is of no use, or by an error of ours."""
    error = None if watch.task.cancelled() else watch.task.exception()
    if error is not None:
        log.error("watch of a cluster ended", cluster=watch.ref.cluster_id, why=repr(error))
