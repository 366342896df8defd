from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ebbtide_workload.deadline import Attention, Heard, Merged, parse_instant

NOON = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


def heard(source: str, seconds: float, reason: str = "") -> Heard:
    return Heard(source, NOON + timedelta(seconds=seconds), reason, NOON)


def test_several_notices_are_one_with_the_earliest_deadline() -> None:
    merged = Merged(Attention())
    assert merged.deadline() is None
    merged.tell(heard("node", 300, "standard claim"))
    merged.tell(heard("SIGTERM", 30, "signal SIGTERM"))
    merged.tell(heard("event", 299, "standard claim"))
    assert merged.deadline() == NOON + timedelta(seconds=30)
    assert merged.reason() == "standard claim; signal SIGTERM"
    assert [one.source for one in merged.all()] == ["node", "SIGTERM", "event"]


def test_a_source_is_news_once_unless_it_moves_the_deadline_nearer() -> None:
    attention = Attention()
    merged = Merged(attention)
    told: list[Heard] = []
    merged.listen(told.append)
    assert merged.tell(heard("node", 300))
    assert attention.up
    attention.up = False
    assert not merged.tell(heard("node", 300))
    assert not merged.tell(heard("node", 400))
    assert not attention.up
    assert merged.tell(heard("node", 200))
    assert merged.deadline() == NOON + timedelta(seconds=200)
    assert len(told) == 2


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T12:00:00Z",
        "2026-11-30T12:00:00.000000000Z",
        "2026-11-30T12:00:00.0+00:00",
        "2026-11-30T14:00:00+02:00",
        " 2026-11-30t12:00:00z\n",
    ],
)
def test_rfc_3339_is_read_in_all_its_forms(text: str) -> None:
    assert parse_instant(text) == NOON


def test_nanoseconds_are_cut_to_microseconds() -> None:
    assert parse_instant("2026-11-30T12:00:00.123456789Z") == NOON + timedelta(microseconds=123456)


@pytest.mark.parametrize("text", ["", "soon", "2026-11-30T12:00:00", "2026-13-30T12:00:00Z"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_instant(text)
