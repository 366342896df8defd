"""Remediations: the table of their states, who reviews what, and what an eviction may not do."""

from __future__ import annotations

from itertools import product

import pytest

from ebbtide.core.remediations import (
    MOVES,
    OPEN,
    IllegalRemediationMove,
    Mode,
    Review,
    State,
    after_review,
    check_eviction,
    check_move,
    check_override,
    first_state,
    read_modes,
)
from ebbtide.errors import BadInput, Conflict


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_only_the_moves_of_the_table_are_made(before: State, after: State) -> None:
    if after in MOVES[before]:
        check_move(before, after)
    else:
        with pytest.raises(IllegalRemediationMove, match=f"from {before} to {after}"):
            check_move(before, after)


def test_what_is_open_can_end_and_what_ended_stays() -> None:
    assert {
        State.PENDING_APPROVAL,
        State.PENDING,
        State.RUNNING,
        State.QUARANTINING,
    } == OPEN
    for state in OPEN:
        reached = {state}
        for _ in State:
            reached |= {after for one in reached for after in MOVES[one]}
        assert reached - OPEN, state


@pytest.mark.parametrize(("review", "state"), list(product(Review, State)))
def test_a_review_in_a_wrong_state_is_a_conflict(review: Review, state: State) -> None:
    allowed = {
        (Review.APPROVE, State.PENDING_APPROVAL): State.PENDING,
        (Review.REJECT, State.PENDING_APPROVAL): State.CANCELLED,
        (Review.CANCEL, State.PENDING_APPROVAL): State.CANCELLED,
        (Review.CANCEL, State.PENDING): State.CANCELLED,
    }
    if (review, state) in allowed:
        assert after_review(review, state) is allowed[review, state]
        check_move(state, after_review(review, state))
    else:
        with pytest.raises(Conflict, match=f"is {state};"):
            after_review(review, state)


def test_only_tenants_wait_for_approval_and_only_where_the_operator_said_so() -> None:
    held = {Mode.HOST_AWARE}
    assert first_state(Mode.HOST_AWARE, by_operator=False, approval_needed=held) is State.PENDING_APPROVAL
    assert first_state(Mode.HOST_AWARE, by_operator=True, approval_needed=held) is State.PENDING
    assert first_state(Mode.VM_ONLY, by_operator=False, approval_needed=held) is State.PENDING


def test_an_approval_cannot_cut_a_hosts_power() -> None:
    for mode in set(Mode) - {Mode.HOST_POWER_CYCLE}:
        check_override(mode)
    with pytest.raises(BadInput, match="HOST_POWER_CYCLE"):
        check_override(Mode.HOST_POWER_CYCLE)


def test_modes_from_a_list() -> None:
    assert read_modes("") == frozenset()
    assert read_modes("REBOOT_VM, REMEDIATION_MODE_VM_ONLY,") == {Mode.REBOOT_VM, Mode.VM_ONLY}
    with pytest.raises(BadInput, match="'SHOUT'"):
        read_modes("SHOUT")


def test_the_last_standard_node_is_never_evicted() -> None:
    check_eviction(is_standard=True, standard_hosts=2)
    check_eviction(is_standard=False, standard_hosts=1)
    with pytest.raises(Conflict, match="last standard node"):
        check_eviction(is_standard=True, standard_hosts=1)
