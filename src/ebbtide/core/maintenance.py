"""Taking one named host out of use: what has to happen to whoever has it. Pure.

A maintenance claim may displace, like any claim; but it names its host. From the moment it is asked for until
it is given back the host is nobody's supply: neither free nor coming free.
"""

from __future__ import annotations

from enum import StrEnum

from ebbtide.core.nodes import LEAVING, ComputeClass, Phase


class Clearing(StrEnum):
    """How a host gets empty."""

    EMPTY = "empty"  # nobody has it
    LEAVING = "leaving"  # its occupant is on its way out already
    TAKE = "take"  # a preemptible node: taken back with its notice
    REPLACE = "replace"  # a standard node: another host is promised first, then it is drained
    HELD = "held"  # it is in maintenance
    REFUSED = "refused"  # another system has it, and gives it back itself


_STAYING = {
    ComputeClass.PREEMPTIBLE: Clearing.TAKE,
    ComputeClass.STANDARD: Clearing.REPLACE,
    ComputeClass.EXTERNAL: Clearing.REFUSED,
    ComputeClass.MAINTENANCE: Clearing.HELD,
}


def clearing(occupant_class: ComputeClass | None, occupant_phase: Phase | None) -> Clearing:
    """What has to happen before a host with this occupant (None: nobody) is empty."""
    if occupant_class is None or occupant_phase is None:
        return Clearing.EMPTY
    if occupant_phase in LEAVING:
        return Clearing.LEAVING
    return _STAYING[occupant_class]


def breaks_promises(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether older promises, which could be kept, cannot be once a host is gone.

    before, after: (hosts that no promise waits for, below 0 when some are missing; nodes that could be taken)
    """
    return sum(after) < min(0, sum(before))
