"""The order of supply, and what may be lent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.capacity import PoolView, Supply, supply
from ebbtide.core.invariants import smallest_set


def a_view(
    free: int = 0, leaving: int = 0, promised: int = 0, headroom: int = 0, cooling: int = 0
) -> PoolView:
    return PoolView("h100", 8, {"b1": free}, cooling, leaving, promised, headroom)


@pytest.mark.parametrize(
    ("view", "hosts", "reclaimable", "expected"),
    [
        (a_view(free=5), 2, 9, Supply(2, 2, 0, 0)),
        (a_view(free=2, leaving=3), 4, 9, Supply(4, 2, 2, 0)),
        (a_view(free=2, leaving=3), 7, 9, Supply(7, 2, 3, 2)),
        (a_view(free=2, leaving=3), 7, 1, Supply(7, 2, 3, 0, short=1)),
        (a_view(), 1, 0, Supply(1, 0, 0, 0, short=1)),
        (a_view(), 1, 5, Supply(1, 0, 0, 1)),
        (a_view(free=2, headroom=2), 2, 0, Supply(2, 2, 0, 0)),  # headroom is there for claims
        (a_view(free=2, cooling=2), 2, 0, Supply(2, 2, 0, 0)),  # cooling only holds back lending
        (a_view(free=1, leaving=4, promised=3), 3, 9, Supply(3, 0, 2, 1)),  # what is promised is not there
        (a_view(leaving=1, promised=3), 1, 3, Supply(1, 0, 0, 1)),  # two for older claims, one for this
        (a_view(leaving=1, promised=3), 2, 3, Supply(2, 0, 0, 0, short=1)),
        (a_view(leaving=1, promised=3), 1, 1, Supply(1, 0, 0, 0, short=1)),
    ],
)
def test_supply(view: PoolView, hosts: int, reclaimable: int, expected: Supply) -> None:
    assert supply(view, hosts, reclaimable) == expected


COUNT = st.integers(0, 30)


@given(free=COUNT, leaving=COUNT, promised=COUNT, hosts=st.integers(1, 40), reclaimable=COUNT)
def test_a_claim_is_met_whole_or_refused_whole(
    free: int, leaving: int, promised: int, hosts: int, reclaimable: int
) -> None:
    view = a_view(free, leaving, promised)
    plan = supply(view, hosts, reclaimable)
    assert min(plan.from_free, plan.from_leaving, plan.to_take, plan.short) >= 0
    if plan.short:
        assert plan.to_take == 0
        assert hosts + promised > free + leaving + reclaimable
    else:
        assert plan.from_free + plan.from_leaving + plan.to_take == hosts
        assert plan.from_free <= max(0, free - promised)
        assert plan.to_take <= reclaimable
        assert list(smallest_set(view, hosts, plan.to_take)) == []
    if plan.to_take:
        assert plan.from_free + plan.from_leaving == max(
            0, free + leaving - promised
        )  # all else was used first


@given(free=COUNT, leaving=COUNT, promised=COUNT, hosts=st.integers(1, 40), reclaimable=COUNT)
def test_a_kept_promise_stays_kept(
    free: int, leaving: int, promised: int, hosts: int, reclaimable: int
) -> None:
    """promised <= free + leaving holds after a claim if it held before; a taken node then leaves."""
    view = a_view(free, leaving, min(promised, free + leaving))
    plan = supply(view, hosts, reclaimable)
    if not plan.short:
        assert a_view(free, leaving + plan.to_take, view.promised + hosts).unpromised >= 0


@given(free=COUNT, leaving=COUNT, promised=COUNT, headroom=COUNT, cooling=COUNT)
def test_lending_breaks_no_promise_and_leaves_the_headroom(
    free: int, leaving: int, promised: int, headroom: int, cooling: int
) -> None:
    view = a_view(free, leaving, promised, headroom, cooling)
    left = free - view.lendable
    assert view.lendable >= 0
    assert view.lendable == 0 or left >= promised + headroom + cooling
