"""Billable time and its minute records."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.metering import (
    DAY_S,
    Interval,
    MinuteRecord,
    billable_end,
    epoch_s,
    gpu_seconds,
    instant_of,
    minute_records,
    minute_rows,
    split_at_midnight,
)
from ebbtide.core.nodes import ComputeClass
from tests.core.builders import NOW, after

MIDNIGHT = 20_000 * DAY_S


def an_interval(start_s: int, end_s: int | None = None, gpus: int = 8, uid: str = "n1") -> Interval:
    return Interval(1, uid, "c1", "p1", "h100", ComputeClass.PREEMPTIBLE, gpus, start_s, end_s)


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799),
    ],
)
def test_epoch_s_rounds_down(instant: datetime, expected: int) -> None:
    assert epoch_s(instant) == expected


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(TypeError):
        epoch_s(datetime(2026, 1, 1))  # noqa: DTZ001  # the fault under test


@given(st.integers(0, 4_000_000_000))
def test_seconds_and_instants_are_the_same_thing(seconds: int) -> None:
    assert epoch_s(instant_of(seconds)) == seconds
    assert epoch_s(instant_of(seconds) + timedelta(microseconds=999_999)) == seconds


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (5, 9, [(5, 9)]),
        (5, 5, []),
        (9, 5, []),
        (DAY_S - 1, DAY_S + 1, [(DAY_S - 1, DAY_S), (DAY_S, DAY_S + 1)]),
        (0, DAY_S, [(0, DAY_S)]),
        (1, 3 * DAY_S, [(1, DAY_S), (DAY_S, 2 * DAY_S), (2 * DAY_S, 3 * DAY_S)]),
    ],
)
def test_split_at_midnight(start_s: int, end_s: int, expected: list[tuple[int, int]]) -> None:
    assert split_at_midnight(start_s, end_s) == expected


@given(start_s=st.integers(0, 10 * DAY_S), length_s=st.integers(1, 5 * DAY_S))
def test_days_tile_the_time(start_s: int, length_s: int) -> None:
    parts = split_at_midnight(start_s, start_s + length_s)
    assert parts[0][0] == start_s
    assert parts[-1][1] == start_s + length_s
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert all(begin // DAY_S == (end - 1) // DAY_S for begin, end in parts)


@pytest.mark.parametrize(
    ("ended_s", "deadline_s", "healthy_s", "expected_s"),
    [
        (720, None, None, 720),  # twelve minutes are billed as twelve
        (120, 300, None, 120),  # empty early
        (340, 300, None, 300),  # never past the deadline
        (340, 300, 250, 250),  # never past the last healthy observation
        (340, None, 250, 250),
        (340, None, -10, 0),  # never before the start
        (-5, None, None, 0),
    ],
)
def test_billable_end(ended_s: int, deadline_s: int | None, healthy_s: int | None, expected_s: int) -> None:
    deadline = None if deadline_s is None else after(deadline_s)
    healthy = None if healthy_s is None else after(healthy_s)
    assert billable_end(NOW, after(ended_s), deadline, healthy) == after(expected_s)


@pytest.mark.parametrize(
    ("interval", "until_s", "expected"),
    [
        (an_interval(100, 110), 200, 80),
        (an_interval(100, 110), 105, 40),
        (an_interval(100), 105, 40),
        (an_interval(100), 90, 0),  # E4: never negative
        (an_interval(100, 110), 90, 0),
    ],
)
def test_gpu_seconds(interval: Interval, until_s: int, expected: int) -> None:
    assert gpu_seconds(interval, until_s) == expected


def test_e7_windows_are_utc_minutes_and_first_and_last_are_partial() -> None:
    records = list(minute_records(an_interval(MIDNIGHT + 17, MIDNIGHT + 150), MIDNIGHT + 500))
    assert [(record.start_s - MIDNIGHT, record.end_s - MIDNIGHT) for record in records] == [
        (17, 60),
        (60, 120),
        (120, 150),
    ]
    assert [record.gpu_seconds_delta for record in records] == [43 * 8, 480, 240]
    assert records[0] == MinuteRecord(
        f"n1:{MIDNIGHT + 17}",
        "n1",
        "c1",
        "p1",
        "h100",
        "preemptible",
        MIDNIGHT + 17,
        MIDNIGHT + 60,
        344,
    )


def test_a_stay_within_one_minute_is_one_record() -> None:
    [record] = minute_records(an_interval(MIDNIGHT + 17, MIDNIGHT + 43), MIDNIGHT + 60)
    assert (record.start_s, record.end_s) == (MIDNIGHT + 17, MIDNIGHT + 43)
    assert list(minute_records(an_interval(MIDNIGHT + 17, MIDNIGHT + 17), MIDNIGHT + 60)) == []


def test_a_minute_sealed_in_part_has_no_record_yet() -> None:
    """E3: else its id would later come again with another quantity."""
    assert list(minute_records(an_interval(MIDNIGHT + 17), MIDNIGHT + 59)) == []
    assert len(list(minute_records(an_interval(MIDNIGHT + 17), MIDNIGHT + 60))) == 1
    assert len(list(minute_records(an_interval(MIDNIGHT + 17, MIDNIGHT + 90), MIDNIGHT + 89))) == 1
    assert len(list(minute_records(an_interval(MIDNIGHT + 17, MIDNIGHT + 90), MIDNIGHT + 90))) == 2


def test_the_field_says_that_it_is_a_delta() -> None:
    assert "gpu_seconds_delta" in MinuteRecord._fields


START_S = st.integers(0, 2 * DAY_S)
LENGTH_S = st.integers(0, 3_000)


@given(start_s=START_S, length_s=LENGTH_S, gpus=st.sampled_from([1, 4, 8]))
def test_e6_the_sum_of_all_records_is_the_billed_time(start_s: int, length_s: int, gpus: int) -> None:
    interval = an_interval(start_s, start_s + length_s, gpus)
    records = list(minute_records(interval, start_s + length_s))
    assert sum(record.gpu_seconds_delta for record in records) == gpu_seconds(interval, start_s + length_s)
    at_s = start_s
    for record in records:
        assert record.start_s == at_s < record.end_s
        assert record.start_s // 60 == (record.end_s - 1) // 60
        at_s = record.end_s
    assert at_s == start_s + length_s


@given(start_s=START_S, length_s=LENGTH_S, seals=st.lists(st.integers(-100, 4_000), max_size=5))
def test_what_is_said_once_is_said_the_same_way_again(start_s: int, length_s: int, seals: list[int]) -> None:
    """E1, E4: meters restart and replay; one id always has one quantity and nothing is taken back."""
    interval = an_interval(start_s, start_s + length_s)
    earlier: list[MinuteRecord] = []
    for sealed_s in sorted(start_s + seal for seal in seals):
        records = list(minute_records(interval, sealed_s))
        assert records[: len(earlier)] == earlier
        assert all(record.end_s <= sealed_s and record.gpu_seconds_delta > 0 for record in records)
        earlier = records


@given(start_s=START_S, length_s=LENGTH_S, cut_s=st.integers(0, 3_000))
def test_a_cut_interval_gives_other_records_but_no_id_twice(start_s: int, length_s: int, cut_s: int) -> None:
    end_s, middle_s = start_s + length_s, start_s + min(cut_s, length_s)
    whole = list(minute_records(an_interval(start_s, end_s), end_s))
    parts = [
        *minute_records(an_interval(start_s, middle_s), end_s),
        *minute_records(an_interval(middle_s, end_s), end_s),
    ]
    assert max(Counter(record.id for record in parts).values(), default=1) == 1
    assert sum(r.gpu_seconds_delta for r in parts) == sum(r.gpu_seconds_delta for r in whole)


@given(
    stays=st.lists(st.tuples(START_S, LENGTH_S, st.integers(0, 4_000)), max_size=4),
    cuts=st.lists(st.integers(0, 2 * DAY_S + 4_000), max_size=3),
)
def test_adjoining_ranges_give_each_record_once(stays: list[tuple[int, int, int]], cuts: list[int]) -> None:
    sealed = [
        (an_interval(start_s, start_s + length_s, uid=f"n{i}"), start_s + seal_s)
        for i, (start_s, length_s, seal_s) in enumerate(stays)
    ]
    edges = [0, *sorted(cuts), 10 * DAY_S]
    in_parts = [row for one, other in pairwise(edges) for row in minute_rows(sealed, one, other)]
    singly = [record for interval, seal_s in sealed for record in minute_records(interval, seal_s)]
    assert Counter(in_parts) == Counter(tuple(record) for record in singly)
