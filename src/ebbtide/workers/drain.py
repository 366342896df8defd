"""A draining node's visit.

Notice, SIGTERM, wait, and leave when empty or at the deadline. The timetable is core.drain's. What happens
to each pod is written down as it happens (`workers.drain_record`), in transactions that a drain has anyhow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from ebbtide.core import events
from ebbtide.core.drain import DrainPolicy, DrainState, DrainStep, PodSeen, late_end, next_step
from ebbtide.core.nodes import DrainKind, EndReason, Phase
from ebbtide.core.words import many
from ebbtide.drivers.base import ClusterRef, Driver, DriverError, NodeRef, Notice, OrderResult, PodsSeen
from ebbtide.errors import LeaseLost, Unavailable
from ebbtide.settings import Settings
from ebbtide.store import nodes, receipts, runs
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.visits import Visit
from ebbtide.workers import drain_record as record
from ebbtide.workers.outcome import Later, Outcome, finish
from ebbtide.workers.refs import cluster_ref

log = structlog.get_logger()

_OUR_FAULT = "this visit failed by a fault of ours, see the log; trying again"


@dataclass(slots=True)
class _Look:
    """One visit's look at its node.

    facts:   of the node, found so far and not written yet
    written: whether the pods seen are written down already
    """

    at: datetime
    seen: PodsSeen
    facts: dict[str, object] = field(default_factory=dict)
    written: bool = False

    @property
    def counted(self) -> list[PodSeen]:
        return [pod for pod in self.seen.pods if pod.counts]


class Drains:
    """Repeatable at any line: what was done is asked of the cluster, not remembered here."""

    def __init__(self, db: Database, settings: Settings, driver: Driver) -> None:
        self._db = db
        self._settings = settings
        self._driver = driver

    async def visit(self, visit: Visit, node: NodeRow) -> Later:
        """Whatever goes wrong, by whomever's fault: at its end the node leaves."""
        spare = partial(self._leave_anyhow, visit, node)
        try:
            return replace(await self._visit(visit, node), spare=spare)
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            log.exception("a look at a drain failed", node=node.name)
            return Later(spare)

    async def _leave_anyhow(self, visit: Visit, node: NodeRow, tx: Tx) -> Outcome:
        """The move alone, once the time is over; until then the visit is made again."""
        node = await nodes.load(tx, node.uid) or node  # its end may be a late one by now
        assert node.ends_at is not None
        if tx.now < node.ends_at:
            again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
            return await finish(tx, visit, Outcome(_OUR_FAULT, min(again, node.ends_at), failed=True))
        if await nodes.move(tx, [Move(node.uid, Phase.DRAINING, Phase.REMOVING)]):
            await nodes.set_facts(tx, node.uid, left_empty=False)
        return await finish(tx, visit, Outcome("leaving: its time is over", tx.now, urgent=False))

    async def _visit(self, visit: Visit, node: NodeRow) -> Later:
        node, told = await self._begin(node)
        ref = NodeRef(node.uid, node.name)
        facts: dict[str, object] = {}
        unannounced: tuple[str, ...] = ()
        try:
            cluster = cluster_ref(self._db, node)
            if node.notified_at is None:
                visit.check(self._db.clock.now())
                unannounced = await self._announce(
                    cluster, ref, _notice(node, told, self._settings.drain), facts
                )
            read_at = self._db.clock.now()
            look = _Look(read_at, await self._driver.pods(cluster, ref), facts)
        except DriverError as error:
            return await self._unseen(visit, node, error.message, facts)
        node = await self._make_up(node, look)
        now = self._db.clock.now()
        step = next_step(
            _state(node, self._settings.drain),
            look.seen.pods,
            now,
            self._settings.drain,
            look.seen.attachments,
        )
        if step.done:
            return await self._leave(visit, node, step, look)
        try:
            visit.check(now)
            refused = await self._tell(node, cluster, ref, step, look)
        except DriverError as error:
            return await self._unseen(visit, node, error.message)
        if (
            unannounced and step.due is not None
        ):  # SIGTERM did not wait for the cordon; so it is hurried after
            soon = self._db.clock.now() + timedelta(seconds=self._settings.retry_s)
            step = replace(step, due=min(step.due, soon))
        return await self._wait(visit, node, look, step, unannounced + refused)

    async def _announce(
        self, cluster: ClusterRef, ref: NodeRef, notice: Notice, facts: dict[str, object]
    ) -> tuple[str, ...]:
        """Cordon and announce; answer why that failed. It keeps no pod from its SIGTERM, and is tried again
        at each look. Whether the cluster is away shows when its pods are read.
        """
        try:
            await self._driver.notify(cluster, ref, notice)
        except DriverError as error:
            return (error.message,)
        facts["notified_at"] = self._db.clock.now()
        return ()

    # -- late by our fault

    async def _begin(self, node: NodeRow) -> tuple[NodeRow, str]:
        """Note that a worker is at it, before any call outside. Answers what its tenant was told, too.

        Why it was this node is the operator's to know: the event does not say it, and neither does the Node.
        """
        if node.notified_at is not None:
            return node, ""
        if node.drain_attempted_at is not None:
            async with self._db.read() as tx:
                return node, await receipts.notice_of(tx, node.uid)
        async with self._db.transaction() as tx:
            await nodes.set_facts(tx, node.uid, drain_attempted_at=tx.now)
            return await self._give_late_notice(tx, node), await receipts.notice_of(tx, node.uid)

    async def _make_up(self, node: NodeRow, look: _Look) -> NodeRow:
        """Where pods are, and none was told: the time for it, if we were away when it was due, and a credit.

        A node without pods lost nothing. Also for a worker that was killed between its first look and its
        first signal.
        """
        told = node.first_signal_at or not look.counted or any(pod.ends_by for pod in look.counted)
        assert node.deadline is not None
        if told or not self._is_late(node):
            return node
        async with self._db.transaction() as tx:
            node = await self._give_late_notice(tx, node)
            if node.ends_at != node.deadline:
                await record.credit_late(tx, node, self._settings.drain, told=True)
            return node

    def _is_late(self, node: NodeRow) -> bool:
        assert node.deadline is not None
        end = late_end(node.deadline, self._db.clock.now(), self._settings.drain)
        return end is not None or node.ends_at != node.deadline

    async def _give_late_notice(self, tx: Tx, node: NodeRow) -> NodeRow:
        """Decide, once, whether the notice comes late by our fault; answer the node as it then is."""
        assert node.deadline is not None
        assert node.draining_at is not None
        end = late_end(node.deadline, tx.now, self._settings.drain)
        if (
            end
            and node.drain_kind is DrainKind.RECLAIM
            and await runs.was_down(tx, record.due_from(node, self._settings.drain))
        ):
            await nodes.end_late(tx, node.uid, end)
        reloaded = await nodes.load(tx, node.uid)
        assert reloaded is not None
        return reloaded

    # -- telling

    async def _tell(
        self, node: NodeRow, cluster: ClusterRef, ref: NodeRef, step: DrainStep, look: _Look
    ) -> tuple[str, ...]:
        """Send what is due, having written down that it is sent.

        Answer why budgets refused. The first signal's time is written before anything is waited for.
        """
        unheard = await record.unheard(self._db, node, look.seen.pods)
        if step.signal or step.evict or node.drain_looked_at is None:
            async with self._db.transaction() as tx:
                at = await record.seen(tx, node, look.at, look.counted, look.facts)
                await receipts.will_tell(tx, node.uid, at, step.signal, step.evict)
            look.written = True
        results: list[OrderResult] = []
        if step.evict:
            results += await self._driver.evict(cluster, ref, step.evict)
        refused = tuple(result.refused for result in results if result.refused)
        signal = [*step.signal, *(one.order for one in unheard if one.again)]
        if signal:
            results += await self._driver.signal(cluster, ref, signal)
        told = bool(step.signal) or len(refused) < len(step.evict)
        first = min([one.told_at for one in unheard], default=self._db.clock.now())
        await record.answers(
            self._db, node, look.counted, results, first_signal_at=first if told or unheard else None
        )
        return refused

    async def _wait(
        self, visit: Visit, node: NodeRow, look: _Look, step: DrainStep, refused: tuple[str, ...]
    ) -> Later:

        async def write(tx: Tx) -> Outcome:
            if not look.written:
                await record.seen(tx, node, look.at, look.counted, look.facts)
            drain = _state(node, self._settings.drain)
            sentence = _waiting(look, step, refused, drain, tx.now)
            return await finish(tx, visit, Outcome(sentence, step.due))

        return Later(write)

    async def _unseen(
        self, visit: Visit, node: NodeRow, why: str, facts: dict[str, object] | None = None
    ) -> Later:
        """Unsure whether the node is empty means not empty; past the end nothing is waited for."""
        assert node.ends_at is not None
        now = self._db.clock.now()
        if now >= node.ends_at:
            return await self._leave(visit, node, DrainStep(done=True, overdue=True), None)

        ends_at = node.ends_at

        async def write(tx: Tx) -> Outcome:
            await nodes.set_facts(tx, node.uid, **(facts or {}))
            again = min(tx.now + timedelta(seconds=self._settings.retry_s), ends_at)
            return await finish(tx, visit, Outcome(f"{why}; trying again", again, failed=True))

        return Later(write)

    async def _leave(self, visit: Visit, node: NodeRow, step: DrainStep, look: _Look | None) -> Later:
        """look: None when nobody could look, and its time is over."""
        # Attachments left at the end: the machine stops before the Node object lets go of its volumes.
        empty = look is not None and not step.overdue and not look.seen.attachments

        async def write(tx: Tx) -> Outcome:
            move = Move(
                node.uid, Phase.DRAINING, Phase.REMOVING
            )  # its end's reason was written with the notice
            if not await nodes.move(tx, [move]):
                return await finish(tx, visit, Outcome("the node moved on meanwhile; looking again", tx.now))
            await nodes.set_facts(tx, node.uid, left_empty=empty)
            if look is None:
                await record.left_unseen(tx, node, self._settings.drain)
            else:
                await record.seen(tx, node, look.at, look.counted, look.facts)
                await record.left(tx, node, step.waiting_for if step.overdue else ())
            what = "its time is over" if step.overdue else "its pods are gone"
            return await finish(tx, visit, Outcome(f"leaving: {what}", tx.now, urgent=False))

        return Later(write)


def _waiting(look: _Look, step: DrainStep, refused: Sequence[str], drain: DrainState, now: datetime) -> str:
    left_s = max(0, int((drain.ends_at - now).total_seconds()))
    what = (
        many(len(step.waiting_for), "pod")
        if step.waiting_for
        else many(look.seen.attachments, "volume attachment")
    )
    why = f"; {refused[0]}" if refused else ""
    if drain.signal_from is not None and now < drain.signal_from:
        why = f"; SIGTERM in {int((drain.signal_from - now).total_seconds())} s, as its cluster wants"
    return f"waiting for {what}, {left_s // 60}:{left_s % 60:02} left{why}"


_REASONS = {
    EndReason.PREEMPTED: events.Reason.PREEMPTED,
    EndReason.SCALED_DOWN: events.Reason.SCALED_DOWN,
    EndReason.REMEDIATED: events.Reason.REMEDIATED,
}


def _notice(node: NodeRow, told: str, policy: DrainPolicy) -> Notice:
    assert node.deadline is not None
    assert node.draining_at is not None
    reason = _REASONS.get(node.end_reason or EndReason.FAILED, events.Reason.FAILED)
    due = record.due_from(node, policy)
    warned = f"; SIGTERM comes at {events.rfc3339(due)}" if due > node.draining_at else ""
    return Notice(reason, f"{told}{warned}", node.deadline)


def _state(node: NodeRow, policy: DrainPolicy) -> DrainState:
    assert node.deadline is not None
    assert node.ends_at is not None
    assert node.drain_kind is not None
    return DrainState(node.drain_kind, node.deadline, node.ends_at, record.due_from(node, policy))
