"""The whole ledger at one instant as plain facts, for those who judge it: invariants, simulations, audits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.core.hosts import Bucket, HostState, bucket, split_headroom
from ebbtide.core.nodes import ComputeClass, EndReason, Phase


@dataclass(frozen=True, slots=True)
class HostFact:
    id: str
    pool: str
    state: HostState
    occupant_uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node with every instant that the ledger has of it; None where that has not come.

    notified_at:      T+0 of its drain
    ends_at:          end of the late notice; None, or the deadline, where there was none
    removing_at:      when it left its cluster's count
    provider_gone_at: when the provider said "not found", wiped where that is due
    last_healthy_at:  last observation that proves it was there; None if that is not recorded
    pinned_host_id:   of maintenance: the host that it waits for or holds
    """

    uid: str
    no: int
    pool: str
    compute_class: ComputeClass
    phase: Phase
    cluster_id: str | None = None
    host_id: str | None = None
    end_reason: EndReason | None = None
    placed_at: datetime | None = None
    running_at: datetime | None = None
    notified_at: datetime | None = None
    deadline: datetime | None = None
    ends_at: datetime | None = None
    first_signal_at: datetime | None = None
    removing_at: datetime | None = None
    removed_at: datetime | None = None
    provider_gone_at: datetime | None = None
    last_healthy_at: datetime | None = None
    pinned_host_id: str | None = None


@dataclass(frozen=True, slots=True)
class IntervalFact:
    node_no: int
    start_s: int
    end_s: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterFact:
    """A live cluster's target, in nodes. Clusters being deleted have none and are left out.

    lowered: whether the target was lowered since the first of the nodes that still drain was noticed; None if
             that is not known: then only the step from one snapshot to the next shows if too many are held
    """

    id: str
    target_nodes: int
    lowered: bool | None = None


@dataclass(frozen=True, slots=True)
class PoolFact:
    """A pool's counts of hosts as plans see them; `total` is every host that is not retired and empty."""

    name: str
    free: int
    leaving: int
    promised: int
    headroom: int
    total: int

    @property
    def missing(self) -> int:
        """Hosts promised that are neither free nor leaving."""
        return max(0, self.promised - self.free - self.leaving)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at `at`. Removed nodes may be left out once they were seen removed in the snapshot before.

    tick_s: how often the loops look; what is due may be late by so much
    down:   spans in which no worker lived; what fell due in one is due at its end
    """

    at: datetime
    hosts: tuple[HostFact, ...] = ()
    nodes: tuple[NodeFact, ...] = ()
    clusters: tuple[ClusterFact, ...] = ()
    pools: tuple[PoolFact, ...] = ()
    intervals: tuple[IntervalFact, ...] = ()
    tick_s: int = 5
    down: tuple[tuple[datetime, datetime], ...] = ()


def buckets(snapshot: Snapshot) -> dict[str, dict[Bucket, int]]:
    """Per pool, how many hosts are in each bucket; headroom is taken out of the free ones."""
    nodes = {node.uid: node for node in snapshot.nodes}
    counts: dict[str, dict[Bucket, int]] = {pool.name: {} for pool in snapshot.pools}
    for host in snapshot.hosts:
        node = nodes.get(host.occupant_uid) if host.occupant_uid is not None else None
        found = bucket(host.state, node.compute_class if node else None, node.phase if node else None)
        if found is not None:
            pool = counts.setdefault(host.pool, {})
            pool[found] = pool.get(found, 0) + 1
    for fact in snapshot.pools:
        counts[fact.name] = split_headroom(counts[fact.name], fact.headroom)
    return counts
