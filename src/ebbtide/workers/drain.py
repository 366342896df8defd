"""A draining node's visit.

Notice, SIGTERM, wait, and leave when empty or at the deadline. The timetable is core.drain's.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ebbtide.core import events
from ebbtide.core.drain import DrainState, DrainStep, late_end, next_step
from ebbtide.core.nodes import DrainKind, EndReason, Phase
from ebbtide.drivers.base import ClusterRef, Driver, DriverError, NodeRef, Notice, PodsSeen
from ebbtide.settings import Settings
from ebbtide.store import events as stored_events
from ebbtide.store import nodes, runs
from ebbtide.store.db import Database, Tx
from ebbtide.store.events import NewEvent
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.visits import Visit
from ebbtide.workers.credits import credit
from ebbtide.workers.outcome import Answer, Later, Outcome, finish
from ebbtide.workers.refs import cluster_ref


class Drains:
    """Repeatable at any line: what was done is asked of the cluster, not remembered here."""

    def __init__(self, db: Database, settings: Settings, driver: Driver) -> None:
        self._db = db
        self._settings = settings
        self._driver = driver

    async def visit(self, visit: Visit, node: NodeRow) -> Answer:
        node = await self._begin(node)
        cluster = cluster_ref(self._db, node)
        ref = NodeRef(node.uid, node.name)
        try:
            if node.notified_at is None:
                visit.check(self._db.clock.now())
                await self._driver.notify(cluster, ref, _notice(node))
                await self._record(node, notified_at=self._db.clock.now())
            seen = await self._driver.pods(cluster, ref)
        except DriverError as error:
            return await self._unseen(visit, node, error.message)
        node = await self._make_up(node, seen)
        now = self._db.clock.now()
        step = next_step(_state(node), seen.pods, now, self._settings.drain, seen.attachments)
        if step.done:
            # Attachments left at the end: the machine stops before the Node object lets go of its volumes.
            empty = not step.overdue and not seen.attachments
            return await self._leave(visit, node, step, empty=empty)
        refused: tuple[str, ...] = ()
        try:
            visit.check(now)
            refused = await self._tell(node, cluster, ref, step)
        except DriverError as error:
            return await self._unseen(visit, node, error.message)
        return await self._wait(visit, node, seen, step, refused)

    async def _begin(self, node: NodeRow) -> NodeRow:
        """Note that a worker is at it, before any call outside."""
        if node.drain_attempted_at is not None:
            return node
        async with self._db.transaction() as tx:
            await nodes.set_facts(tx, node.uid, drain_attempted_at=tx.now)
            return await self._give_late_notice(tx, node)

    async def _make_up(self, node: NodeRow, seen: PodsSeen) -> NodeRow:
        """The same decision for a worker that was killed between its first look and its first signal."""
        told = node.first_signal_at or not seen.pods or any(pod.ends_by for pod in seen.pods)
        assert node.deadline is not None
        if told or late_end(node.deadline, self._db.clock.now(), self._settings.drain) is None:
            return node
        async with self._db.transaction() as tx:
            return await self._give_late_notice(tx, node)

    async def _give_late_notice(self, tx: Tx, node: NodeRow) -> NodeRow:
        """Decide, once, whether the notice comes late by our fault; answer the node as it then is."""
        assert node.deadline is not None
        assert node.draining_at is not None
        end = late_end(node.deadline, tx.now, self._settings.drain)
        if (
            end
            and node.drain_kind is DrainKind.RECLAIM
            and await runs.was_down(tx, node.draining_at)
            and await nodes.end_late(tx, node.uid, end)
        ):
            await self._credit_late(tx, node, end)
        reloaded = await nodes.load(tx, node.uid)
        assert reloaded is not None
        return reloaded

    async def _credit_late(self, tx: Tx, node: NodeRow, end: datetime) -> None:
        """Say it, and credit what the tenant was billed for between the notice and the SIGTERM that did not
        come.
        """
        assert node.cluster_id
        assert node.deadline
        assert node.draining_at
        event = events.late_notice(tx.now, end, node.deadline)
        await stored_events.append(tx, [NewEvent(node.cluster_id, node.uid, node.name, event)])
        silent_s = int((min(tx.now, node.deadline) - node.draining_at).total_seconds())
        await credit(
            tx,
            node,
            ref=f"late-notice/{node.uid}",
            seconds=silent_s,
            priced_at=tx.now,
            note=f"notice came {silent_s} s late",
        )

    async def _tell(
        self, node: NodeRow, cluster: ClusterRef, ref: NodeRef, step: DrainStep
    ) -> tuple[str, ...]:
        """Send what is due.

        Answer why budgets refused. The first signal's time is written before anything is waited for.
        """
        refused: list[str] = []
        if step.evict:
            results = await self._driver.evict(cluster, ref, step.evict)
            refused = [result.refused for result in results if result.refused]
        if step.signal:
            await self._driver.signal(cluster, ref, step.signal)
        if node.first_signal_at is None and (step.signal or len(refused) < len(step.evict)):
            await self._record(node, first_signal_at=self._db.clock.now())
        return tuple(refused)

    async def _record(self, node: NodeRow, **facts: object) -> None:
        async with self._db.transaction() as tx:
            await nodes.set_facts(tx, node.uid, **facts)

    async def _wait(
        self, visit: Visit, node: NodeRow, seen: PodsSeen, step: DrainStep, refused: tuple[str, ...]
    ) -> Later:

        async def write(tx: Tx) -> Outcome:
            assert node.ends_at is not None
            left_s = max(0, int((node.ends_at - tx.now).total_seconds()))
            what = (
                f"{len(step.waiting_for)} pods"
                if step.waiting_for
                else f"{seen.attachments} volume attachments"
            )
            why = f"; {refused[0]}" if refused else ""
            return await finish(
                tx, visit, Outcome(f"waiting for {what}, {left_s // 60}:{left_s % 60:02} left{why}", step.due)
            )

        return Later(write)

    async def _unseen(self, visit: Visit, node: NodeRow, why: str) -> Later:
        """Unsure whether the node is empty means not empty; past the end nothing is waited for."""
        assert node.ends_at is not None
        now = self._db.clock.now()
        if now >= node.ends_at:
            return await self._leave(visit, node, DrainStep(done=True, overdue=True), empty=False)

        ends_at = node.ends_at

        async def write(tx: Tx) -> Outcome:
            again = min(tx.now + timedelta(seconds=self._settings.retry_s), ends_at)
            return await finish(tx, visit, Outcome(f"{why}; trying again", again, failed=True))

        return Later(write)

    async def _leave(self, visit: Visit, node: NodeRow, step: DrainStep, *, empty: bool) -> Later:

        async def write(tx: Tx) -> Outcome:
            move = Move(
                node.uid, Phase.DRAINING, Phase.REMOVING
            )  # its end's reason was written with the notice
            if not await nodes.move(tx, [move]):
                return await finish(tx, visit, Outcome("the node moved on meanwhile; looking again", tx.now))
            await nodes.set_facts(tx, node.uid, left_empty=empty)
            if step.waiting_for and node.cluster_id:
                event = events.grace_expired(step.waiting_for, tx.now)
                await stored_events.append(tx, [NewEvent(node.cluster_id, node.uid, node.name, event)])
            what = "its time is over" if step.overdue else "its pods are gone"
            return await finish(tx, visit, Outcome(f"leaving: {what}", tx.now, urgent=False))

        return Later(write)


_REASONS = {
    EndReason.PREEMPTED: events.Reason.PREEMPTED,
    EndReason.SCALED_DOWN: events.Reason.SCALED_DOWN,
    EndReason.REMEDIATED: events.Reason.REMEDIATED,
}


def _notice(node: NodeRow) -> Notice:
    assert node.deadline is not None
    reason = _REASONS.get(node.end_reason or EndReason.FAILED, events.Reason.FAILED)
    return Notice(reason, node.why or "", node.deadline)


def _state(node: NodeRow) -> DrainState:
    assert node.deadline is not None
    assert node.ends_at is not None
    assert node.drain_kind is not None
    return DrainState(node.drain_kind, node.deadline, node.ends_at)
