"""Restarts in place: pods are asked to go, the machine goes down and comes up, and work may come again.

The node stays RUNNING and keeps its name and host. Its time is billed on, because the host is held for its
tenant; what lies between going down and being ready again is credited.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from ebbtide.core import events
from ebbtide.core.drain import DrainState, next_step
from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import DrainKind, EndReason, Phase
from ebbtide.core.remediations import Mode, State
from ebbtide.core.words import many
from ebbtide.drivers.base import Driver, DriverError, NodeRef, Notice
from ebbtide.providers.base import Instance, InstanceState, Provider
from ebbtide.settings import Settings
from ebbtide.store import events as stored_events
from ebbtide.store import intervals, nodes, receipts, remediations, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.events import NewEvent
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.remediations import RemediationRow
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.credits import credit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.refs import cluster_ref

log = structlog.get_logger()
LOOK_S = 5  # between two looks at a machine that restarts
_MOVED_ON = "the node moved on meanwhile; looking again"


class Restarts:
    """Repeatable at any line: the provider knows a restart by the remediation's id, and begins it once."""

    def __init__(self, db: Database, settings: Settings, provider: Provider, driver: Driver) -> None:
        self._db = db
        self._settings = settings
        self._provider = provider
        self._driver = driver

    async def begin(self, tx: Tx, row: RemediationRow, node: NodeRow) -> Outcome:
        """Say until when pods may stay. The caller holds the locks."""
        deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
        event = events.restarting(_why(row), tx.now, deadline)
        await stored_events.append(tx, [NewEvent(row.cluster_id, node.uid, node.name, event, ref=row.id)])
        await remediations.move(
            tx, row.id, State.PENDING, State.RUNNING, started_at=tx.now, deadline=deadline
        )
        return Outcome(f"{node.name} is emptied until {events.rfc3339(deadline)}", tx.now)

    async def visit(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        if node.phase is not Phase.RUNNING:
            return await self._left(visit, row, node)
        if row.restarted_at is None:
            return await self._empty(visit, row, node)
        return await self._restart(visit, row, node)

    async def _left(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        """Taken, lost or deleted meanwhile: its leaving goes on, without us.

        What was billed from when its machine went down is credited, as soon as it is known how long that was.
        """
        async with self._db.transaction() as tx:
            if node.phase is Phase.DRAINING and row.restarted_at is not None:
                again = tx.now + timedelta(seconds=LOOK_S)
                return await finish(tx, visit, Outcome(f"{node.name} drains meanwhile", again))
            if row.restarted_at is not None:
                billed_s = await intervals.billed_since(tx, node.uid, row.restarted_at)
                await self._credit_span(tx, row, node, billed_s)
            why = f"{node.name} left meanwhile: {node.end_reason or node.phase}"
            await remediations.move(
                tx, row.id, State.RUNNING, State.AUTO_RESOLVED, ended_at=tx.now, error_message=why
            )
            return await finish(tx, visit, Outcome(f"not needed any more: {why}"))

    # -- emptying

    async def _empty(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        """Cordon, and ask pods to go as a release does. A silent cluster is waited for until then."""
        assert row.deadline is not None
        now = self._db.clock.now()
        try:
            waiting = await self._ask_pods(visit, row, node)
        except DriverError as error:
            again = min(now + timedelta(seconds=self._settings.retry_s), row.deadline)
            waiting = None if now >= row.deadline else Outcome(f"{error.message}; trying again", again)
        async with self._db.transaction() as tx:
            if waiting is not None:
                return await finish(tx, visit, waiting)
            # Taken since it was read, it is not restarted, and no time down may be credited.
            await receipts.lock(tx, node.uid)
            current = await nodes.load(tx, node.uid)
            if current is None or current.phase is not Phase.RUNNING:
                return await finish(tx, visit, Outcome(_MOVED_ON, tx.now))
            until = tx.now + timedelta(seconds=self._settings.restart_limit_s)
            await nodes.set_facts(tx, node.uid, restart_until=until)
            await remediations.set_fields(tx, row.id, restarted_at=tx.now)
            return await finish(tx, visit, Outcome("the machine goes down", tx.now))

    async def _ask_pods(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome | None:
        """What is waited for, or None when the node is empty or its time is over."""
        assert row.deadline is not None
        cluster, ref = cluster_ref(self._db, node), NodeRef(node.uid, node.name)
        visit.check(self._db.clock.now())
        notice = Notice(events.Reason.RESTARTING, _why(row), row.deadline)
        await self._driver.notify(cluster, ref, notice)
        seen = await self._driver.pods(cluster, ref)
        drain = DrainState(DrainKind.RELEASE, row.deadline, row.deadline)
        step = next_step(drain, seen.pods, self._db.clock.now(), self._settings.drain, seen.attachments)
        if step.done:
            return None
        refused = ""
        if step.evict:
            results = await self._driver.evict(cluster, ref, step.evict)
            refused = next((f"; {result.refused}" for result in results if result.refused), "")
        if step.signal:
            await self._driver.signal(cluster, ref, step.signal)
        return Outcome(f"waiting for {many(len(step.waiting_for), 'pod')} to leave{refused}", step.due)

    # -- restarting

    async def _restart(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        visit.check(self._db.clock.now())
        hard = row.mode is Mode.HOST_POWER_CYCLE
        restart = self._provider.power_cycle if hard else self._provider.reboot
        overdue = node.restart_until is not None and self._db.clock.now() >= node.restart_until
        instance = None if overdue else await restart(node.uid, row.id)
        if instance is None:
            what = (
                f"not back after {self._settings.restart_limit_s} s" if overdue else "unknown to its provider"
            )
            return await self._give_up(visit, row, node, f"the machine was restarted and is {what}")
        why = await self._not_back(node, instance)
        async with self._db.transaction() as tx:
            if why is not None:
                return await finish(tx, visit, Outcome(why, tx.now + timedelta(seconds=LOOK_S)))
            if not await remediations.move(tx, row.id, State.RUNNING, State.SUCCEEDED, ended_at=tx.now):
                return await finish(tx, visit, Outcome("somebody was faster"))
            await nodes.set_facts(tx, node.uid, restart_until=None, healthy_until=None)
            away_s = await self._credit(tx, row, node)
            return await finish(tx, visit, Outcome(f"{node.name} is back after {away_s} s"))

    async def _not_back(self, node: NodeRow, instance: Instance) -> str | None:
        """What is missing, or None when the node is ready, whole, and open for work again."""
        if instance.state is not InstanceState.UP:
            if instance.why:  # the operator's words, and tenants read the sentence
                log.info("machine not back", node=node.uid, state=instance.state, why=instance.why)
            return f"the machine is {instance.state}"
        cluster = cluster_ref(self._db, node)
        seen = {one.uid: one for one in await self._driver.observe(cluster)}.get(node.uid)
        if seen is None or not seen.ready or seen.gpus < node.gpus:
            return "the machine is up; its node is not ready yet"
        await self._driver.take_back(cluster, NodeRef(node.uid, node.name), events.Reason.RESTARTING)
        return None

    async def _credit(self, tx: Tx, row: RemediationRow, node: NodeRow) -> int:
        """Credit the time away, once; answer how many seconds that were."""
        assert row.restarted_at is not None
        away_s = int((tx.now - row.restarted_at).total_seconds())
        await self._credit_span(tx, row, node, away_s)
        return away_s

    async def _credit_span(self, tx: Tx, row: RemediationRow, node: NodeRow, away_s: int) -> None:
        if not away_s:
            return
        assert row.restarted_at is not None
        await credit(
            tx,
            node,
            ref=f"restart/{row.id}",
            seconds=away_s,
            priced_at=row.restarted_at,
            note=f"restarted for {away_s} s",
        )

    async def _give_up(self, visit: Visit, row: RemediationRow, node: NodeRow, why: str) -> Outcome:
        """Its host is set aside, the node is removed and, if it is a standard one, replaced elsewhere."""

        async def work(tx: Tx) -> Outcome:
            move = Move(
                node.uid,
                Phase.RUNNING,
                Phase.REMOVING,
                event=events.failed(why, tx.now),
                end_reason=EndReason.FAILED,
                why=why,
                bill_until=row.restarted_at,
            )
            if not await nodes.move(tx, [move]):
                return await finish(tx, visit, Outcome(_MOVED_ON, tx.now))
            if node.host_id:
                await remediations.set_aside(tx, node.host_id, HostState.QUARANTINED, why)
            await remediations.move(tx, row.id, State.RUNNING, State.QUARANTINING, error_message=why)
            await visits.hint(tx, Loop.FULFILLMENT, [node.pool])
            return await finish(tx, visit, Outcome(f"given up: {why}", tx.now + timedelta(seconds=LOOK_S)))

        return await self._db.run(work)


def _why(row: RemediationRow) -> str:
    return f"remediation {row.mode}" + (f": {row.reason}" if row.reason else "")
