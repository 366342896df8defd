"""Prices and charges in whole units."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.invariants import same_charge
from ebbtide.core.metering import Interval
from ebbtide.core.nodes import ComputeClass
from ebbtide.core.pricing import (
    InvoiceLine,
    Rate,
    charge_numerator,
    half_price,
    invoice_lines,
    rate_at,
    rates_of,
    round_line,
    split_by_rate,
)

STANDARD = ComputeClass.STANDARD
PREEMPTIBLE = ComputeClass.PREEMPTIBLE


def a_rate(from_s: int = 0, price: int = 3_000_000, compute_class: ComputeClass = PREEMPTIBLE) -> Rate:
    return Rate("h100", compute_class, from_s, price)


def a_stay(start_s: int, end_s: int | None, cluster: str = "c", gpus: int = 8) -> Interval:
    return Interval(1, "n", cluster, "p", "h100", PREEMPTIBLE, gpus, start_s, end_s)


def test_the_rate_is_the_one_in_force_at_the_time_of_use() -> None:
    rates = [a_rate(200, 5), a_rate(100, 3)]
    assert rate_at(rates, "h100", PREEMPTIBLE, 100) == a_rate(100, 3)
    assert rate_at(rates, "h100", PREEMPTIBLE, 199) == a_rate(100, 3)
    assert rate_at(rates, "h100", PREEMPTIBLE, 200) == a_rate(200, 5)


def test_e9_without_a_rate_there_is_no_price_and_no_fallback() -> None:
    rates = [a_rate(100, 3), a_rate(0, 9, STANDARD)]
    assert rate_at(rates, "h100", PREEMPTIBLE, 99) is None
    assert rate_at(rates, "h200", PREEMPTIBLE, 500) is None
    assert rate_at([], "h100", PREEMPTIBLE, 500) is None


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (0, 50, [(0, 50, None)]),
        (100, 150, [(100, 150, 3)]),
        (50, 250, [(50, 100, None), (100, 200, 3), (200, 250, 5)]),
        (250, 260, [(250, 260, 5)]),
        (150, 150, []),
        (260, 250, []),
    ],
)
def test_split_by_rate(start_s: int, end_s: int, expected: list[tuple[int, int, int | None]]) -> None:
    parts = split_by_rate(start_s, end_s, [a_rate(100, 3), a_rate(200, 5)])
    assert [(a, b, rate and rate.microdollars_per_gpu_hour) for a, b, rate in parts] == expected


def test_of_two_rates_from_one_second_the_later_one_given_counts() -> None:
    rates = rates_of([a_rate(100, 3), a_rate(100, 4)], "h100", PREEMPTIBLE)
    assert [rate and rate.microdollars_per_gpu_hour for _, _, rate in split_by_rate(100, 200, rates)] == [4]
    assert rate_at(rates, "h100", PREEMPTIBLE, 150) == a_rate(100, 4)


@pytest.mark.parametrize(
    ("numerator", "expected"),
    [
        (0, 0),
        (3_600, 1),
        (1_799, 0),
        (1_800, 0),
        (1_801, 1),
        (3_600 + 1_800, 2),
        (-1_800, 0),
        (-3_600 - 1_800, -2),
        (-1_801, -1),
    ],
)
def test_halves_go_to_the_even_neighbour(numerator: int, expected: int) -> None:
    assert round_line(numerator) == expected


@given(st.integers(-(10**18), 10**18))
def test_a_credit_cancels_what_it_takes_back(numerator: int) -> None:
    assert round_line(-numerator) == -round_line(numerator)
    assert abs(Fraction(numerator, 3_600) - round_line(numerator)) <= Fraction(1, 2)
    assert round_line(numerator) == round(Fraction(numerator, 3_600))


def test_half_price_is_half_the_price() -> None:
    standard = a_rate(100, 2_990_000, STANDARD)
    assert half_price(standard) == a_rate(100, 1_495_000)
    assert half_price(a_rate(price=3)).microdollars_per_gpu_hour == 1  # the fraction is dropped
    assert half_price(standard, 0).microdollars_per_gpu_hour == 2_990_000
    assert half_price(standard, 100).microdollars_per_gpu_hour == 0


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_discount_is_a_percentage(percent: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        half_price(a_rate(), percent)


def test_twelve_minutes_of_a_host_at_half_price() -> None:
    rates = [half_price(a_rate(0, 3_000_000, STANDARD))]
    [line] = invoice_lines([a_stay(1_000, 1_720)], rates, 0, 10_000)
    assert line.gpu_seconds == 720 * 8
    assert line.microdollars == 2_400_000  # 8 GPUs x 0.2 h x 1.50 $


def test_lines_are_one_per_cluster_and_price_and_unpriced_time_stands_by_itself() -> None:
    rates = [a_rate(100, 3_600), a_rate(200, 7_200), a_rate(300, 3_600)]
    stays = [a_stay(50, 400, "d", 1), a_stay(50, None, "c", 2), a_stay(120, 130, "c", 1)]
    lines = invoice_lines(stays, rates, 60, 250)
    assert lines == (
        InvoiceLine("p", "c", "h100", PREEMPTIBLE, 2 * 100 + 10, 3_600),
        InvoiceLine("p", "c", "h100", PREEMPTIBLE, 2 * 50, 7_200),
        InvoiceLine("p", "c", "h100", PREEMPTIBLE, 2 * 40, None),
        InvoiceLine("p", "d", "h100", PREEMPTIBLE, 100, 3_600),
        InvoiceLine("p", "d", "h100", PREEMPTIBLE, 50, 7_200),
        InvoiceLine("p", "d", "h100", PREEMPTIBLE, 40, None),
    )
    assert [line.microdollars for line in lines[:3]] == [210, 200, None]
    assert lines[2].numerator is None


RATES = st.lists(
    st.builds(a_rate, st.integers(0, 1_000), st.integers(0, 10**7)),
    max_size=4,
    unique_by=lambda r: r.effective_from_s,
)


@given(
    rates=RATES,
    start_s=st.integers(0, 1_000),
    length_s=st.integers(0, 1_000),
    cut_s=st.integers(0, 1_000),
    gpus=st.integers(1, 8),
)
def test_invariant_7_cutting_time_never_changes_the_charge(
    rates: list[Rate], start_s: int, length_s: int, cut_s: int, gpus: int
) -> None:
    end_s = start_s + length_s
    in_order = rates_of(rates, "h100", PREEMPTIBLE)
    assert list(same_charge(start_s, end_s, min(start_s + cut_s, end_s), gpus, in_order)) == []
    by_second = sum(
        charge_numerator(gpus, rate.microdollars_per_gpu_hour)
        for at_s in range(start_s, end_s)
        if (rate := _rate(in_order, at_s))
    )
    parts = split_by_rate(start_s, end_s, in_order)
    assert by_second == sum(
        charge_numerator(gpus * (end - begin), rate.microdollars_per_gpu_hour)
        for begin, end, rate in parts
        if rate
    )


def _rate(rates: list[Rate], at_s: int) -> Rate | None:
    return max(
        (r for r in rates if r.effective_from_s <= at_s), key=lambda r: r.effective_from_s, default=None
    )


@given(
    rates=RATES,
    stays=st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 800), st.sampled_from("cd")), max_size=4),
    cuts=st.lists(st.integers(0, 2_000), max_size=4),
)
def test_however_a_bill_is_cut_into_intervals_its_lines_are_the_same(
    rates: list[Rate], stays: list[tuple[int, int, str]], cuts: list[int]
) -> None:
    whole = [a_stay(start_s, start_s + length_s, cluster) for start_s, length_s, cluster in stays]
    pieces = []
    for start_s, length_s, cluster in stays:
        end_s = start_s + length_s
        edges = sorted({start_s, end_s, *(cut for cut in cuts if start_s < cut < end_s)})
        pieces += [a_stay(one, other, cluster) for one, other in pairwise(edges)]
    assert invoice_lines(pieces, rates, 100, 1_500) == invoice_lines(whole, rates, 100, 1_500)
