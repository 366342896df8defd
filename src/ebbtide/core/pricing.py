"""Money in whole micro-dollars. Charges are exact until the one rounding on an invoice line.

A charge is kept as a numerator: GPU-seconds times micro-dollars per GPU-hour, to be divided by 3,600 once.
Sums of numerators do not depend on how time was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ebbtide.core.metering import Interval
from ebbtide.core.nodes import ComputeClass

HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of a pool's GPU-hour in one class, from a second on until the next rate takes over."""

    pool: str
    compute_class: ComputeClass
    effective_from_s: int
    microdollars_per_gpu_hour: int


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """What one cluster used of one pool in one class at one price.

    microdollars_per_gpu_hour: None while unpriced: the quantity stands, its price comes later
    numerator:                 exact charge in micro-dollars times 3,600
    """

    project_id: str
    cluster_id: str
    pool: str
    compute_class: ComputeClass
    gpu_seconds: int
    microdollars_per_gpu_hour: int | None

    @property
    def numerator(self) -> int | None:
        if self.microdollars_per_gpu_hour is None:
            return None
        return charge_numerator(self.gpu_seconds, self.microdollars_per_gpu_hour)

    @property
    def microdollars(self) -> int | None:
        """The amount, rounded here and nowhere before; None while unpriced."""
        numerator = self.numerator
        return None if numerator is None else round_line(numerator)


def rates_of(rates: Iterable[Rate], pool: str, compute_class: ComputeClass) -> list[Rate]:
    """The rates of one pool and class, earliest first. Of two from one second the one given last wins."""
    mine = [rate for rate in rates if rate.pool == pool and rate.compute_class is compute_class]
    return sorted(mine, key=lambda rate: rate.effective_from_s)


def rate_at(rates: Iterable[Rate], pool: str, compute_class: ComputeClass, at_s: int) -> Rate | None:
    """The rate in force at a second, or None: then the time is unpriced. No other rate ever stands in."""
    in_force = None
    for rate in rates_of(rates, pool, compute_class):
        if rate.effective_from_s <= at_s:
            in_force = rate
    return in_force


def split_by_rate(start_s: int, end_s: int, rates: Sequence[Rate]) -> list[tuple[int, int, Rate | None]]:
    """[start_s, end_s) cut where the rate changes, each part with its rate (None: unpriced).

    rates: of one pool and class, earliest first, as `rates_of` gives them
    """
    parts: list[tuple[int, int, Rate | None]] = []
    at_s, in_force = start_s, None
    for rate in rates:
        change_s = min(rate.effective_from_s, end_s)
        if change_s > at_s:
            parts.append((at_s, change_s, in_force))
            at_s = change_s
        in_force = rate
    if at_s < end_s:
        parts.append((at_s, end_s, in_force))
    return parts


def charge_numerator(gpu_seconds: int, microdollars_per_gpu_hour: int) -> int:
    """The exact charge in micro-dollars times 3,600."""
    return gpu_seconds * microdollars_per_gpu_hour


def round_line(numerator: int) -> int:
    """Whole micro-dollars, halves to the even neighbour, so that a credit cancels what it takes back."""
    whole, rest = divmod(numerator, HOUR_S)
    if 2 * rest > HOUR_S or (2 * rest == HOUR_S and whole % 2):
        return whole + 1
    return whole


def half_price(rate: Rate, discount_percent: int = 50) -> Rate:
    """The preemptible rate to a standard one. Fractions of a micro-dollar are dropped, for the tenant."""
    if not 0 <= discount_percent <= 100:
        raise ValueError(f"a discount is between 0 and 100 percent, not {discount_percent}")
    price = rate.microdollars_per_gpu_hour * (100 - discount_percent) // 100
    return replace(rate, compute_class=ComputeClass.PREEMPTIBLE, microdollars_per_gpu_hour=price)


def invoice_lines(
    intervals: Iterable[Interval], rates: Sequence[Rate], from_s: int, until_s: int
) -> tuple[InvoiceLine, ...]:
    """The lines for [from_s, until_s), one per project, cluster, pool, class and price, sorted so.

    Unpriced lines come last in their class. Open intervals count up to `until_s`, so the caller asks for
    nothing beyond what is sealed.
    """
    by_terms: dict[tuple[str, ComputeClass], list[Rate]] = {}
    used: dict[tuple[str, str, str, ComputeClass, int | None], int] = {}
    for interval in intervals:
        terms = (interval.pool, interval.compute_class)
        if terms not in by_terms:
            by_terms[terms] = rates_of(rates, *terms)
        start_s = max(interval.start_s, from_s)
        end_s = until_s if interval.end_s is None else min(interval.end_s, until_s)
        for part_start_s, part_end_s, rate in split_by_rate(start_s, end_s, by_terms[terms]):
            price = None if rate is None else rate.microdollars_per_gpu_hour
            key = (interval.project_id, interval.cluster_id, *terms, price)
            used[key] = used.get(key, 0) + interval.gpus * (part_end_s - part_start_s)
    order = sorted(used, key=lambda key: (key[:4], key[4] is None, key[4] or 0))
    return tuple(InvoiceLine(*key[:4], used[key], key[4]) for key in order)
