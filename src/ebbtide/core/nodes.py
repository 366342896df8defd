"""A node's life: its phases, the moves between them, and how it may end.

A node is one stay of one cluster on one host, from the decision to place it until the host is free. It is
never reused. A host handed to a demand outside Ebbtide (an external claim, maintenance) is a stay without a
cluster; it has the class EXTERNAL or MAINTENANCE and skips the phases of a machine that we would boot.
"""

from __future__ import annotations

from enum import StrEnum

from ebbtide.errors import EbbtideError


class ComputeClass(StrEnum):
    STANDARD = "standard"
    PREEMPTIBLE = "preemptible"
    EXTERNAL = "external"
    MAINTENANCE = "maintenance"


class Phase(StrEnum):
    PENDING = "PENDING"  # promised: no host yet
    SCHEDULING = "SCHEDULING"  # has a host; the provider is asked for an instance
    BOOTING = "BOOTING"  # the instance exists and is starting
    BOOTSTRAPPING = "BOOTSTRAPPING"  # the machine is up; joining the cluster, GPUs not all allocatable yet
    RUNNING = "RUNNING"  # allocated and billed
    DRAINING = "DRAINING"  # noticed, deadline stored; still allocated and billed until the deadline
    REMOVING = "REMOVING"  # out of the cluster's count; stop, wipe, delete
    REMOVED = "REMOVED"  # the provider said "not found"; the host is free


class EndReason(StrEnum):
    PREEMPTED = "preempted"
    SCALED_DOWN = "scaled_down"
    CLUSTER_DELETED = "cluster_deleted"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    REMEDIATED = "remediated"  # replaced on its tenant's or the operator's wish


class DrainKind(StrEnum):
    RECLAIM = "reclaim"  # the operator takes a preemptible node back
    RELEASE = "release"  # the tenant gives a node back


# The only moves there are. PENDING > RUNNING is for hosts handed to somebody else: no machine of ours boots
# there.
MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.SCHEDULING, Phase.RUNNING, Phase.REMOVED}),
    Phase.SCHEDULING: frozenset({Phase.BOOTING, Phase.REMOVING}),
    Phase.BOOTING: frozenset({Phase.BOOTSTRAPPING, Phase.REMOVING}),
    Phase.BOOTSTRAPPING: frozenset({Phase.RUNNING, Phase.DRAINING, Phase.REMOVING}),
    Phase.RUNNING: frozenset({Phase.DRAINING, Phase.REMOVING}),
    Phase.DRAINING: frozenset({Phase.REMOVING}),
    Phase.REMOVING: frozenset({Phase.REMOVED}),
    Phase.REMOVED: frozenset(),
}

JOINING = frozenset({Phase.SCHEDULING, Phase.BOOTING, Phase.BOOTSTRAPPING})
ALLOCATED = frozenset({Phase.RUNNING, Phase.DRAINING})
STAYING = JOINING | {Phase.PENDING, Phase.RUNNING}  # counts towards what its cluster wants
LEAVING = frozenset({Phase.DRAINING, Phase.REMOVING})  # its host is on its way back
HELD = JOINING | ALLOCATED  # counts towards what its cluster has
OCCUPYING = JOINING | ALLOCATED | {Phase.REMOVING}  # its host has an occupant

NAME_PREFIX = {ComputeClass.STANDARD: "gpu-dp", ComputeClass.PREEMPTIBLE: "gpu-preemptible-dp"}


class IllegalMove(EbbtideError):
    """A move that the table does not have. Always a fault in our own code."""


def check_move(before: Phase, after: Phase) -> None:
    """Raise IllegalMove unless the table has this move."""
    if after not in MOVES[before]:
        raise IllegalMove(f"a node does not go from {before} to {after}")


def check_end(compute_class: ComputeClass, reason: EndReason) -> None:
    """Raise IllegalMove for the one ending that must never happen: a standard node that is preempted."""
    if reason is EndReason.PREEMPTED and compute_class is not ComputeClass.PREEMPTIBLE:
        raise IllegalMove(f"a {compute_class} node is never preempted")


def first_phase(compute_class: ComputeClass) -> Phase:
    """The phase of a node that just got its host: a machine to be booted, or a host handed over as it is."""
    booted = compute_class in (ComputeClass.STANDARD, ComputeClass.PREEMPTIBLE)
    return Phase.SCHEDULING if booted else Phase.RUNNING


def may_have_pods(phase: Phase, *, busy: bool) -> bool:
    """Whether a node that leaves must drain: it runs, or a workload pod slipped onto it while it joined."""
    return phase is Phase.RUNNING or (phase is Phase.BOOTSTRAPPING and busy)


def node_name(compute_class: ComputeClass, group: str, part: str) -> str:
    """The Kubernetes node name: the class, five characters of the cluster's group, five of its own."""
    return f"{NAME_PREFIX.get(compute_class, compute_class.value)}-{group}-{part}"
