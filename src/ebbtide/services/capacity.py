"""The only writer of plans: who gets which host, and who gives one back. Every function here needs the pool's
lock.

Decisions are pure and in `core`; this module reads the view, asks core, and writes the answer in the same
transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from ebbtide.core import capacity, events, placement, reclaim, shares
from ebbtide.core.capacity import Candidate, PoolView, Victim
from ebbtide.core.claims import ClaimKind
from ebbtide.core.nodes import (
    ComputeClass,
    DrainKind,
    EndReason,
    Phase,
    first_phase,
    may_have_pods,
    node_name,
)
from ebbtide.core.words import many
from ebbtide.errors import Conflict
from ebbtide.ids import Ids
from ebbtide.settings import Settings
from ebbtide.store import claims, clusters, maintenance, nodes, pools, visits
from ebbtide.store.db import Tx
from ebbtide.store.nodes import Move, NewNode
from ebbtide.store.pools import ClusterHolding, PoolRow
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class Demand:
    """Hosts asked for by a claim. A standard claim is for a cluster; others are for `for_whom` alone."""

    kind: ClaimKind
    hosts: int
    for_whom: str
    project_id: str | None
    cluster_id: str | None = None
    node_group: str = "claim"
    ref: str | None = None
    args_hash: str | None = None

    @property
    def told(self) -> str:
        """What tenants whose nodes are taken read of it: never whom a claim is for."""
        return self.for_whom if self.kind is ClaimKind.STANDARD else f"a claim of {many(self.hosts, 'host')}"

    @property
    def compute_class(self) -> ComputeClass:
        return ComputeClass(self.kind.value)


class Planner:
    """Plans for one pool at a time, inside the caller's transaction, after `pools.lock`."""

    def __init__(self, settings: Settings, ids: Ids) -> None:
        self._settings = settings
        self._ids = ids

    # -- demand that may displace

    async def promise(self, tx: Tx, pool: PoolRow, demand: Demand) -> str:
        """Promise all of a demand's hosts or none; answer the claim's id.

        Raises Conflict with what is free and what is reclaimable when there are not enough.
        """
        view = await pools.view(tx, pool)
        reclaimable = 0 if view.unpromised >= demand.hosts else await pools.count_reclaimable(tx, pool.name)
        supply = capacity.supply(view, demand.hosts, reclaimable)
        if supply.short:
            raise _out_of_stock(pool, view, demand.hosts, await pools.count_reclaimable(tx, pool.name))
        claim_id = await self.open_claim(tx, pool, demand)
        hosts = await self._pick_free(tx, pool, view.free, supply.from_free, demand.cluster_id)
        await self.place(tx, pool, demand, claim_id, hosts)
        if supply.to_take:
            await self._take(tx, pool, supply.to_take, claim_id, f"for {demand.told}")
        await claims.settle(tx, pool.name)
        return claim_id

    async def open_claim(self, tx: Tx, pool: PoolRow, demand: Demand) -> str:
        """Write a claim that has no nodes yet; answer its id."""
        claim_id = self._ids.uuid4()
        await claims.insert(
            tx,
            id=claim_id,
            kind=demand.kind,
            pool=pool.name,
            cluster_id=demand.cluster_id,
            ref=demand.ref,
            for_whom=demand.for_whom,
            args_hash=demand.args_hash,
            hosts=demand.hosts,
        )
        return claim_id

    async def place(
        self, tx: Tx, pool: PoolRow, demand: Demand, claim_id: str, hosts: Sequence[str]
    ) -> list[str]:
        """Write a claim's nodes, as many as there are with these hosts; answer their uids."""
        given = [*hosts, *[None] * (demand.hosts - len(hosts))]
        new = [
            self._new_node(
                pool,
                demand.compute_class,
                demand.node_group,
                demand.cluster_id,
                demand.project_id,
                claim_id,
                host_id,
            )
            for host_id in given
        ]
        await nodes.place(tx, new)
        return [node.uid for node in new]

    def _new_node(
        self,
        pool: PoolRow,
        compute_class: ComputeClass,
        group: str,
        cluster_id: str | None,
        project_id: str | None,
        claim_id: str | None,
        host_id: str | None,
    ) -> NewNode:
        return NewNode(
            uid=self._ids.uuid4(),
            name=node_name(compute_class, group, self._ids.name_part()),
            cluster_id=cluster_id,
            project_id=project_id,
            pool=pool.name,
            compute_class=compute_class,
            gpus=pool.gpus_per_host,
            claim_id=claim_id,
            host_id=host_id,
        )

    async def _pick_free(
        self,
        tx: Tx,
        pool: PoolRow,
        free: Mapping[str, int],
        count: int,
        cluster_id: str | None,
        *,
        lendable_only: bool = False,
    ) -> list[str]:
        if count <= 0:
            return []
        held = await pools.blocks_of(tx, pool.name, cluster_id) if cluster_id else {}
        blocks = placement.choose_blocks(free, count, held)
        return await pools.free_hosts(tx, pool.name, blocks, lendable_only=lendable_only)

    async def take(self, tx: Tx, pool: PoolRow, hosts: int, why: str) -> list[str]:
        """The operator takes up to `hosts` nodes back, for no claim; answer their uids."""
        return await self._take(tx, pool, hosts, None, why)

    async def _take(self, tx: Tx, pool: PoolRow, hosts: int, claim_id: str | None, why: str) -> list[str]:
        """Choose and notice preemptible nodes. The smallest set: as many as hosts are needed, never more."""
        candidates = await pools.candidates(tx, pool.name)
        holdings = [one.holding for one in await pools.holdings(tx, pool.name)]
        victims = reclaim.choose(
            candidates, holdings, hosts, tx.now, self._settings.min_life_s, pool.gpus_per_host
        )
        by_uid = {one.uid: one for one in candidates}
        deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
        moves = [
            reclaim_move(tx.now, victim, by_uid[victim.uid], deadline, claim_id, why) for victim in victims
        ]
        moved = await nodes.move(tx, moves)
        # A node that went on by itself between the two reads is on its way out or broken: the next plan sees
        # which.
        await visits.hint(tx, Loop.FULFILLMENT, [pool.name] if len(moved) < len(victims) else [])
        return [node.uid for node in moved]

    # -- the pool's regular plan

    async def assign(self, tx: Tx, pool: PoolRow) -> int:
        """Give free hosts to promised nodes, the oldest claim first; answer how many.

        Hosts that were emptied to be worked on go to the maintenance that names them.
        """
        emptied = await nodes.move(
            tx,
            [
                Move(one.node_uid, Phase.PENDING, Phase.RUNNING, host_id=one.host_id)
                for one in await maintenance.emptied(tx, pool.name)
            ],
        )
        view = await pools.view(tx, pool)
        count = min(view.free_total, view.promised)
        waiting = await pools.waiting(tx, pool.name, count) if count else []
        free = Counter(view.free)
        moves: list[Move] = []
        for _, group in groupby(waiting, key=lambda one: one.claim_id):
            listed = list(group)
            held = await pools.blocks_of(tx, pool.name, listed[0].cluster_id) if listed[0].cluster_id else {}
            blocks = placement.choose_blocks(free, len(listed), held)
            taken = {move.host_id for move in moves}
            wanted = {block: n + view.free[block] - free[block] for block, n in blocks.items()}
            ids = [host for host in await pools.free_hosts(tx, pool.name, wanted) if host not in taken][
                : len(listed)
            ]
            free.subtract(blocks)
            moves += [
                Move(one.uid, Phase.PENDING, first_phase(one.compute_class), host_id=host)
                for one, host in zip(listed, ids, strict=False)
            ]
        assigned = len(emptied) + len(await nodes.move(tx, moves))
        await claims.settle(tx, pool.name)
        return assigned

    async def replan(self, tx: Tx, pool: PoolRow) -> list[str]:
        """Take further nodes when hosts that were promised will not come (broken, cordoned).

        Answer their uids.
        """
        view = await pools.view(tx, pool)
        missing = -view.unpromised
        if missing <= 0:
            return []
        oldest = await pools.waiting(tx, pool.name, 1)
        claim_id = oldest[0].claim_id if oldest else None
        return await self._take(tx, pool, missing, claim_id, "a promised host did not come back")

    async def replace_standard(self, tx: Tx, pool: PoolRow) -> int:
        """Promise hosts for standard nodes that failed or vanished, as many as there can be.

        Answer how many.
        """
        promised = 0
        for gap in await pools.standard_gaps(tx, pool.name):
            view = await pools.view(tx, pool)
            # Older promises that came to nothing have the first call on what can be taken.
            possible = max(0, view.unpromised + await pools.count_reclaimable(tx, pool.name))
            count = min(gap.missing_hosts, possible)
            if count:
                demand = Demand(
                    ClaimKind.STANDARD,
                    count,
                    "a standard node's replacement",
                    gap.project_id,
                    gap.cluster_id,
                    gap.node_group,
                )
                await self.promise(tx, pool, demand)
                promised += count
        return promised

    async def refill(self, tx: Tx, pool: PoolRow) -> tuple[int, datetime | None]:
        """Lend what is left to clusters below their targets.

        Answer how many hosts, and when to look again (None: settled).
        """
        view = await pools.view(tx, pool)
        held = await pools.holdings(tx, pool.name)
        # A cluster that backs off still holds what it holds: its project's share counts it.
        wishes = [
            replace(one.holding, wanted_gpus=0) if _backs_off(one, tx.now) else one.holding for one in held
        ]
        order = shares.fill_order(wishes, view.lendable, pool.gpus_per_host, self._settings.max_joining)
        given = Counter(order)
        await self._lend(tx, pool, given)
        unmet = [one for one in held if one.missing_hosts > given[one.holding.cluster_id]]
        again = self._look_again(tx.now, view, unmet)
        reasons = {one.holding.cluster_id: _fill_reason(one, given, view, pool, tx.now) for one in held}
        await clusters.set_fill(tx, reasons, again)
        return len(order), again

    async def _lend(self, tx: Tx, pool: PoolRow, given: Mapping[str, int]) -> None:
        groups = {row.id: row for row in await clusters.by_ids(tx, list(given))} if given else {}
        for cluster_id, count in given.items():
            cluster = groups[cluster_id]
            free = await pools.lendable_blocks(tx, pool.name)
            hosts = await self._pick_free(tx, pool, free, count, cluster_id, lendable_only=True)
            new = [
                self._new_node(
                    pool,
                    ComputeClass.PREEMPTIBLE,
                    cluster.node_group,
                    cluster_id,
                    cluster.project_id,
                    None,
                    host_id,
                )
                for host_id in hosts
            ]
            await nodes.place(tx, new)

    def _look_again(self, now: datetime, view: PoolView, unmet: Sequence[ClusterHolding]) -> datetime | None:
        if not unmet:
            return None
        moments = [now + timedelta(seconds=self._settings.fill_every_s)]
        moments += [one.backoff_until for one in unmet if one.backoff_until and one.backoff_until > now]
        if view.cooling_until:
            moments.append(view.cooling_until)
        return min(moments)

    # -- giving back

    async def lower_target(self, tx: Tx, pool: PoolRow, cluster_id: str, target_hosts: int) -> int:
        """Release preemptible nodes above the target; answer how many."""
        candidates = await pools.candidates(tx, pool.name, cluster_id=cluster_id)
        victims = reclaim.choose_released(candidates, len(candidates) - target_hosts, tx.now)
        return await self._release(tx, victims, candidates, "the preemptible target was lowered")

    async def lower_standard(self, tx: Tx, pool: PoolRow, cluster_id: str, standard_hosts: int) -> int:
        """Release standard nodes above the order.

        Promised ones first, then cordoned, then idle ones; answer how many.
        """
        waiting = [node for node in await nodes.of_cluster(tx, cluster_id) if _promised_standard(node)]
        candidates = await pools.standard_candidates(tx, pool.name, cluster_id)
        surplus = len(waiting) + len(candidates) - standard_hosts
        cancelled = waiting[::-1][: max(0, surplus)]
        await nodes.move(
            tx,
            [
                Move(node.uid, Phase.PENDING, Phase.REMOVED, end_reason=EndReason.CANCELLED)
                for node in cancelled
            ],
        )
        victims = reclaim.choose_released(candidates, surplus - len(cancelled), tx.now)
        released = await self._release(tx, victims, candidates, "the standard count was lowered")
        await claims.settle(tx, pool.name)
        return released + len(cancelled)

    async def _release(
        self, tx: Tx, victims: Sequence[Victim], candidates: Sequence[Candidate], why: str
    ) -> int:
        by_uid = {one.uid: one for one in candidates}
        deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
        moves = [_release_move(tx.now, victim, by_uid[victim.uid], deadline, why) for victim in victims]
        return len(await nodes.move(tx, moves))


def _promised_standard(node: nodes.NodeRow) -> bool:
    return node.phase is Phase.PENDING and node.compute_class is ComputeClass.STANDARD


def reclaim_move(
    now: datetime, victim: Victim, node: Candidate, deadline: datetime, claim_id: str | None, why: str
) -> Move:
    """How a preemptible node is taken back: with its notice, or at once while it does not run yet."""
    sentence = f"{why}: {victim.why}"
    if not may_have_pods(node.phase, busy=node.busy):
        return Move(
            victim.uid,
            node.phase,
            Phase.REMOVING,
            end_reason=EndReason.CANCELLED,
            why=sentence,
            taken_for=claim_id,
        )
    return Move(
        victim.uid,
        node.phase,
        Phase.DRAINING,
        event=events.preempted(why, now, deadline),
        end_reason=EndReason.PREEMPTED,
        drain_kind=DrainKind.RECLAIM,
        deadline=deadline,
        why=sentence,
        taken_for=claim_id,
    )


def _release_move(now: datetime, victim: Victim, node: Candidate, deadline: datetime, why: str) -> Move:
    sentence = f"{why}: {victim.why}"
    if not may_have_pods(node.phase, busy=node.busy):
        event = events.scaled_down(why, now, None)
        return Move(
            victim.uid,
            node.phase,
            Phase.REMOVING,
            event=event,
            end_reason=EndReason.SCALED_DOWN,
            why=sentence,
        )
    return Move(
        victim.uid,
        node.phase,
        Phase.DRAINING,
        event=events.scaled_down(why, now, deadline),
        end_reason=EndReason.SCALED_DOWN,
        drain_kind=DrainKind.RELEASE,
        deadline=deadline,
        why=sentence,
    )


def _out_of_stock(pool: PoolRow, view: PoolView, hosts: int, reclaimable: int) -> Conflict:
    free = max(0, view.free_total - view.promised)
    leaving = max(0, view.unpromised) - free
    reclaimable = max(0, reclaimable + min(0, view.unpromised))  # less what older promises still need
    size = pool.gpus_per_host
    most = max(0, view.unpromised) + reclaimable
    return Conflict(
        f"out of stock in {pool.region} {pool.gpu_type}: {hosts * size} GPUs asked for, {free * size} free, "
        f"{max(0, leaving) * size} coming free, {reclaimable * size} reclaimable from preemptible nodes. "
        f"Ask for at most {most * size} GPUs ({many(most, 'host')}), or try again later.",
        code="out_of_stock",
    )


def _backs_off(one: ClusterHolding, now: datetime) -> bool:
    return one.backoff_until is not None and one.backoff_until > now


def _fill_reason(
    one: ClusterHolding, given: Mapping[str, int], view: PoolView, pool: PoolRow, now: datetime
) -> str | None:
    """The sentence that answers "why is this target not met", or None when it is (nodes on their way in
    included).
    """
    missing = one.missing_hosts - given.get(one.holding.cluster_id, 0)
    if missing <= 0:
        return None
    wanted = f"{missing} of {one.holding.wanted_gpus // pool.gpus_per_host} nodes missing"
    if one.backoff_until and _backs_off(one, now):
        return f"{wanted}: nodes failed to join, filling pauses until {events.rfc3339(one.backoff_until)}"
    if view.lendable > sum(given.values()):
        return f"{wanted}: filling goes on as nodes join"
    if view.cooling:
        resting = "was just given back and rests" if view.cooling == 1 else "were just given back and rest"
        return f"{wanted}: {many(view.cooling, 'host')} in {pool.region} {pool.gpu_type} {resting}"
    held_back = (
        f", {min(view.headroom, view.free_total)} kept as headroom"
        if view.headroom and view.free_total
        else ""
    )
    return f"{wanted}: waiting for hosts in {pool.region} {pool.gpu_type}, none free to lend{held_back}"
