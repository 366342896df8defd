"""Cluster phases, and how a phase and the nodes together become the status that a client reads."""

from __future__ import annotations

from enum import StrEnum

from ebbtide.core.nodes import IllegalMove


class ClusterPhase(StrEnum):
    WAITING_FOR_CONTROL_PLANE_NODES = "WAITING_FOR_CONTROL_PLANE_NODES"
    WAITING_FOR_SHARED_VOLUME = "WAITING_FOR_SHARED_VOLUME"
    WAITING_FOR_DATA_PLANE_NODES = "WAITING_FOR_DATA_PLANE_NODES"
    READY = "READY"
    DEGRADED = "DEGRADED"  # fewer standard nodes run than were ordered, after it was ready once
    DELETING = "DELETING"
    DELETED = "DELETED"  # a tombstone; never on the wire


_LIVE = frozenset(
    {
        ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES,
        ClusterPhase.WAITING_FOR_SHARED_VOLUME,
        ClusterPhase.WAITING_FOR_DATA_PLANE_NODES,
        ClusterPhase.READY,
        ClusterPhase.DEGRADED,
    }
)

MOVES: dict[ClusterPhase, frozenset[ClusterPhase]] = {
    **{phase: (_LIVE - {phase}) | {ClusterPhase.DELETING} for phase in _LIVE},
    ClusterPhase.DELETING: frozenset({ClusterPhase.DELETED}),
    ClusterPhase.DELETED: frozenset(),
}


def check_move(before: ClusterPhase, after: ClusterPhase) -> None:
    """Raise IllegalMove unless the table has this move."""
    if after not in MOVES[before]:
        raise IllegalMove(f"a cluster does not go from {before} to {after}")


def phase_of(
    *,
    control_plane_ready: bool,
    standard_wanted: int,
    standard_running: int,
    lost_standard: bool,
    volumes_ready: bool = True,
) -> ClusterPhase:
    """The phase that a live cluster should be in. Preemptible nodes have no say: none of 64 there is READY.

    lost_standard: whether a standard node failed or vanished and is not replaced yet. That is DEGRADED;
                   missing nodes of a fresh order are WAITING_FOR_DATA_PLANE_NODES.
    volumes_ready: whether its volumes are there; of no account any more once it was ready.
    """
    if not control_plane_ready:
        return ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES
    if not volumes_ready:
        return ClusterPhase.WAITING_FOR_SHARED_VOLUME
    if standard_running >= standard_wanted:
        return ClusterPhase.READY
    return ClusterPhase.DEGRADED if lost_standard else ClusterPhase.WAITING_FOR_DATA_PLANE_NODES
