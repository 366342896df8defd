"""Remediations: what can be done about a sick machine, and the states that such an act goes through. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from ebbtide.errors import BadInput, Conflict, EbbtideError


class Mode(StrEnum):
    VM_ONLY = "VM_ONLY"  # a new machine anywhere
    HOST_AWARE = "HOST_AWARE"  # a new machine on another host; the old host is cordoned
    EVICT_WITHOUT_REPLACEMENT = "EVICT_WITHOUT_REPLACEMENT"  # the cluster becomes one node smaller
    REBOOT_VM = "REBOOT_VM"  # in place
    HOST_POWER_CYCLE = "HOST_POWER_CYCLE"  # the host itself, in place


class State(StrEnum):
    PENDING_APPROVAL = "PENDING_APPROVAL"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    AUTO_RESOLVED = "AUTO_RESOLVED"  # the node left by itself before it was this one's turn
    QUARANTINING = "QUARANTINING"  # the machine did not come back; its host is being set aside
    QUARANTINED = "QUARANTINED"  # it is


class Trigger(StrEnum):
    MANUAL = "MANUAL"
    AUTOMATED = "AUTOMATED"


MOVES: dict[State, frozenset[State]] = {
    State.PENDING_APPROVAL: frozenset({State.PENDING, State.CANCELLED, State.AUTO_RESOLVED}),
    State.PENDING: frozenset({State.RUNNING, State.CANCELLED, State.AUTO_RESOLVED, State.FAILED}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED, State.AUTO_RESOLVED, State.QUARANTINING}),
    State.QUARANTINING: frozenset({State.QUARANTINED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.AUTO_RESOLVED: frozenset(),
    State.QUARANTINED: frozenset(),
}
OPEN = frozenset(state for state, after in MOVES.items() if after)
REPLACING = frozenset({Mode.VM_ONLY, Mode.HOST_AWARE})
RESTARTING = frozenset({Mode.REBOOT_VM, Mode.HOST_POWER_CYCLE})
CORDONING = frozenset({Mode.HOST_AWARE})


class IllegalRemediationMove(EbbtideError):
    """A move that the table does not have. Always a fault in our own code."""


def check_move(before: State, after: State) -> None:
    """Raise IllegalRemediationMove unless the table has this move."""
    if after not in MOVES[before]:
        raise IllegalRemediationMove(f"a remediation does not go from {before} to {after}")


class Review(StrEnum):
    """What people may do to a remediation that exists."""

    APPROVE = "approve"
    REJECT = "reject"
    CANCEL = "cancel"


REVIEWS: dict[Review, tuple[frozenset[State], State]] = {
    Review.APPROVE: (frozenset({State.PENDING_APPROVAL}), State.PENDING),
    Review.REJECT: (frozenset({State.PENDING_APPROVAL}), State.CANCELLED),
    Review.CANCEL: (frozenset({State.PENDING_APPROVAL, State.PENDING}), State.CANCELLED),
}


def after_review(review: Review, state: State) -> State:
    """The state that a review leads to. Raises Conflict where it cannot be done any more, or not yet."""
    before, after = REVIEWS[review]
    if state not in before:
        words = " or ".join(sorted(before))
        raise Conflict(
            f"the remediation is {state}; only one that is {words} can be {_PAST[review]}", code="wrong_state"
        )
    return after


_PAST = {Review.APPROVE: "approved", Review.REJECT: "rejected", Review.CANCEL: "cancelled"}


def first_state(mode: Mode, *, by_operator: bool, approval_needed: Iterable[Mode]) -> State:
    """Where a remediation begins: a tenant's waits for approval where the operator wants to look first."""
    waits = not by_operator and mode in frozenset(approval_needed)
    return State.PENDING_APPROVAL if waits else State.PENDING


def check_override(mode: Mode) -> None:
    """Raise BadInput for the one mode that an approval cannot turn a remediation into."""
    if mode is Mode.HOST_POWER_CYCLE:
        raise BadInput(
            "an approval cannot change the mode to HOST_POWER_CYCLE; ask for a new one", param="mode"
        )


def read_modes(text: str) -> frozenset[Mode]:
    """Modes from a comma-separated list, with or without their prefix. Raises BadInput."""
    found = []
    for word in filter(None, (part.strip().removeprefix("REMEDIATION_MODE_") for part in text.split(","))):
        if word not in Mode.__members__:
            raise BadInput(
                f"there is no remediation mode {word!r}; there are: {', '.join(Mode)}", param="mode"
            )
        found.append(Mode(word))
    return frozenset(found)


def check_eviction(*, is_standard: bool, standard_hosts: int) -> None:
    """Raise Conflict when a cluster would be left without a standard node."""
    if is_standard and standard_hosts <= 1:
        raise Conflict(
            "this is the cluster's last standard node; every cluster keeps one. Replace it instead "
            "(REMEDIATION_MODE_VM_ONLY), or delete the cluster.",
            code="last_standard_node",
        )
