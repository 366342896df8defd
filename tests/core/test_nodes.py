"""A node's moves and endings."""

import pytest

from ebbtide.core.nodes import (
    ALLOCATED,
    HELD,
    JOINING,
    LEAVING,
    MOVES,
    OCCUPYING,
    STAYING,
    ComputeClass,
    EndReason,
    IllegalMove,
    Phase,
    check_end,
    check_move,
    node_name,
)

ORDER = list(Phase)


def _later(phase: Phase) -> set[Phase]:
    found: set[Phase] = set()
    waiting = [phase]
    while waiting:
        for next_one in MOVES[waiting.pop()] - found:
            found.add(next_one)
            waiting.append(next_one)
    return found


def test_every_phase_has_a_row_in_the_table() -> None:
    assert set(MOVES) == set(Phase)


def test_moves_only_lead_onwards() -> None:
    for before, afters in MOVES.items():
        assert all(ORDER.index(before) < ORDER.index(after) for after in afters), before


def test_every_phase_is_reached_from_pending_and_leads_to_removed() -> None:
    assert _later(Phase.PENDING) == set(Phase) - {Phase.PENDING}
    assert all(Phase.REMOVED in _later(phase) for phase in set(Phase) - {Phase.REMOVED})


def test_a_host_is_given_back_only_by_removing() -> None:
    """D8: nothing goes from an occupying phase to REMOVED but REMOVING itself."""
    assert {before for before in OCCUPYING if Phase.REMOVED in MOVES[before]} == {Phase.REMOVING}


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_check_move_follows_the_table(before: Phase, after: Phase) -> None:
    if after in MOVES[before]:
        check_move(before, after)
    else:
        with pytest.raises(IllegalMove, match=f"from {before} to {after}"):
            check_move(before, after)


def test_a_drain_is_final() -> None:
    assert MOVES[Phase.DRAINING] == {Phase.REMOVING}


def test_the_groups_of_phases_fit_together() -> None:
    assert JOINING | ALLOCATED == HELD
    assert HELD | {Phase.REMOVING} == OCCUPYING
    assert set() == STAYING & LEAVING
    assert set(Phase) - OCCUPYING == {Phase.PENDING, Phase.REMOVED}


@pytest.mark.parametrize("compute_class", sorted(set(ComputeClass) - {ComputeClass.PREEMPTIBLE}))
def test_only_preemptible_nodes_are_preempted(compute_class: ComputeClass) -> None:
    check_end(ComputeClass.PREEMPTIBLE, EndReason.PREEMPTED)
    check_end(compute_class, EndReason.LOST)
    with pytest.raises(IllegalMove, match="never preempted"):
        check_end(compute_class, EndReason.PREEMPTED)


def test_a_name_tells_the_class() -> None:
    assert node_name(ComputeClass.STANDARD, "bcdfg", "x4z2k") == "gpu-dp-bcdfg-x4z2k"
    assert node_name(ComputeClass.PREEMPTIBLE, "bcdfg", "x4z2k") == "gpu-preemptible-dp-bcdfg-x4z2k"
