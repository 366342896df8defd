"""A remediation's next step. Draining and replacing is done by those who always do it: here it is begun
and watched.

Restarts in place are in `restart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ebbtide.core import events
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.core.remediations import (
    CORDONING,
    OPEN,
    REPLACING,
    RESTARTING,
    Mode,
    State,
    check_eviction,
)
from ebbtide.drivers.base import Driver
from ebbtide.errors import Conflict
from ebbtide.providers.base import Provider
from ebbtide.settings import Settings
from ebbtide.store import clusters, nodes, pools, remediations, visits
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.remediations import RemediationRow
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.restart import Restarts
from ebbtide.workers.single import SingleVisits

WATCH_S = 5  # between two looks at what others carry out
UNREVIEWED_S = 60  # between two looks whether a node still is there whose remediation waits for approval
_GONE = frozenset({Phase.REMOVING, Phase.REMOVED})


class Remediations(SingleVisits):
    loop = Loop.REMEDIATION
    batch = 16

    def __init__(self, db: Database, settings: Settings, provider: Provider, driver: Driver) -> None:
        super().__init__(db, settings)
        self._restarts = Restarts(db, settings, provider, driver)

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.read() as tx:
            row = await remediations.load(tx, visit.key)
            node = await nodes.load(tx, row.node_uid) if row else None
        if row is None or node is None or row.state not in OPEN:
            async with self._db.transaction() as tx:
                return await finish(tx, visit, Outcome(f"over: {row.state}" if row else "nothing to do"))
        if row.state is State.QUARANTINING:
            return await self._quarantine(visit, row, node)
        if row.state is State.RUNNING:
            if row.mode in RESTARTING:
                return await self._restarts.visit(visit, row, node)
            return await self._watch(visit, row, node)
        if node.phase is not Phase.RUNNING:
            return await self._resolve(visit, row, node)
        if row.state is State.PENDING_APPROVAL:
            async with self._db.transaction() as tx:
                again = tx.now + timedelta(seconds=UNREVIEWED_S)
                return await finish(tx, visit, Outcome("waiting for approval", again))
        return await self._db.run(lambda tx: self._begin(tx, visit, row))

    async def _resolve(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        async with self._db.transaction() as tx:
            return await finish(tx, visit, await resolve(tx, row, node))

    # -- beginning

    async def _begin(self, tx: Tx, visit: Visit, seen: RemediationRow) -> Outcome:
        """Lock in the order of all plans, look again, and begin: one transaction."""
        node = await nodes.load(tx, seen.node_uid)
        assert node is not None
        assert node.cluster_id is not None
        pool = await pools.lock(tx, node.pool)
        await nodes.lock_cluster(tx, node.cluster_id)
        node = await nodes.load(tx, seen.node_uid)
        cluster = await clusters.load(tx, seen.cluster_id, for_update=True)
        row = await remediations.load(tx, seen.id, for_update=True)
        assert node is not None
        assert cluster is not None
        assert row is not None
        if row.state is not State.PENDING or node.phase is not Phase.RUNNING:
            return await finish(tx, visit, Outcome("it changed meanwhile; looking again", tx.now))
        if row.mode in RESTARTING:
            return await finish(tx, visit, await self._restarts.begin(tx, row, node))
        if row.mode is Mode.HOST_AWARE and node.compute_class is ComputeClass.STANDARD:
            view = await pools.view(tx, pool)
            if view.unpromised + await pools.count_reclaimable(tx, pool.name) < 1:
                again = tx.now + timedelta(seconds=self._settings.fill_every_s)
                why = f"waiting for another host in {pool.name}: none is free, coming free or reclaimable"
                return await finish(tx, visit, Outcome(why, again))
        if row.mode is Mode.EVICT_WITHOUT_REPLACEMENT:
            try:
                await _shrink(tx, cluster, node)
            except Conflict as refusal:
                await end(tx, row, State.FAILED, error_message=refusal.message)
                return await finish(tx, visit, Outcome(f"failed: {refusal.message}"))
        return await finish(tx, visit, await self._drain(tx, row, node))

    async def _drain(self, tx: Tx, row: RemediationRow, node: NodeRow) -> Outcome:
        """The polite drain of a release; what comes after it, the node's own loop and the pool's plan do."""
        deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
        why = f"remediation {row.mode}" + (f": {row.reason}" if row.reason else "")
        shrinks = row.mode is Mode.EVICT_WITHOUT_REPLACEMENT
        move = Move(
            node.uid,
            Phase.RUNNING,
            Phase.DRAINING,
            event=events.scaled_down(why, tx.now, deadline)
            if shrinks
            else events.remediated(why, tx.now, deadline),
            end_reason=EndReason.SCALED_DOWN if shrinks else EndReason.REMEDIATED,
            drain_kind=DrainKind.RELEASE,
            deadline=deadline,
            why=why,
        )
        moved = await nodes.move(tx, [move])
        assert moved, "the node is locked and was running"
        if row.mode in CORDONING and node.host_id:
            await remediations.set_aside(
                tx, node.host_id, HostState.CORDONED, f"remediation {row.id} of {node.name}"
            )
        await remediations.move(tx, row.id, State.PENDING, State.RUNNING, started_at=tx.now)
        await visits.hint(tx, Loop.FULFILLMENT, [node.pool])
        left = events.rfc3339(deadline)
        return Outcome(f"{node.name} drains until {left}", tx.now + timedelta(seconds=WATCH_S))

    # -- watching

    async def _watch(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        async with self._db.transaction() as tx:
            again = tx.now + timedelta(seconds=WATCH_S)
            if node.phase is not Phase.REMOVED:
                what = "is being removed" if node.phase in _GONE else "drains"
                return await finish(tx, visit, Outcome(f"{node.name} {what}", again))
            cluster = await clusters.load(tx, row.cluster_id)
            waiting = _missing(cluster, await nodes.of_cluster(tx, row.cluster_id), row, node)
            if waiting:
                return await finish(tx, visit, Outcome(f"{node.name} is gone; {waiting}", again))
            await end(tx, row, State.SUCCEEDED)
            sentence = f"done: {node.name} is gone{_THEN[row.mode]}"
            return await finish(tx, visit, Outcome(sentence))

    async def _quarantine(self, visit: Visit, row: RemediationRow, node: NodeRow) -> Outcome:
        async with self._db.transaction() as tx:
            if node.phase is not Phase.REMOVED:
                again = tx.now + timedelta(seconds=WATCH_S)
                return await finish(tx, visit, Outcome(f"{node.name} is being removed", again))
            await end(tx, row, State.QUARANTINED)
            return await finish(tx, visit, Outcome("its host is quarantined"))


_THEN = {
    Mode.VM_ONLY: ", and what replaces it is the pool's plan",
    Mode.HOST_AWARE: ", its host is cordoned, and what replaces it is the pool's plan",
    Mode.EVICT_WITHOUT_REPLACEMENT: " and not replaced",
}


async def _shrink(tx: Tx, cluster: ClusterRow, node: NodeRow) -> None:
    """The cluster wants one node less. Raises Conflict for the last standard node."""
    standard = node.compute_class is ComputeClass.STANDARD
    check_eviction(is_standard=standard, standard_hosts=cluster.standard_hosts)
    if standard:
        await clusters.set_fields(tx, cluster.id, standard_hosts=cluster.standard_hosts - 1)
    else:
        await clusters.set_fields(tx, cluster.id, target_hosts=max(0, cluster.target_hosts - 1))


def _missing(
    cluster: ClusterRow | None, present: Sequence[NodeRow], row: RemediationRow, node: NodeRow
) -> str | None:
    """What is waited for after a node's end. A preemptible one is replaced when hosts are to spare."""
    if row.mode not in REPLACING or node.compute_class is not ComputeClass.STANDARD or cluster is None:
        return None
    if cluster.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):
        return None
    running = sum(
        one.compute_class is ComputeClass.STANDARD and one.phase is Phase.RUNNING for one in present
    )
    if running >= cluster.standard_hosts:
        return None
    return f"{running} of {cluster.standard_hosts} standard nodes run"


async def end(tx: Tx, row: RemediationRow, state: State, **fields: object) -> None:
    """End a remediation, if nobody else did."""
    await remediations.move(tx, row.id, row.state, state, ended_at=tx.now, **fields)


async def resolve(tx: Tx, row: RemediationRow, node: NodeRow) -> Outcome:
    """The node left by itself: nothing is to be done any more."""
    why = f"{node.name} left by itself: {node.end_reason or node.phase}"
    await end(tx, row, State.AUTO_RESOLVED, error_message=why)
    return Outcome(f"not needed any more: {why}")
