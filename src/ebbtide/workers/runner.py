"""Claims due visits and hands them to their loops.

Step by step on a manual clock, or for ever beside a server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from ebbtide.clock import AnchoredClock
from ebbtide.core.nodes import Phase
from ebbtide.errors import LeaseLost, Unavailable
from ebbtide.ids import Ids
from ebbtide.settings import Settings
from ebbtide.store import nodes, pools, runs, visits
from ebbtide.store.db import Database
from ebbtide.store.visits import Finish, Loop, Visit
from ebbtide.workers.leaks import CONTROL_PLANES
from ebbtide.workers.outcome import LoopWorker, Outcome

log = structlog.get_logger()

POLL_S = 1.0  # a hint from another process may be lost; due rows are found this soon without one
SINGLETON = "all"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a start found of earlier lives.

    One sentence each, for logs and for whoever started the process.
    """

    sentences: tuple[str, ...] = ()


class _LeaseOver(Exception):
    """Visits were still under way when their lease ended."""


class Runner:
    """One life of a worker process.

    alone: no other worker can be alive (an embedded database): whoever did not say goodbye was killed, and
    its leases end.
    """

    def __init__(
        self,
        db: Database,
        settings: Settings,
        ids: Ids,
        workers: Sequence[LoopWorker],
        *,
        alone: bool = False,
    ) -> None:
        self._db = db
        self._settings = settings
        self._workers: Mapping[Loop, LoopWorker] = {worker.loop: worker for worker in workers}
        self._alone = alone
        self.run_id = ids.uuid4()
        self._wakes: dict[str, asyncio.Event] = {loop.value: asyncio.Event() for loop in self._workers}
        db.on_wake(self.wake)

    def wake(self, loop: str) -> None:
        """Look for due visits of this loop now. Words that are no loop of this runner are passed over."""
        if (event := self._wakes.get(loop)) is not None:
            event.set()

    # -- a life

    async def begin(self) -> Findings:
        """Say that this run lives, end the leases of dead ones, and make sure that every standing visit
        exists.
        """
        async with self._db.transaction() as tx:
            await runs.start(tx, self.run_id)
            killed = await runs.bury_dead(tx, all_others=self._alone, run_id=self.run_id)
            for run in killed:
                await visits.free_leases(tx, run.id)
            draining = await nodes.in_phase(tx, Phase.DRAINING) if killed else []
            for loop in (Loop.METERING, Loop.RETENTION):
                await visits.hint(tx, loop, [SINGLETON])
            names = [pool.name for pool in await pools.all_(tx)]
            await visits.hint(tx, Loop.FULFILLMENT, names)
            await visits.hint(tx, Loop.LEAKS, [*names, CONTROL_PLANES])
        return Findings(tuple(_killed(run, draining) for run in killed))

    async def end(self) -> None:
        """Say goodbye: no later start takes this run for killed."""
        async with self._db.transaction() as tx:
            await visits.free_leases(tx, self.run_id)
            await runs.stop(tx, self.run_id)

    async def beat(self) -> None:
        """Say that this run still lives, and take the database's time."""
        if isinstance(self._db.clock, AnchoredClock):
            self._db.clock.anchor(await self._db.database_now())
        async with self._db.transaction() as tx:
            await runs.beat(tx, self.run_id)

    # -- step by step

    async def next_due(self) -> tuple[datetime, Loop] | None:
        async with self._db.read() as tx:
            return await visits.next_due(tx, list(self._workers))

    async def step(self, loop: Loop, *, limit: int | None = None) -> list[Outcome]:
        """Carry out the visits of one loop that are due now, at most one batch (or `limit`).

        Answer their outcomes.
        """
        claimed = await self._claim(loop, limit or self._workers[loop].batch, cap=1_000_000)
        return await self._workers[loop].visit_many(claimed) if claimed else []

    async def _claim(self, loop: Loop, limit: int, *, cap: int | None = None) -> list[Visit]:
        async with self._db.transaction() as tx:
            return await visits.claim(
                tx,
                loop,
                self.run_id,
                limit=limit,
                lease_s=self._settings.lease_s,
                cap_per_cluster=cap or self._workers[loop].batch // 2,  # a sick cluster leaves the other half
            )

    # -- for ever

    async def run(self, stop: asyncio.Event) -> None:
        """Run every loop until `stop` is set.

        Visits that are under way then are cancelled; they repeat at the next start.
        """
        tasks = [asyncio.create_task(self._beat_forever(), name="heartbeat")]
        tasks += [asyncio.create_task(self._run_loop(loop), name=loop) for loop in self._workers]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()  # a loop ends by itself only with an error; it is ours to show
        finally:
            await _end([stopped, *tasks])

    async def _beat_forever(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                await self.beat()
            await asyncio.sleep(runs.HEARTBEAT_S)

    async def _run_loop(self, loop: Loop) -> None:
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    await self._turn(loop, under_way)
                except Unavailable as away:
                    log.warning("loop waits", loop=loop, why=away.message)
                    await asyncio.sleep(POLL_S)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _turn(self, loop: Loop, under_way: set[asyncio.Task[None]]) -> None:
        """Claim what there is room for, or wait for something to change. Keeps `under_way` up to date."""
        worker = self._workers[loop]
        self._wakes[loop].clear()
        under_way -= {task for task in under_way if task.done()}
        room = worker.batch - len(under_way)
        claimed = await self._claim(loop, room) if room > 0 else []
        for chunk in _chunks(claimed, worker.chunk):
            under_way.add(asyncio.create_task(self._carry_out(worker, chunk)))
        if len(claimed) < room:
            await self._rest(loop)
        elif under_way:
            await asyncio.wait(under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)

    async def _rest(self, loop: Loop) -> None:
        """Sleep until a hint, the next due visit of this loop, or the poll, whichever is first."""
        async with self._db.read() as tx:
            due = await visits.next_due(tx, [loop])
            wait_s = min(POLL_S, (due[0] - tx.now).total_seconds()) if due else POLL_S
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wakes[loop].wait(), max(0.005, wait_s))

    async def _carry_out(self, worker: LoopWorker, claimed: Sequence[Visit]) -> None:
        try:
            outcomes = await self._within_lease(worker, claimed)
            for visit, outcome in zip(claimed, outcomes, strict=True):
                log.debug("visited", loop=visit.loop, key=visit.key, outcome=outcome.sentence)
        except _LeaseOver:  # whoever claims them next does it all again
            log.warning("visits cut off", loop=worker.loop, keys=[visit.key for visit in claimed])
        except Unavailable as away:  # the lease ends by itself and the visits are made again
            log.warning("visits put off", loop=worker.loop, why=away.message)
        except Exception:  # our own fault: one bad row must not stop the loop for all others
            if len(claimed) > 1:  # nor those that were handed over together with it
                for visit in claimed:
                    await self._carry_out(worker, [visit])
                return
            log.exception("visit failed", loop=worker.loop, keys=[visit.key for visit in claimed])
            await self._put_off(claimed)

    async def _within_lease(self, worker: LoopWorker, claimed: Sequence[Visit]) -> Sequence[Outcome]:
        """Visits that something outside holds up are cut off when their lease ends: they could finish
        nothing, and would go on beside whoever claims the rows next.
        """
        ends_at = min(visit.lease_until for visit in claimed)
        lease = asyncio.timeout((ends_at - self._db.clock.now()).total_seconds())
        try:
            async with lease:
                return await worker.visit_many(claimed)
        except TimeoutError:
            if lease.expired():
                raise _LeaseOver from None
            raise

    async def _put_off(self, claimed: Sequence[Visit]) -> None:
        for visit in claimed:
            with contextlib.suppress(LeaseLost, Unavailable):
                async with self._db.transaction() as tx:
                    again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
                    outcome = "this visit failed by a fault of ours, see the log; trying again"
                    await visits.finish(tx, [Finish(visit, outcome, again, failed=True)])


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended.

    Once may not do: a cancellation that hits a transaction can come out of it as a broken connection, which
    a loop waits out.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=POLL_S / 4)
    await asyncio.gather(*tasks, return_exceptions=True)


def _chunks(claimed: Sequence[Visit], size: int) -> list[Sequence[Visit]]:
    return [claimed[at : at + size] for at in range(0, len(claimed), size)]


def _killed(run: runs.RunRow, draining: Sequence[nodes.NodeRow]) -> str:
    names = ", ".join(
        f"{node.name} (deadline {node.deadline:%H:%M:%S})" for node in draining if node.deadline
    )
    amid = f"; draining then and now: {names}" if names else ""
    return (
        f"the worker that started {run.started_at:%Y-%m-%d %H:%M:%S} UTC was killed at about "
        f"{run.seen_at:%H:%M:%S}{amid}"
    )
