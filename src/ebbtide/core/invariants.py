"""What must always be true, stated once. Each function gives one sentence per violation; none: all is well.

`check` looks at one instant, `check_step` at two that follow each other, `smallest_set` and `same_charge` at
one decision. All take time in proportion to what they are given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from ebbtide.core.capacity import PoolView
from ebbtide.core.hosts import HostState
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ALLOCATED, HELD, JOINING, MOVES, OCCUPYING, ComputeClass, EndReason, Phase
from ebbtide.core.pricing import Rate, charge_numerator, split_by_rate
from ebbtide.core.snapshot import IntervalFact, NodeFact, Snapshot, buckets

_OURS = frozenset(
    {ComputeClass.STANDARD, ComputeClass.PREEMPTIBLE}
)  # classes with a machine that we boot and bill
_TAKEABLE = JOINING | {Phase.RUNNING}


def check(snapshot: Snapshot) -> list[str]:
    """Every violation at one instant, in the order of the invariants."""
    return [
        f"invariant {number}: {sentence}"
        for number, rule in enumerate(_RULES, start=1)
        if rule is not None
        for sentence in rule(snapshot)
    ]


def one_occupant(snapshot: Snapshot) -> Iterator[str]:
    """1. A host has at most one occupant; promised <= free + leaving in every pool."""
    occupant: dict[str, str] = {}
    for node in snapshot.nodes:
        if node.phase not in OCCUPYING:
            continue
        if node.host_id is None:
            yield f"node {node.uid} is {node.phase} without a host"
        elif node.host_id in occupant:
            yield f"host {node.host_id} has two occupants, {occupant[node.host_id]} and {node.uid}"
        else:
            occupant[node.host_id] = node.uid
    free: Counter[str] = Counter()
    for host in snapshot.hosts:
        if host.occupant_uid != occupant.get(host.id):
            said, true = host.occupant_uid or "nobody", occupant.get(host.id, "nobody")
            yield f"host {host.id} is said to be held by {said} and is held by {true}"
        free[host.pool] += host.state is HostState.AVAILABLE and host.id not in occupant
    for pool in snapshot.pools:
        if pool.free != free[pool.name]:
            yield f"pool {pool.name} counts {pool.free} free hosts and has {free[pool.name]}"
    yield from _pinned(snapshot)
    yield from _kept_promises(snapshot)


def _pinned(snapshot: Snapshot) -> Iterator[str]:
    """A host that is to be worked on, or is, is nobody's supply, and nobody else's new host."""
    hosts = {host.id: host for host in snapshot.hosts}
    for node in snapshot.nodes:
        if node.compute_class is not ComputeClass.MAINTENANCE or node.phase not in (
            Phase.PENDING,
            Phase.RUNNING,
        ):
            continue
        host = hosts.get(node.pinned_host_id or "")
        if host is None:
            yield f"maintenance {node.uid} names no host"
        elif host.state is HostState.AVAILABLE:
            yield f"host {host.id} is in maintenance and counted as supply"
        elif node.host_id not in (None, host.id):
            yield f"maintenance {node.uid} names host {host.id} and holds {node.host_id}"


def _kept_promises(snapshot: Snapshot) -> Iterator[str]:
    """Promises may exceed what is coming only by hosts that broke, and only when nothing is left to take."""
    broken: Counter[str] = Counter()
    good: set[str] = set()
    for host in snapshot.hosts:
        if host.state is HostState.AVAILABLE:
            good.add(host.id)
        else:
            broken[host.pool] += 1
    takeable = Counter(
        node.pool
        for node in snapshot.nodes
        if node.compute_class is ComputeClass.PREEMPTIBLE and node.phase in _TAKEABLE and node.host_id in good
    )
    for pool in snapshot.pools:
        if pool.missing and (takeable[pool.name] or pool.missing > broken[pool.name]):
            yield (
                f"pool {pool.name} promised {pool.promised} hosts with {pool.free} free and"
                f" {pool.leaving} leaving ({takeable[pool.name]} takeable, {broken[pool.name]} are broken)"
            )


def never_preempted(snapshot: Snapshot) -> Iterator[str]:
    """2. Standard nodes never end as preempted."""
    for node in snapshot.nodes:
        if node.end_reason is EndReason.PREEMPTED and node.compute_class is not ComputeClass.PREEMPTIBLE:
            yield f"the {node.compute_class} node {node.uid} was preempted"


def kept_timetable(snapshot: Snapshot) -> Iterator[str]:
    """3. Notice <= first signal <= removal; removal by the deadline plus a tick (late notice excepted)."""
    for node in snapshot.nodes:
        if node.notified_at is not None:
            yield from _timetable_of(node, node.notified_at, snapshot)
        elif node.phase is Phase.DRAINING:
            yield f"node {node.uid} drains without a notice"
        elif node.end_reason is EndReason.PREEMPTED and node.running_at is not None:
            yield f"node {node.uid} was preempted while it ran, without a notice"


def _timetable_of(node: NodeFact, notified_at: datetime, snapshot: Snapshot) -> Iterator[str]:
    if node.deadline is None or node.deadline < notified_at:
        yield f"node {node.uid} was noticed at {notified_at} with the deadline {node.deadline}"
        return
    if node.first_signal_at is not None and node.first_signal_at < notified_at:
        yield f"node {node.uid} was signalled at {node.first_signal_at}, before its notice at {notified_at}"
    if node.removing_at is not None and node.removing_at < max(
        notified_at, node.first_signal_at or notified_at
    ):
        yield f"node {node.uid} was removed at {node.removing_at}, before its notice or first signal"
    left_at = snapshot.at if node.phase is Phase.DRAINING else node.removing_at
    limit = _due(max(node.deadline, node.ends_at or node.deadline), snapshot)
    if left_at is not None and left_at > limit:
        yield f"node {node.uid} should have left by {limit} and drained until {left_at}"


def _due(moment: datetime, snapshot: Snapshot) -> datetime:
    """By when a thing due at `moment` is done, given the spans without a worker and one tick."""
    for down_from, down_until in sorted(snapshot.down):
        if down_from <= moment + timedelta(seconds=snapshot.tick_s) and moment < down_until:
            moment = down_until
    return moment + timedelta(seconds=snapshot.tick_s)


def confirmed_gone(snapshot: Snapshot) -> Iterator[str]:
    """4. A host is lendable again only after its provider said "not found"."""
    for node in snapshot.nodes:
        if node.phase is not Phase.REMOVED or node.host_id is None or node.compute_class not in _OURS:
            continue
        if node.provider_gone_at is None:
            yield f"host {node.host_id} was freed without word that the machine of node {node.uid} is gone"
        elif node.removed_at is None or node.removed_at < node.provider_gone_at:
            yield f"host {node.host_id} was freed before the machine of node {node.uid} was gone"


def within_target(snapshot: Snapshot) -> Iterator[str]:
    """5. Preemptible nodes held <= target, except while draining after the target was lowered."""
    staying = _preemptible(snapshot, _TAKEABLE)
    held_by = _preemptible(snapshot, HELD)
    for cluster in snapshot.clusters:
        held = held_by[cluster.id] if cluster.lowered is False else staying[cluster.id]
        if held > cluster.target_nodes:
            yield f"cluster {cluster.id} holds {held} preemptible nodes, its target is {cluster.target_nodes}"


def _preemptible(snapshot: Snapshot, phases: frozenset[Phase]) -> Counter[str | None]:
    """Preemptible nodes in these phases per cluster."""
    return Counter(
        node.cluster_id
        for node in snapshot.nodes
        if node.compute_class is ComputeClass.PREEMPTIBLE and node.phase in phases
    )


def tiled(snapshot: Snapshot) -> Iterator[str]:
    """6. Intervals tile a node's billable time and never overlap."""
    by_node: dict[int, list[IntervalFact]] = defaultdict(list)
    for interval in snapshot.intervals:
        by_node[interval.node_no].append(interval)
    for intervals in by_node.values():
        intervals.sort(key=lambda interval: interval.start_s)
    for node_no, intervals in by_node.items():
        for one, next_one in pairwise(intervals):
            if one.end_s != next_one.start_s:
                yield f"node no. {node_no} is billed until {one.end_s}, then from {next_one.start_s}"
        if any(interval.end_s is not None and interval.end_s < interval.start_s for interval in intervals):
            yield f"node no. {node_no} has an interval that ends before it starts"
    for node in snapshot.nodes:
        if node.compute_class in _OURS:
            yield from _billed_rightly(node, by_node.get(node.no, []), snapshot)


def _billed_rightly(node: NodeFact, intervals: Sequence[IntervalFact], snapshot: Snapshot) -> Iterator[str]:
    past_deadline = node.deadline is not None and node.deadline <= snapshot.at
    if not intervals:
        if node.phase in ALLOCATED and not past_deadline:
            yield f"node {node.uid} is {node.phase} and not billed"
        return
    if node.running_at is not None and intervals[0].start_s != epoch_s(node.running_at):
        yield f"node {node.uid} runs since {epoch_s(node.running_at)}, billed from {intervals[0].start_s}"
    end_s = intervals[-1].end_s
    limits = [epoch_s(limit) for limit in (node.removing_at, node.deadline) if limit is not None]
    if end_s is None:
        if node.phase not in ALLOCATED:
            yield f"node {node.uid} is {node.phase} and still billed"
        return
    if node.phase is Phase.RUNNING:
        yield f"node {node.uid} is RUNNING and billed only until {end_s}"
    if node.end_reason is EndReason.LOST and node.last_healthy_at is not None:
        limits.append(epoch_s(node.last_healthy_at))
    if limits and end_s > max(min(limits), intervals[0].start_s):
        yield f"node {node.uid} is billed until {end_s}, past {min(limits)}"
    if limits and node.last_healthy_at is not None and end_s < min(*limits, epoch_s(node.last_healthy_at)):
        yield f"node {node.uid} is billed until {end_s} only and was there longer"


def same_charge(start_s: int, end_s: int, cut_s: int, gpus: int, rates: Sequence[Rate]) -> Iterator[str]:
    """7. Cutting time differently never changes the sum of charges. `rates`: as `rates_of` gives them."""
    whole = _charge(start_s, end_s, gpus, rates)
    parts = _charge(start_s, cut_s, gpus, rates) + _charge(cut_s, end_s, gpus, rates)
    if whole != parts:
        yield f"[{start_s}, {end_s}) costs {whole}, cut at {cut_s} it costs {parts}"


def _charge(start_s: int, end_s: int, gpus: int, rates: Sequence[Rate]) -> int:
    return sum(
        charge_numerator(gpus * (part_end_s - part_start_s), rate.microdollars_per_gpu_hour)
        for part_start_s, part_end_s, rate in split_by_rate(start_s, end_s, rates)
        if rate is not None
    )


def smallest_set(view: PoolView, hosts: int, taken: int) -> Iterator[str]:
    """8. A reclaim takes the smallest set of nodes that serves the claim: every node is one host.

    view: the pool before the claim of `hosts`; taken: how many nodes the plan takes
    """
    needed = max(0, hosts - max(0, view.unpromised))
    if taken != needed:
        yield f"a claim of {hosts} hosts on pool {view.pool} takes {taken} nodes where {needed} serve it"


def one_bucket(snapshot: Snapshot) -> Iterator[str]:
    """9. Every host of a pool is in exactly one bucket."""
    known = {node.uid for node in snapshot.nodes}
    for host in snapshot.hosts:
        if host.occupant_uid is not None and host.occupant_uid not in known:
            yield f"host {host.id} is held by {host.occupant_uid}, which is not known"
    counts = buckets(snapshot)
    for pool in snapshot.pools:
        counted = sum(counts[pool.name].values())
        if counted != pool.total:
            yield f"pool {pool.name} has {pool.total} hosts and {counted} in its buckets"
    for name in counts.keys() - {pool.name for pool in snapshot.pools}:
        yield f"hosts belong to pool {name}, which is not known"


_RULES = (
    one_occupant,
    never_preempted,
    kept_timetable,
    confirmed_gone,
    within_target,
    tiled,
    None,  # 7 is about one decision, see same_charge
    None,  # 8 is about one decision, see smallest_set
    one_bucket,
)


def check_step(before: Snapshot, after: Snapshot) -> list[str]:
    """Every violation between two snapshots: final things that changed, or nodes taken for nobody."""
    earlier = {node.uid: node for node in before.nodes}
    sentences: list[str] = []
    for node in after.nodes:
        if node.uid in earlier:
            sentences += _changed(earlier[node.uid], node)
    sentences += _lent_beyond_target(before, after)
    sentences += _taken_for_nobody(before, after)
    return sentences


def _changed(before: NodeFact, after: NodeFact) -> Iterator[str]:
    if after.phase not in _REACHABLE[before.phase]:
        yield f"node {after.uid} went from {before.phase} to {after.phase}"
    if before.compute_class is not after.compute_class:
        yield f"node {after.uid} was {before.compute_class} and became {after.compute_class}"
    if before.end_reason not in (None, after.end_reason):
        yield f"node {after.uid} ended as {before.end_reason} and then as {after.end_reason}"
    if before.host_id not in (None, after.host_id) and after.phase is not Phase.REMOVED:
        yield f"node {after.uid} moved from host {before.host_id} to {after.host_id}"
    if before.notified_at not in (None, after.notified_at):
        yield f"invariant 3: node {after.uid} was noticed at {before.notified_at} and at {after.notified_at}"
    if before.deadline is None:
        return
    if after.deadline is None or after.deadline > before.deadline:
        yield f"invariant 3: the deadline of node {after.uid} went from {before.deadline} to {after.deadline}"
    late_before = before.ends_at or before.deadline
    if late_before > before.deadline and after.ends_at not in (None, late_before):
        yield f"invariant 3: node {after.uid} got a second late notice, until {after.ends_at}"


def _lent_beyond_target(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """5. What is held with what drains may be above a lowered target, but only shrinks until it is not."""
    held_before, held_after = _preemptible(before, HELD), _preemptible(after, HELD)
    for cluster in after.clusters:
        held = held_after[cluster.id]
        if held > max(cluster.target_nodes, held_before[cluster.id]):
            yield f"invariant 5: cluster {cluster.id} rose to {held} nodes of {cluster.target_nodes}"


def _taken_for_nobody(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """5 and 8, as far as two snapshots show it: nodes reclaimed <= hosts asked for + hosts that broke."""
    earlier = {node.uid: node for node in before.nodes}
    reasons = Counter({pool.name: pool.missing for pool in before.pools})
    taken: Counter[str] = Counter()
    usable = {host.id for host in before.hosts if host.state is HostState.AVAILABLE}
    broke = [host for host in after.hosts if host.id in usable and host.state is not HostState.AVAILABLE]
    reasons.update(host.pool for host in broke)
    counted = {host.id for host in broke}  # a host that goes into maintenance is one reason, not two
    for node in after.nodes:
        old = earlier.get(node.uid)
        asks = node.compute_class is not ComputeClass.PREEMPTIBLE and node.pinned_host_id not in counted
        if old is None and asks:
            reasons[node.pool] += 1
        if node.end_reason is EndReason.PREEMPTED and (old is None or old.end_reason is None):
            taken[node.pool] += 1
    for pool, nodes in taken.items():
        if nodes > reasons[pool]:
            yield f"invariant 5: pool {pool} took {nodes} nodes for {reasons[pool]} hosts asked for or broken"


def _closure() -> dict[Phase, frozenset[Phase]]:
    """Per phase, every phase that a node may be in later, itself included."""
    reachable: dict[Phase, frozenset[Phase]] = {}
    for phase in reversed(Phase):  # the table only leads onwards in the order of declaration
        reachable[phase] = frozenset({phase}).union(*(reachable[next_one] for next_one in MOVES[phase]))
    return reachable


_REACHABLE = _closure()
