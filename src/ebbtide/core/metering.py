"""Billable time: half-open UTC intervals in whole seconds since 1970, and minute records derived from them.

The bill is a function of intervals alone. Minute records are a view of sealed time: the same interval always
gives the same records with the same ids, whoever asks and however often.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from ebbtide.core.nodes import ComputeClass

DAY_S = 86_400
MINUTE_S = 60

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Time of one node under unchanged terms: [start_s, end_s), open while end_s is None."""

    node_no: int
    node_uid: str
    cluster_id: str
    project_id: str
    pool: str
    compute_class: ComputeClass
    gpus: int
    start_s: int
    end_s: int | None = None


class MinuteRecord(NamedTuple):
    """What one node used in one UTC minute or the billable part of it. A delta: records are to be summed.

    A named tuple, so that the bulk form below is the same thing without the cost of naming.
    id: the node's uid and the record's first second; the same for every sink and every replay
    """

    id: str
    node_uid: str
    cluster_id: str
    project_id: str
    pool: str
    compute_class: str
    start_s: int
    end_s: int
    gpu_seconds_delta: int


MinuteRow = tuple[str, str, str, str, str, str, int, int, int]  # a MinuteRecord's fields in order


def epoch_s(instant: datetime) -> int:
    """Whole seconds since 1970, rounded down. A naive datetime raises TypeError."""
    return (instant - _EPOCH) // _SECOND


def instant_of(seconds: int) -> datetime:
    """The UTC instant of a whole second since 1970."""
    return _EPOCH + timedelta(seconds=seconds)


def split_at_midnight(start_s: int, end_s: int) -> list[tuple[int, int]]:
    """[start_s, end_s) cut at every UTC midnight inside it; empty when nothing is between."""
    if end_s <= start_s:
        return []
    cuts = [start_s, *range((start_s // DAY_S + 1) * DAY_S, end_s, DAY_S), end_s]
    return list(pairwise(cuts))


def billable_end(
    running_at: datetime,
    ended_at: datetime,
    deadline: datetime | None = None,
    last_healthy: datetime | None = None,
) -> datetime:
    """When a node's billable time ends.

    ended_at:     when it left RUNNING or DRAINING; for a node still there, the time up to which to count
    deadline:     of its drain, if it has one; nothing is billed past it
    last_healthy: given for a host that vanished or is not seen: the last observation that proves it was there
    Never before `running_at`.
    """
    limits = [limit for limit in (ended_at, deadline, last_healthy) if limit is not None]
    return max(running_at, min(limits))


def gpu_seconds(interval: Interval, until_s: int) -> int:
    """GPU-seconds of the interval up to `until_s`; never negative."""
    end_s = until_s if interval.end_s is None else min(interval.end_s, until_s)
    return interval.gpus * max(0, end_s - interval.start_s)


def minute_records(interval: Interval, sealed_until_s: int) -> Iterator[MinuteRecord]:
    """The interval's records, as far as they are final.

    A minute that is sealed only in part has no record yet, or its id would later carry another quantity.
    """
    return map(
        MinuteRecord._make, minute_rows([(interval, sealed_until_s)], interval.start_s, sealed_until_s)
    )


def minute_rows(sealed: Iterable[tuple[Interval, int]], from_s: int, until_s: int) -> Iterator[MinuteRow]:
    """Rows of many intervals for the minutes of [from_s, until_s), in the order of intervals, then of time.

    sealed: each interval with the second up to which it is proven
    A minute belongs to the range in which its record starts, so adjoining ranges give each record once.
    """
    for interval, sealed_until_s in sealed:
        yield from _rows(interval, sealed_until_s, from_s, until_s)


def _rows(interval: Interval, sealed_until_s: int, from_s: int, until_s: int) -> list[MinuteRow]:
    """One interval's rows. Formed in one list: a million rows are wanted per second."""
    start_s, end_s = interval.start_s, _final_end(interval, sealed_until_s)
    uid, gpus = interval.node_uid, interval.gpus
    cluster_id, project_id = interval.cluster_id, interval.project_id
    pool, word = interval.pool, interval.compute_class.value
    first_full_s = -(-max(start_s, from_s) // MINUTE_S) * MINUTE_S
    last_full_s = end_s // MINUTE_S * MINUTE_S
    delta = MINUTE_S * gpus
    rows: list[MinuteRow] = [
        (f"{uid}:{at_s}", uid, cluster_id, project_id, pool, word, at_s, at_s + MINUTE_S, delta)
        for at_s in range(first_full_s, min(last_full_s, until_s), MINUTE_S)
    ]
    partial_end_s = min(-(-start_s // MINUTE_S) * MINUTE_S, end_s)
    if from_s <= start_s < min(partial_end_s, until_s):
        size = (partial_end_s - start_s) * gpus
        first = (f"{uid}:{start_s}", uid, cluster_id, project_id, pool, word, start_s, partial_end_s, size)
        rows.insert(0, first)
    if max(start_s, from_s) <= last_full_s < min(end_s, until_s):
        size = (end_s - last_full_s) * gpus
        last = (f"{uid}:{last_full_s}", uid, cluster_id, project_id, pool, word, last_full_s, end_s, size)
        rows.append(last)
    return rows


def _final_end(interval: Interval, sealed_until_s: int) -> int:
    """Where final records end: at the interval's end if that is sealed, else with the last sealed minute."""
    if interval.end_s is not None and interval.end_s <= sealed_until_s:
        return interval.end_s
    return sealed_until_s // MINUTE_S * MINUTE_S
