"""Fill times and node lives against values that were worked out by hand."""

from __future__ import annotations

import random
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.history import Figures, Span, Stay, Target, figures, fills, lives, quantile
from tests.core.builders import after


def spans(*seconds: int) -> list[Span]:
    """Negative: cut off after so many."""
    return [Span(abs(one), ended=one > 0) for one in seconds]


def test_without_cut_off_spans_a_quantile_is_that_of_the_sample() -> None:
    ten = spans(10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    assert (quantile(ten, 50), quantile(ten, 90), quantile(ten, 100)) == (50, 90, 100)
    assert quantile(spans(7), 50) == 7


def test_cut_off_spans_count_as_long_as_they_were_watched() -> None:
    """The textbook sample of 21 patients: 6, 6, 6, 7, 10, 13, 16, 22, 23, and twelve cut off. Its median is
    23, its survival 0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448."""
    seen = spans(
        *(6, 6, 6, 7, 10, 13, 16, 22, 23), *(-6, -9, -10, -11, -17, -19, -20, -25, -32, -32, -34, -35)
    )
    assert quantile(seen, 50) == 23
    assert quantile(seen, 14) == 6
    assert quantile(seen, 15) == 7
    assert quantile(seen, 46) == 22
    assert quantile(seen, 90) is None


def test_what_still_runs_is_not_counted_as_ended_now() -> None:
    """Three nodes were taken after 100 s; a hundred have run for an hour. Half live longer than is known."""
    seen = spans(*[100] * 3, *[-3_600] * 100)
    assert figures(seen, least_ended=3) == Figures(103, 3, True, None, None)


def test_below_the_minimum_there_is_no_figure() -> None:
    assert figures(spans(1, 2, -3), least_ended=3) == Figures(3, 2, enough=False)
    assert figures(spans(1, 2, 3), least_ended=3) == Figures(3, 3, True, 2, 3)
    assert figures([], least_ended=0) == Figures(0, 0, enough=False)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=40), st.integers(1, 100))
def test_a_quantile_of_ended_spans_is_the_smallest_with_so_many_below(
    seconds: list[int], percent: int
) -> None:
    found = quantile(spans(*seconds), percent)
    assert found is not None
    below = sum(one <= found for one in seconds)
    earlier = sum(one < found for one in seconds)
    assert below * 100 >= percent * len(seconds) > earlier * 100


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=30), st.integers(1, 100))
def test_a_cut_off_span_never_makes_a_quantile_shorter_than_if_it_had_ended(
    drawn: list[tuple[int, bool]], percent: int
) -> None:
    seen = [Span(*one) for one in drawn]
    found = quantile(seen, percent)
    ended = quantile([Span(one.seconds, ended=True) for one in seen], percent)
    assert ended is not None
    assert found is None or found >= ended


def test_a_life_ends_with_a_reclaim_only() -> None:
    stays = [
        Stay(after(0), after(60), reclaimed=True),
        Stay(after(0), after(70)),  # given back, lost, or gone with its cluster
        Stay(after(10), None),
    ]
    assert lives(stays, after(100)) == spans(60, -70, -90)


def run(start: float, end: float | None = None) -> Stay:
    return Stay(after(start), None if end is None else after(end))


def target(hosts: int, at: float | None) -> Target:
    return Target(hosts, None if at is None else after(at))


SINCE, LATER = after(-1_000), after(1_000)


def filled(targets: list[Target], stays: list[Stay], now: datetime = LATER) -> list[Span]:
    return sorted(fills(targets, stays, SINCE, now), key=lambda span: (span.seconds, span.ended))


def test_each_host_of_a_raised_target_is_a_wish() -> None:
    assert filled([target(2, 0)], [run(30), run(45)]) == spans(30, 45)


def test_what_waits_still_is_cut_off_now() -> None:
    assert filled([target(3, 0)], [run(30)], after(100)) == spans(30, -100, -100)


def test_each_raise_counts_from_its_own_time() -> None:
    assert filled([target(1, 0), target(2, 50)], [run(60), run(90)]) == spans(40, 60)


def test_a_lowered_target_cuts_off_what_is_beyond_it() -> None:
    assert filled([target(1, 0), target(2, 50), target(1, 70)], [run(80)]) == spans(-20, 80)


def test_a_lowered_target_that_gives_nodes_back_is_no_wish() -> None:
    stays = [run(10, 100), run(10, 100), run(10)]
    assert filled([target(3, 0), target(1, 100)], stays) == spans(10, 10, 10)


def test_a_replacement_is_not_a_raised_target_and_comes_first() -> None:
    stays = [run(10, 100), run(150), run(180)]
    assert filled([target(1, 0), target(2, 120)], stays) == spans(10, 60)


def test_what_was_wanted_and_ran_before_the_window_is_only_the_beginning() -> None:
    before = [run(-2_000), run(-2_000, -1_500)]
    assert filled([target(2, None), target(3, 0)], [*before, run(20), run(50)]) == spans(50)


def test_a_target_is_met_when_so_many_run_at_once() -> None:
    """Two wanted; one came, was taken, and one came in its place: two never ran."""
    assert filled([target(2, 0)], [run(30, 100), run(130)], after(200)) == spans(30, -200)


def test_a_deleted_cluster_wants_nothing_more() -> None:
    assert filled([target(2, 0), target(0, 40)], [run(30, 40)]) == spans(30, -40)


def test_any_order_of_the_rows_gives_the_same(rng: random.Random) -> None:
    targets = [target(2, 0), target(4, 50), target(1, 200), target(3, 220)]
    stays = [run(20, 210), run(60), run(70, 200), run(300), run(400)]
    expected = filled(targets, stays)
    for _ in range(5):
        rng.shuffle(stays)
        assert filled(targets, stays) == expected
