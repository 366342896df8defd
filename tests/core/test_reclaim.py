"""Whom a claim takes, whom a lowered target gives back, and how it is said."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.capacity import Candidate, Holding
from ebbtide.core.nodes import Phase
from ebbtide.core.reclaim import choose, choose_released
from tests.core.builders import NOW, a_candidate, a_holding, after

MIN_LIFE_S = 600


def taken(candidates: list[Candidate], holdings: list[Holding], hosts: int) -> list[str]:
    return [victim.uid for victim in choose(candidates, holdings, hosts, NOW, MIN_LIFE_S, 8)]


def test_joining_then_idle_then_busy() -> None:
    candidates = [
        a_candidate("busy", busy=True),
        a_candidate("idle"),
        a_candidate("booting", phase=Phase.BOOTING),
        a_candidate("scheduling", phase=Phase.SCHEDULING),
    ]
    assert taken(candidates, [a_holding("a", 32)], 4) == ["scheduling", "booting", "idle", "busy"]


def test_past_its_minimum_life_before_inside_it() -> None:
    candidates = [
        a_candidate("young", ran_s=599),
        a_candidate("old", ran_s=9_999),
        a_candidate("just", ran_s=600),
    ]
    assert taken(candidates, [a_holding("a", 24)], 3) == ["just", "old", "young"]


def test_a_young_idle_node_goes_before_an_old_busy_one() -> None:
    candidates = [a_candidate("old-busy", ran_s=9_999, busy=True), a_candidate("young-idle", ran_s=5)]
    assert taken(candidates, [a_holding("a", 16)], 1) == ["young-idle"]


def test_the_highest_share_is_counted_anew_after_each_node() -> None:
    candidates = [a_candidate(f"{name}{i}", name) for name in "ab" for i in range(4)]
    assert taken(candidates, [a_holding("a", 32), a_holding("b", 16)], 4) == ["a0", "a1", "a2", "b0"]


def test_in_the_highest_project_the_highest_cluster() -> None:
    candidates = [a_candidate("x", "a/1"), a_candidate("y", "a/2"), a_candidate("z", "b/1")]
    holdings = [a_holding("a/1", 8), a_holding("a/2", 16), a_holding("b/1", 20)]
    assert taken(candidates, holdings, 1) == ["y"]


def test_weights_count() -> None:
    candidates = [a_candidate("a1", "a"), a_candidate("b1", "b")]
    assert taken(candidates, [a_holding("a", 32, project_weight=4), a_holding("b", 16)], 1) == ["b1"]


def test_two_claims_in_a_row_do_not_both_take_from_the_one_that_held_more_before_the_first() -> None:
    candidates = [a_candidate("a2", "a"), a_candidate("b1", "b")]
    assert taken(candidates, [a_holding("a", 24, leaving_gpus=16), a_holding("b", 16)], 1) == ["b1"]


def test_the_youngest_then_the_lower_uid() -> None:
    candidates = [a_candidate("n3", ran_s=900), a_candidate("n1", ran_s=800), a_candidate("n2", ran_s=800)]
    assert taken(candidates, [a_holding("a", 24)], 3) == ["n1", "n2", "n3"]


def test_equal_shares_of_two_projects_are_decided_by_age_not_by_name() -> None:
    candidates = [a_candidate("old", "a", ran_s=7_200), a_candidate("young", "b", ran_s=700)]
    assert taken(candidates, [a_holding("a", 8), a_holding("b", 8)], 1) == ["young"]


def test_k3_one_host_claimed_is_one_node_taken() -> None:
    candidates = [a_candidate(f"n{i}") for i in range(10)]
    assert len(taken(candidates, [a_holding("a", 80)], 1)) == 1


def test_a_cluster_without_a_holding_counts_with_its_candidates() -> None:
    candidates = [a_candidate("a1", "a"), a_candidate("b1", "b"), a_candidate("b2", "b")]
    assert taken(candidates, [a_holding("a", 8)], 3) == ["b1", "a1", "b2"]
    assert taken(candidates, [], 1) == ["b1"]


@pytest.mark.parametrize("hosts", [0, -1])
def test_nothing_claimed_is_nothing_taken(hosts: int) -> None:
    assert taken([a_candidate("n")], [a_holding("a", 8)], hosts) == []
    assert choose_released([a_candidate("n")], hosts, NOW) == ()


def test_fewer_candidates_than_asked_are_all_taken() -> None:
    assert taken([a_candidate("n")], [a_holding("a", 8)], 5) == ["n"]


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.DRAINING, Phase.REMOVING, Phase.REMOVED])
def test_nodes_that_free_no_host_are_left_out(phase: Phase) -> None:
    gone = a_candidate("gone", phase=phase)
    assert taken([gone], [a_holding("a", 8)], 1) == []
    assert choose_released([gone], 1, NOW) == ()


@pytest.mark.parametrize(
    ("candidate", "holdings", "expected"),
    [
        (
            a_candidate("n", "acme", ran_s=720),
            [a_holding("acme", 64), a_holding("b", 8)],
            "idle; project acme held the most (64 GPUs); youngest past its minimum life (12 m)",
        ),
        (
            a_candidate("n", "acme", ran_s=45, busy=True),
            [a_holding("acme", 64)],
            "busy; project acme held the most (64 GPUs); youngest inside its minimum life (45 s)",
        ),
        (
            a_candidate("n", "acme", phase=Phase.BOOTSTRAPPING),
            [a_holding("acme", 8), a_holding("b", 64)],
            "not running yet; project acme held the most among those with such a node (8 GPUs)",
        ),
        (
            a_candidate("n", "acme", ran_s=2 * 86_400),
            [a_holding("acme", 16), a_holding("b", 24, project_weight=2)],
            "idle; project acme held the most for its weight (16 GPUs); youngest past its minimum life (2 d)",
        ),
    ],
)
def test_why(candidate: Candidate, holdings: list[Holding], expected: str) -> None:
    [victim] = choose([candidate], holdings, 1, NOW, MIN_LIFE_S, 8)
    assert victim.why == expected


def test_k8_a_lowered_target_gives_back_joining_then_cordoned_then_idle_then_busy() -> None:
    candidates = [
        a_candidate("busy", busy=True, ran_s=10),
        a_candidate("idle-old", ran_s=9_000),
        a_candidate("idle-young", ran_s=9),
        a_candidate("cordoned", cordoned=True, busy=True),
        a_candidate("joining", phase=Phase.BOOTING),
    ]
    order = [victim.uid for victim in choose_released(candidates, 5, NOW)]
    assert order == ["joining", "cordoned", "idle-young", "idle-old", "busy"]
    assert [victim.uid for victim in choose_released(candidates, 2, NOW)] == ["joining", "cordoned"]


def test_why_released() -> None:
    candidates = [a_candidate("a", phase=Phase.BOOTING), a_candidate("b", cordoned=True, ran_s=7_200)]
    assert [victim.why for victim in choose_released(candidates, 2, NOW)] == [
        "not running yet",
        "cordoned; the cluster's youngest such node (2 h)",
    ]


@st.composite
def a_pool(draw: st.DrawFn) -> tuple[list[Candidate], list[Holding]]:
    weights = {project: draw(st.integers(1, 3)) for project in "pq"}
    holdings, candidates = [], []
    for number in range(draw(st.integers(1, 5))):
        project = draw(st.sampled_from("pq"))
        nodes = draw(st.integers(0, 4))
        draining = draw(st.integers(0, 2))
        holdings.append(
            Holding(
                f"c{number}",
                project,
                8 * (nodes + draining),
                0,
                draw(st.integers(1, 3)),
                weights[project],
                leaving_gpus=8 * draining,
            )
        )
        for index in range(nodes):
            phase = draw(st.sampled_from([Phase.RUNNING, Phase.RUNNING, Phase.BOOTING, Phase.SCHEDULING]))
            ran_s = draw(st.sampled_from([0, 10, 599, 600, 700, 700.5, 5_000]))
            candidates.append(
                Candidate(
                    f"n{number}{index}",
                    f"c{number}",
                    project,
                    phase,
                    draw(st.booleans()),
                    after(-ran_s) if phase is Phase.RUNNING else None,
                )
            )
    return draw(st.permutations(candidates)), holdings


def _slow_choose(candidates: list[Candidate], holdings: list[Holding], hosts: int) -> list[str]:
    """The criteria of the docstring as one sort key, worked out anew for every single node."""
    left, held = list(candidates), {each.cluster_id: each for each in holdings}
    order: list[str] = []
    while left and len(order) < hosts:

        def key(node: Candidate) -> tuple[int, bool, Fraction, Fraction, float, str]:
            of = held[node.cluster_id]
            project = [each for each in held.values() if each.project_id == of.project_id]
            ran_s = 0.0 if node.running_at is None else (NOW - node.running_at).total_seconds()
            running = node.phase is Phase.RUNNING
            return (
                (1 + node.busy) if running else 0,
                running and ran_s < MIN_LIFE_S,
                -Fraction(sum(each.held_gpus - each.leaving_gpus for each in project), of.project_weight),
                -Fraction(of.held_gpus - of.leaving_gpus, of.cluster_weight),
                ran_s if running else list(Phase).index(node.phase),
                node.uid,
            )

        node = min(left, key=key)
        left.remove(node)
        order.append(node.uid)
        of = held[node.cluster_id]
        held[node.cluster_id] = replace(of, held_gpus=of.held_gpus - 8)
    return order


@given(pool=a_pool(), hosts=st.integers(0, 20))
def test_choose_is_the_obvious_one(pool: tuple[list[Candidate], list[Holding]], hosts: int) -> None:
    candidates, holdings = pool
    found = taken(candidates, holdings, hosts)
    assert found == _slow_choose(candidates, holdings, hosts)
    assert len(found) == len(set(found)) == min(hosts, len(candidates))


@given(pool=a_pool(), hosts=st.integers(0, 20))
def test_a_larger_claim_takes_the_same_nodes_first(
    pool: tuple[list[Candidate], list[Holding]], hosts: int
) -> None:
    assert taken(*pool, hosts) == taken(*pool, hosts + 3)[:hosts]


@given(pool=a_pool(), hosts=st.integers(1, 5))
def test_k4_none_inside_its_minimum_life_while_another_of_its_kind_is_past_it(
    pool: tuple[list[Candidate], list[Holding]], hosts: int
) -> None:
    candidates, holdings = pool
    chosen = set(taken(candidates, holdings, hosts))
    for busy in (False, True):
        kind = [node for node in candidates if node.running_at is not None and node.busy is busy]
        young = {node.uid for node in kind if node.running_at and node.running_at > after(-MIN_LIFE_S)}
        old = {node.uid for node in kind} - young
        assert not (young & chosen) or old <= chosen
