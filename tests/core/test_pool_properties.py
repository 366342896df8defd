"""What a whole pool does, whatever happens to it and in whatever order."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.invariants import check, check_step
from ebbtide.core.nodes import ALLOCATED, ComputeClass, EndReason, Phase
from tests.core.pool_model import GPUS, MIN_LIFE_S, PREEMPTIBLE, Model

RUNNING = frozenset({Phase.RUNNING})

CLUSTERS = st.sampled_from("abc")
ACTS = st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 4)),
    st.tuples(st.just("end_claim")),
    st.tuples(st.just("set_target"), CLUSTERS, st.integers(0, 6)),
    st.tuples(st.just("refill")),
    st.tuples(st.just("tick"), st.sampled_from([5, 60, 300, 700])),
    st.tuples(st.just("break_host"), st.integers(0, 9)),
    st.tuples(st.just("repair")),
    st.tuples(st.just("drain_host"), st.integers(0, 9)),
    st.tuples(st.just("return_host"), st.integers(0, 9)),
)


def full(targets: dict[str, int], size: int, **more: Any) -> Model:
    """A pool whose targets were filled as far as it goes, all nodes past their minimum life."""
    model = Model(size, targets, **more)
    model.settle()
    model.tick(MIN_LIFE_S)
    return model


@given(
    size=st.integers(1, 8),
    headroom=st.integers(0, 2),
    max_joining=st.integers(1, 9),
    obeys_s=st.sampled_from([0, 120, 100_000]),
    acts=st.lists(ACTS, max_size=25),
)
def test_the_invariants_hold_after_every_act(
    size: int, headroom: int, max_joining: int, obeys_s: int, acts: list[tuple[str, object]]
) -> None:
    model = Model(size, {"a": 0, "b": 2, "c": 6}, headroom, max_joining, obeys_s)
    before = model.snapshot()
    for name, *values in acts:
        getattr(model, name)(*values)
        now = model.snapshot()
        assert check(now) == [], name
        assert check_step(before, now) == [], name
        before = now


@pytest.mark.parametrize("seed", range(40))
def test_the_invariants_hold_through_long_and_varied_lives(seed: int) -> None:
    draw = random.Random(seed)
    obeys_s = draw.choice([0, 120, 100_000])
    model = Model(
        draw.randint(1, 8), {"a": 0, "b": 2, "c": 6}, draw.randint(0, 2), draw.randint(1, 9), obeys_s
    )
    acts: list[Callable[[], object]] = [
        lambda: model.claim(draw.randint(1, 4)),
        model.end_claim,
        lambda: model.set_target(draw.choice("abc"), draw.randint(0, 6)),
        model.refill,
        lambda: model.tick(draw.choice([5, 60, 300, 700])),
        lambda: model.break_host(draw.randint(0, 9)),
        model.repair,
        lambda: model.drain_host(draw.randint(0, 9)),
        lambda: model.return_host(draw.randint(0, 9)),
    ]
    before = model.snapshot()
    for _ in range(60):
        draw.choice(acts)()
        now = model.snapshot()
        assert check(now) == []
        assert check_step(before, now) == []
        before = now
    assert model.reclaimed or model.refused


@given(acts=st.lists(ACTS, max_size=25))
def test_a_refill_reclaims_nothing_and_leaves_the_headroom(acts: list[tuple[str, object]]) -> None:
    model = Model(6, {"a": 0, "b": 2, "c": 6}, headroom=2)
    for name, *values in acts:
        getattr(model, name)(*values)
        reclaimed, free = len(model.reclaimed), len(model.free())
        lent = model.refill()
        assert len(model.reclaimed) == reclaimed
        assert lent == 0 or free - lent >= 2


@given(
    raises=st.lists(st.tuples(CLUSTERS, st.integers(3, 20)), min_size=3, max_size=12),
    pauses=st.lists(st.sampled_from([0, 5, 60, 300]), min_size=12, max_size=12),
    size=st.integers(1, 12),
)
def test_k1_targets_above_capacity_come_to_rest_without_one_reclaim(
    raises: list[tuple[str, int]], pauses: list[int], size: int
) -> None:
    model = Model(size, {"a": 0, "b": 0, "c": 0})
    for (cluster, target), pause_s in zip(raises, pauses, strict=False):
        model.set_target(cluster, max(target, model.targets[cluster]))
        model.refill()
        model.tick(pause_s)
    model.settle()
    assert model.reclaimed == []
    assert model.refill() == 0
    wanted = sum(model.targets.values())
    assert len(model.of(PREEMPTIBLE, RUNNING)) == min(size, wanted)
    before = dict(model.nodes)
    model.tick(120)
    assert model.refill() == 0
    assert model.nodes == before


def test_k3_eight_gpus_take_exactly_one_node() -> None:
    model = full({"a": 9}, 4)
    assert model.claim(1)
    assert len(model.reclaimed) == 1
    model.settle()
    assert len(model.reclaimed) == 1
    assert len(model.of(PREEMPTIBLE, RUNNING)) == 3
    assert len(model.of(ComputeClass.STANDARD, RUNNING)) == 1


def test_k3_a_free_host_spares_every_node() -> None:
    model = full({"a": 3}, 4)
    assert model.claim(1)
    assert model.reclaimed == []


def test_a_leaving_host_spares_every_node() -> None:
    model = full({"a": 4}, 4)
    model.set_target("a", 3)
    assert model.claim(1)
    assert model.reclaimed == []
    model.settle()
    assert len(model.of(ComputeClass.STANDARD, RUNNING)) == 1


def test_k4_demand_that_swings_takes_few_nodes_and_none_in_its_minimum_life() -> None:
    model = full({"a": 9, "b": 9}, 6)
    for number in range(20):  # every 30 s for 10 min
        if number % 2:
            model.end_claim()
        else:
            assert model.claim(1)
        model.refill()
        model.tick(30)
        model.refill()
    assert 1 <= len(model.reclaimed) <= 4
    for uid in model.reclaimed:
        node = model.nodes[uid]
        assert node.running_at
        assert node.notified_at
        assert (node.notified_at - node.running_at).total_seconds() >= MIN_LIFE_S


def test_k6_a_newcomer_gets_what_is_released_and_takes_nothing() -> None:
    model = full({"a": 9, "b": 0}, 6)
    model.set_target("b", 9)
    model.settle()
    assert model.reclaimed == []
    assert not model.of(PREEMPTIBLE, RUNNING, "b")
    model.set_target("a", 4)
    model.settle()
    assert len(model.of(PREEMPTIBLE, RUNNING, "b")) == 2
    assert model.reclaimed == []


def test_a_standard_host_is_drained_by_promising_another_first() -> None:
    model = full({"a": 9}, 3)
    assert model.claim(1)
    model.settle()
    (standard,) = model.of(ComputeClass.STANDARD, RUNNING)
    assert model.drain_host(int(str(standard.host_id)[1:]))
    assert len(model.reclaimed) == 2  # one for the order, one for the replacement
    model.settle()
    (moved,) = model.of(ComputeClass.STANDARD, RUNNING)
    assert moved.host_id != standard.host_id
    assert model.nodes[standard.uid].end_reason is EndReason.REMEDIATED
    (held,) = model.of(ComputeClass.MAINTENANCE, RUNNING)
    assert held.host_id == standard.host_id


def test_a_host_that_others_were_promised_is_not_drained_and_nobody_is_disturbed() -> None:
    model = full({"a": 1}, 2)
    assert model.claim(2)
    before = model.snapshot()
    assert not model.drain_host(0)
    assert not model.drain_host(1)
    assert model.snapshot() == before


def test_k8_a_lowered_target_releases_exactly_the_difference() -> None:
    model = full({"a": 4}, 4)
    model.set_target("a", 2)
    model.settle()
    assert [node.end_reason for node in model.nodes.values()].count(EndReason.SCALED_DOWN) == 2
    assert len(model.of(PREEMPTIBLE, RUNNING, "a")) == 2
    assert model.reclaimed == []


def test_k9_a_target_outlives_the_night() -> None:
    model = full({"a": 4}, 4)
    assert model.claim(4)
    model.settle()
    assert not model.of(PREEMPTIBLE, ALLOCATED)
    for _ in range(4):
        model.end_claim()
    model.settle()
    assert len(model.of(PREEMPTIBLE, RUNNING, "a")) == 4


def test_k12_no_cluster_has_more_joining_than_its_cap() -> None:
    model = Model(30, {"a": 30}, max_joining=4)
    for _ in range(40):
        model.refill()
        assert max(holding.joining for holding in model.holdings()) <= 4
        model.tick(10)
    assert len(model.of(PREEMPTIBLE, ALLOCATED)) >= 20


def test_a_refused_claim_changes_nothing() -> None:
    model = full({"a": 9}, 4)
    before = dict(model.nodes)
    assert not model.claim(5)
    assert model.nodes == before
    assert model.refused == 1


def test_a_broken_host_is_made_good_by_another_node() -> None:
    """The host on its way to a claim breaks: the pool plans again."""
    model = full({"a": 9}, 3, obeys_s=60)
    assert model.claim(1)
    [uid] = model.reclaimed
    host = str(model.nodes[uid].host_id)
    model.break_host(int(host[1:]))
    assert len(model.reclaimed) == 2
    model.settle()
    assert len(model.of(ComputeClass.STANDARD, RUNNING)) == 1
    assert len(model.of(PREEMPTIBLE, RUNNING)) == 1


@given(targets=st.lists(st.integers(0, 10), min_size=3, max_size=3), size=st.integers(1, 12))
def test_tenants_who_came_together_hold_what_max_min_gives(targets: list[int], size: int) -> None:
    model = Model(size, dict(zip("abc", targets, strict=True)))
    model.settle()
    held = {holding.cluster_id: holding.held_gpus // GPUS for holding in model.holdings()}
    for one in "abc":
        for other in "abc":
            if held[one] < model.targets[one]:  # whoever wants more is at most one host behind anybody
                assert held[other] <= held[one] + 1
