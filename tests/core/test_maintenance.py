"""What has to happen to whoever has a host that is to be worked on."""

import pytest

from ebbtide.core.maintenance import Clearing, breaks_promises, clearing
from ebbtide.core.nodes import JOINING, OCCUPYING, ComputeClass, Phase


@pytest.mark.parametrize("phase", sorted(OCCUPYING))
def test_a_standard_node_is_replaced_and_never_taken(phase: Phase) -> None:
    assert clearing(ComputeClass.STANDARD, phase) in (Clearing.REPLACE, Clearing.LEAVING)


@pytest.mark.parametrize("phase", [*sorted(JOINING), Phase.RUNNING])
def test_who_stays_decides(phase: Phase) -> None:
    assert clearing(ComputeClass.PREEMPTIBLE, phase) is Clearing.TAKE
    assert clearing(ComputeClass.STANDARD, phase) is Clearing.REPLACE
    assert clearing(ComputeClass.EXTERNAL, phase) is Clearing.REFUSED
    assert clearing(ComputeClass.MAINTENANCE, phase) is Clearing.HELD


@pytest.mark.parametrize("compute_class", ComputeClass)
@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.REMOVING])
def test_who_leaves_anyway_is_not_disturbed(compute_class: ComputeClass, phase: Phase) -> None:
    assert clearing(compute_class, phase) is Clearing.LEAVING


def test_nobody_is_nobody() -> None:
    assert clearing(None, None) is Clearing.EMPTY


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ((1, 0), (0, 0), False),  # a host that was to spare
        ((0, 1), (-1, 1), False),  # another node can be taken for what was promised on it
        ((0, 0), (-1, 0), True),
        ((-1, 1), (-1, 0), True),  # the node that was to be taken for an older promise
        ((-2, 0), (-2, 0), False),  # what cannot be kept anyway is not broken by this
        ((-2, 1), (-2, 0), True),
    ],
)
def test_promises(before: tuple[int, int], after: tuple[int, int], broken: bool) -> None:
    assert breaks_promises(before, after) is broken
