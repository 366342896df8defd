"""Weighted max-min, against a slow and obvious reckoning with fractions."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.capacity import Holding
from ebbtide.core.shares import Shares, fill_order, take_order
from tests.core.builders import a_holding


@pytest.mark.parametrize(
    ("holdings", "hosts", "max_joining", "expected"),
    [
        # the lowest project first; in it the lowest cluster; ties by id
        ([a_holding("a", 8, 80), a_holding("b", 0, 80)], 3, 9, ["b", "a", "b"]),
        ([a_holding("b", 0, 80), a_holding("a", 0, 80)], 4, 9, ["a", "b", "a", "b"]),
        (
            [a_holding("a/1", 16, 80), a_holding("a/2", 0, 80), a_holding("b", 24, 80)],
            3,
            9,
            ["a/2", "a/2", "b"],
        ),
        # a project of weight 3 gets three for one
        ([a_holding("a", 0, 80, project_weight=3), a_holding("b", 0, 80)], 5, 9, ["a", "b", "a", "a", "a"]),
        ([a_holding("a/1", 0, 80, cluster_weight=2), a_holding("a/2", 0, 80)], 3, 9, ["a/1", "a/2", "a/1"]),
        # a target caps, and only whole hosts count
        ([a_holding("a", 0, 16), a_holding("b", 40, 80)], 4, 9, ["a", "a", "b", "b"]),
        ([a_holding("a", 0, 15)], 4, 9, ["a"]),
        ([a_holding("a", 16, 16), a_holding("b", 24, 16)], 4, 9, []),
        # K12: no more on their way in than the cap
        ([a_holding("a", 0, 80), a_holding("b", 40, 80)], 4, 2, ["a", "a", "b", "b"]),
        ([a_holding("a", 16, 80, joining=2)], 4, 2, []),
        # what drains still fills the target, and counts as given back in the share
        ([a_holding("a", 16, 16, leaving_gpus=8)], 1, 9, []),
        ([a_holding("a", 16, 80, leaving_gpus=16), a_holding("b", 8, 80)], 1, 9, ["a"]),
        ([], 3, 9, []),
        ([a_holding("a", 0, 80)], 0, 9, []),
    ],
)
def test_fill_order(holdings: list[Holding], hosts: int, max_joining: int, expected: list[str]) -> None:
    assert fill_order(holdings, hosts, 8, max_joining) == expected


@pytest.mark.parametrize("weights", [{"cluster_weight": 0}, {"project_weight": -1}])
def test_weights_are_positive(weights: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="weights are whole numbers from 1"):
        Shares([a_holding("a", **weights)])


@st.composite
def some_holdings(draw: st.DrawFn) -> list[Holding]:
    weights = {project: draw(st.integers(1, 5)) for project in "pqr"}
    return [
        Holding(
            cluster_id=f"c{number}",
            project_id=(project := draw(st.sampled_from("pqr"))),
            held_gpus=8 * (held := draw(st.integers(0, 6))),
            wanted_gpus=draw(st.integers(0, 80)),
            cluster_weight=draw(st.integers(1, 4)),
            project_weight=weights[project],
            joining=draw(st.integers(0, min(2, held))),
            leaving_gpus=8 * draw(st.integers(0, held)),
        )
        for number in range(draw(st.integers(0, 7)))
    ]


def _share(holdings: list[Holding], of: Holding) -> tuple[Fraction, str, Fraction, str]:
    project = sum(each.held_gpus - each.leaving_gpus for each in holdings if each.project_id == of.project_id)
    cluster = of.held_gpus - of.leaving_gpus
    return (
        Fraction(project, of.project_weight),
        of.project_id,
        Fraction(cluster, of.cluster_weight),
        of.cluster_id,
    )


def _slow_fill(holdings: list[Holding], hosts: int, max_joining: int) -> list[str]:
    holdings = list(holdings)
    order: list[str] = []
    while len(order) < hosts:
        open_ones = [
            each for each in holdings if each.held_gpus + 8 <= each.wanted_gpus and each.joining < max_joining
        ]
        if not open_ones:
            break
        lowest = min(open_ones, key=lambda each: _share(holdings, each))
        order.append(lowest.cluster_id)
        more = replace(lowest, held_gpus=lowest.held_gpus + 8, joining=lowest.joining + 1)
        holdings[holdings.index(lowest)] = more
    return order


@given(holdings=some_holdings(), hosts=st.integers(0, 30), max_joining=st.integers(1, 5))
def test_fill_order_is_the_obvious_one(holdings: list[Holding], hosts: int, max_joining: int) -> None:
    assert fill_order(holdings, hosts, 8, max_joining) == _slow_fill(holdings, hosts, max_joining)


@given(holdings=some_holdings(), data=st.data())
def test_the_order_of_rows_does_not_matter(holdings: list[Holding], data: st.DataObject) -> None:
    assert fill_order(data.draw(st.permutations(holdings)), 9, 8, 9) == fill_order(holdings, 9, 8, 9)


@given(holdings=some_holdings(), hosts=st.integers(0, 30))
def test_a_larger_wish_never_takes_from_a_cluster_that_would_be_served_anyway(
    holdings: list[Holding], hosts: int
) -> None:
    """Targets only cap: when all targets are out of reach, inflating one changes nothing."""
    wishing = [replace(each, wanted_gpus=10_000) for each in holdings]
    inflated = [
        replace(each, wanted_gpus=10_000 * (2 if each.cluster_id == "c0" else 1)) for each in holdings
    ]
    assert fill_order(wishing, hosts, 8, 999) == fill_order(inflated, hosts, 8, 999)


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    hosts=st.integers(0, 200),
)
def test_filling_from_nothing_ends_within_one_host_of_the_weighted_shares(
    weights: list[int], hosts: int
) -> None:
    holdings = [a_holding(f"p{i}", 0, 8 * 1_000, project_weight=weight) for i, weight in enumerate(weights)]
    got = Counter(fill_order(holdings, hosts, 8, 1_000))
    assert got.total() == hosts
    shares = [Fraction(got[f"p{i}"], weight) for i, weight in enumerate(weights)]
    for i, weight in enumerate(weights):
        if got[f"p{i}"]:  # before its last host it was not above anybody
            assert Fraction(got[f"p{i}"] - 1, weight) <= min(shares)


def test_a_large_pool_is_ordered_exactly_with_awkward_weights() -> None:
    holdings = [
        Holding(f"c{i:03}", f"p{i % 60:02}", 0, 10**6, 1 + i % 97, 1 + (i % 60) % 31) for i in range(500)
    ]
    got = Counter(fill_order(holdings, 12_500, 8, 10**6))
    assert got.total() == 12_500
    by_project: Counter[str] = Counter()
    for each in holdings:
        by_project[each.project_id] += got[each.cluster_id]
    weight = {each.project_id: each.project_weight for each in holdings}
    lowest = min(Fraction(hosts, weight[project]) for project, hosts in by_project.items())
    assert all(Fraction(hosts - 1, weight[project]) <= lowest for project, hosts in by_project.items())


def test_take_order_says_whose_share_was_the_largest() -> None:
    shares = Shares([a_holding("a", 32), a_holding("b", 16), a_holding("c", 64)])
    takes = list(take_order({"a": [(2, "a2"), (1, "a1")], "b": [(1, "b1")]}, shares, 8))
    assert [(take.uid, take.project_gpus, take.largest) for take in takes] == [
        ("a1", 32, False),
        ("a2", 24, False),
        ("b1", 16, False),
    ]
    assert [shares.project_gpus(name) for name in "abc"] == [16, 8, 64]
    again = take_order({"c": [(1, "c1")]}, shares, 8)
    assert next(again).largest


@given(holdings=some_holdings(), data=st.data())
def test_give_and_take_use_one_measure(holdings: list[Holding], data: st.DataObject) -> None:
    """K2: what would be given next is never what would be taken next, unless all are equal or alone."""
    able = [replace(each, wanted_gpus=10_000, joining=0) for each in holdings]
    nodes = {each.cluster_id: [(1, each.cluster_id)] for each in able}
    taken = next(take_order(nodes, Shares(able), 8), None)
    given_to = fill_order(able, 1, 8, 9)
    if taken is not None:
        shares = Shares(able)
        assert shares.of_project(taken.project_id) == shares.largest()
        [cluster_id] = given_to
        assert shares.of_project(shares.project_of(cluster_id)) <= shares.of_project(taken.project_id)
