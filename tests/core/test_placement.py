"""Which fabric blocks give the hosts."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.placement import choose_blocks


@pytest.mark.parametrize(
    ("free", "count", "held", "expected"),
    [
        # 1: near what the cluster has, if that is enough
        ({"a": 4, "b": 9, "c": 6}, 3, {"b": 1}, {"b": 3}),
        ({"a": 2, "b": 2, "c": 4}, 4, {"a": 1, "b": 1}, {"a": 2, "b": 2}),
        ({"a": 2, "b": 3}, 3, {"a": 5}, {"b": 3}),  # not enough near: one whole block instead
        # 2: the smallest single block that fits
        ({"a": 4, "b": 9, "c": 6}, 5, {}, {"c": 5}),
        ({"a": 4, "b": 9, "c": 6}, 6, {}, {"c": 6}),
        # 3: else as few as possible, the rest best fitted
        ({"a": 4, "b": 9, "c": 6}, 11, {}, {"b": 9, "a": 2}),
        ({"a": 4, "b": 9, "c": 6}, 14, {}, {"b": 9, "c": 5}),
        # 4: ties by what the cluster has there, then by name
        ({"b": 4, "a": 4}, 4, {}, {"a": 4}),
        ({"a": 4, "b": 4}, 4, {"a": 1, "b": 2}, {"b": 4}),
        ({"a": 2, "b": 2, "c": 1}, 5, {"b": 1}, {"b": 2, "a": 2, "c": 1}),
        # fewer than wanted: all of them
        ({"a": 1, "b": 2}, 9, {}, {"b": 2, "a": 1}),
        ({"a": 0}, 1, {"a": 7}, {}),
        ({}, 1, {}, {}),
        ({"a": 3}, 0, {}, {}),
    ],
)
def test_choose_blocks(
    free: dict[str, int], count: int, held: dict[str, int], expected: dict[str, int]
) -> None:
    chosen = choose_blocks(free, count, held)
    assert chosen == expected
    assert list(chosen) == list(expected)


BLOCKS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 8), max_size=6)


@given(free=BLOCKS, count=st.integers(0, 30), held=BLOCKS)
def test_takes_what_is_asked_from_what_there_is(
    free: dict[str, int], count: int, held: dict[str, int]
) -> None:
    chosen = choose_blocks(free, count, held)
    assert sum(chosen.values()) == min(count, sum(free.values()))
    assert all(0 < hosts <= free[block] for block, hosts in chosen.items())


@given(free=BLOCKS, count=st.integers(1, 30))
def test_without_a_neighbour_no_choice_of_blocks_is_smaller(free: dict[str, int], count: int) -> None:
    chosen = choose_blocks(free, count, {})
    for fewer in range(len(chosen)):
        for blocks in combinations(free, fewer):
            assert sum(free[block] for block in blocks) < min(count, sum(free.values()))


@given(free=BLOCKS, count=st.integers(1, 30), held=BLOCKS)
def test_stays_near_when_that_suffices(free: dict[str, int], count: int, held: dict[str, int]) -> None:
    near = {block for block in free if held.get(block, 0)}
    if sum(free[block] for block in near) >= count:
        assert set(choose_blocks(free, count, held)) <= near
