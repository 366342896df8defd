"""Hosts: the physical machines, and the one bucket that each of their seconds falls into."""

from __future__ import annotations

from enum import StrEnum

from ebbtide.core.nodes import ComputeClass, Phase


class HostState(StrEnum):
    """What the operator (or repeated failure) says about a host; who occupies it is another matter."""

    AVAILABLE = "available"
    CORDONED = "cordoned"  # takes no new occupant; the present one stays
    QUARANTINED = "quarantined"  # boots failed repeatedly, or a stop could not be confirmed
    RETIRED = "retired"  # gone from the inventory


class Bucket(StrEnum):
    """Every host-second of a pool is in exactly one of these (invariant 9)."""

    STANDARD = "standard"
    PREEMPTIBLE = "preemptible"
    EXTERNAL = "external"
    DRAINING = "draining"
    TURNING_OVER = "turning_over"  # boot before, stop and wipe after
    HEADROOM = "headroom"
    FREE = "free"
    CORDONED = "cordoned"
    BROKEN = "broken"


_RUNNING_BUCKET = {
    ComputeClass.STANDARD: Bucket.STANDARD,
    ComputeClass.PREEMPTIBLE: Bucket.PREEMPTIBLE,
    ComputeClass.EXTERNAL: Bucket.EXTERNAL,
    ComputeClass.MAINTENANCE: Bucket.CORDONED,
}


def bucket(
    state: HostState, occupant_class: ComputeClass | None, occupant_phase: Phase | None
) -> Bucket | None:
    """The bucket of one host, or None for a retired, unoccupied one (it is not in the pool any more).

    Unoccupied available hosts are FREE here; how many of those are held back as headroom is a property of the
    pool, see `split_headroom`.
    """
    if occupant_phase is None or occupant_class is None:
        return _EMPTY_BUCKET[state]
    if occupant_phase is Phase.RUNNING:
        return _RUNNING_BUCKET[occupant_class]
    if occupant_phase is Phase.DRAINING:
        return Bucket.DRAINING
    return Bucket.TURNING_OVER


_EMPTY_BUCKET: dict[HostState, Bucket | None] = {
    HostState.AVAILABLE: Bucket.FREE,
    HostState.CORDONED: Bucket.CORDONED,
    HostState.QUARANTINED: Bucket.BROKEN,
    HostState.RETIRED: None,
}


def split_headroom(counts: dict[Bucket, int], headroom_hosts: int) -> dict[Bucket, int]:
    """Move up to `headroom_hosts` of the free hosts into the HEADROOM bucket. The sum stays."""
    kept = min(headroom_hosts, counts.get(Bucket.FREE, 0))
    return {**counts, Bucket.FREE: counts.get(Bucket.FREE, 0) - kept, Bucket.HEADROOM: kept}
