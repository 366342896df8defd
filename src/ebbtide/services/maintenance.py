"""Taking one named host out of use, and giving it back: what happens to whoever has it, in one transaction.

In the same transaction the host stops being anybody's supply, and whatever was promised on it is promised
elsewhere. A node of class `maintenance` waits for it and then holds it. All of this needs the pool's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ebbtide.core import events
from ebbtide.core.capacity import Candidate, Victim
from ebbtide.core.claims import ClaimKind
from ebbtide.core.hosts import HostState
from ebbtide.core.maintenance import Clearing, breaks_promises, clearing
from ebbtide.core.nodes import DrainKind, EndReason, Phase, may_have_pods
from ebbtide.errors import Conflict
from ebbtide.ids import Ids
from ebbtide.services.capacity import Demand, Planner, reclaim_move
from ebbtide.settings import Settings
from ebbtide.store import claims, clusters, fleet, maintenance, nodes, pools, visits
from ebbtide.store.db import Tx
from ebbtide.store.fleet import HostRow
from ebbtide.store.maintenance import MaintenanceRow
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class Wish:
    """reason: as operators and the tenants who are disturbed read it. until: when it should be over."""

    reason: str
    until: datetime | None = None
    began_by: str | None = None

    @property
    def remark(self) -> str:
        """What a host says of itself meanwhile."""
        until = f" (until {events.rfc3339(self.until)})" if self.until else ""
        return f"maintenance: {self.reason}{until}"


class Maintainer:
    """Begins and ends maintenance, inside the caller's transaction, after `pools.lock`."""

    def __init__(self, settings: Settings, ids: Ids, planner: Planner) -> None:
        self._settings = settings
        self._ids = ids
        self._planner = planner

    async def begin(self, tx: Tx, pool: PoolRow, host: HostRow, wish: Wish) -> None:
        """Have a host emptied and held.

        Raises Conflict when another system has it, when its standard node cannot be replaced, or when hosts
        that were promised could not be found any more.
        """
        occupant = await _occupant(tx, host)
        how = clearing(occupant.compute_class, occupant.phase) if occupant else Clearing.EMPTY
        if how is Clearing.REFUSED:
            raise _anothers(host)
        before = await _supply(tx, pool)
        demand = Demand(ClaimKind.MAINTENANCE, 1, f"maintenance of host {host.name}", None)
        claim_id = await self._planner.open_claim(tx, pool, demand)
        disturbed: list[str] = []
        if occupant and how is Clearing.REPLACE:
            disturbed += await self._replace(tx, pool, host, occupant, wish)
        if occupant and how is Clearing.TAKE:
            disturbed += await self._take(tx, occupant, claim_id, wish)
        await fleet.set_host(tx, host.id, state=HostState.CORDONED, state_reason=wish.remark)
        held = [host.id] if occupant is None else []
        (node_uid,) = await self._planner.place(tx, pool, demand, claim_id, held)
        disturbed += await self._keep_promises(tx, pool, host, before)
        await maintenance.insert(
            tx,
            id=self._ids.uuid4(),
            host_id=host.id,
            claim_id=claim_id,
            node_uid=node_uid,
            disturbed=disturbed,
            reason=wish.reason,
            until=wish.until,
            began_by=wish.began_by,
        )
        await claims.settle(tx, pool.name)
        # Who had the host may have left it while this was being written.
        await visits.hint(tx, Loop.FULFILLMENT, [pool.name])

    async def _replace(self, tx: Tx, pool: PoolRow, host: HostRow, node: NodeRow, wish: Wish) -> list[str]:
        """Promise the cluster another host, and let its node go. Answer the nodes that this disturbs."""
        assert node.cluster_id
        cluster = await clusters.load(tx, node.cluster_id)
        assert cluster is not None
        demand = Demand(
            ClaimKind.STANDARD,
            1,
            "a standard node whose host goes into maintenance",
            node.project_id,
            node.cluster_id,
            cluster.node_group,
        )
        try:
            claim_id = await self._planner.promise(tx, pool, demand)
        except Conflict as short:
            raise Conflict(
                f"{host.name} has the standard node {node.name} of cluster {node.cluster_name!r}, and no "
                f"other host in {pool.name} is free, coming free or reclaimable to replace it with; standard "
                f"nodes are never taken. Free or add a host first, or cordon this one until its node leaves "
                f"by itself (`ebbtide fleet hosts cordon {host.name}`).",
                code="no_replacement",
            ) from short
        taken = [one.uid for one in await nodes.taken_for(tx, claim_id)]
        await nodes.move(tx, [self._replacing(tx.now, node, wish)])
        return [node.uid, *taken]

    def _replacing(self, now: datetime, node: NodeRow, wish: Wish) -> Move:
        why = f"maintenance of its host: {wish.reason}"
        if not may_have_pods(node.phase, busy=node.workload_pods > 0):
            event = events.remediated(why, now, None)
            return Move(
                node.uid, node.phase, Phase.REMOVING, event=event, end_reason=EndReason.REMEDIATED, why=why
            )
        deadline = now + timedelta(seconds=self._settings.drain_window_s)
        return Move(
            node.uid,
            node.phase,
            Phase.DRAINING,
            event=events.remediated(why, now, deadline),
            end_reason=EndReason.REMEDIATED,
            drain_kind=DrainKind.RELEASE,
            deadline=deadline,
            why=why,
        )

    async def _take(self, tx: Tx, node: NodeRow, claim_id: str, wish: Wish) -> list[str]:
        deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
        candidate = Candidate(
            node.uid,
            node.cluster_id or "",
            node.project_id or "",
            node.phase,
            node.workload_pods > 0,
            node.running_at,
        )
        # There was no choice to give reasons for: the host was named.
        why = f"maintenance of its host: {wish.reason}"
        move = reclaim_move(tx.now, Victim(node.uid, ""), candidate, deadline, claim_id, why)
        await nodes.move(tx, [replace(move, why=why)])
        return [node.uid]

    async def _keep_promises(
        self, tx: Tx, pool: PoolRow, host: HostRow, before: tuple[int, int]
    ) -> list[str]:
        """Take other nodes for what was promised on this host. Raises Conflict when there are none."""
        if breaks_promises(before, await _supply(tx, pool)):
            raise _promised(host, pool)
        return await self._planner.replan(tx, pool)

    async def check_removal(self, tx: Tx, pool: PoolRow, host: HostRow) -> None:
        """Raise Conflict when a free host cannot go, because somebody was promised it."""
        free, takeable = await _supply(tx, pool)
        supply = host.state is HostState.AVAILABLE and host.node_uid is None
        if breaks_promises((free, takeable), (free - supply, takeable)):
            raise _promised(host, pool)

    async def end(self, tx: Tx, pool: PoolRow, row: MaintenanceRow, how: str) -> None:
        """End a maintenance, whether its host was empty yet or not. What leaves the host goes on leaving."""
        if row.node_phase is Phase.PENDING:
            move = Move(row.node_uid, Phase.PENDING, Phase.REMOVED, end_reason=EndReason.CANCELLED)
        else:
            move = Move(
                row.node_uid, Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.SCALED_DOWN, why=how
            )
        await nodes.move(tx, [move])
        await maintenance.end(tx, row.id, how)
        await claims.settle(tx, pool.name)
        await visits.hint(tx, Loop.FULFILLMENT, [pool.name])


async def _occupant(tx: Tx, host: HostRow) -> NodeRow | None:
    """Who has the host, locked with its cluster's other nodes, so that it stays in its phase."""
    if host.node_uid is None:
        return None
    if host.cluster_id:
        await nodes.lock_cluster(tx, host.cluster_id)
    node = await nodes.load(tx, host.node_uid)
    return None if node is None or node.phase is Phase.REMOVED else node


async def _supply(tx: Tx, pool: PoolRow) -> tuple[int, int]:
    view = await pools.view(tx, pool)
    return view.unpromised, await pools.count_reclaimable(tx, pool.name)


def _anothers(host: HostRow) -> Conflict:
    return Conflict(
        f"{host.name} was handed to {host.lent_to or 'another system'} by a claim and comes back when it is "
        f"given back (`ebbtide fleet claims` shows the reference, `ebbtide fleet return REF --host "
        f"{host.name}` does it). Cordon it until then (`ebbtide fleet hosts cordon {host.name}`).",
        code="host_claimed",
    )


def _promised(host: HostRow, pool: PoolRow) -> Conflict:
    return Conflict(
        f"{host.name} is promised to a claim, and no other host in {pool.name} is free, coming free or "
        f"reclaimable to take its place; free or add a host first, or try again when the claim is served.",
        code="host_promised",
    )
