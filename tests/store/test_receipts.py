"""What is written of a drain's pods: twice, in any order, by a visit that comes late: no contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ebbtide.core.drain import PodKind, PodOrder, PodSeen
from ebbtide.core.nodes import Phase
from ebbtide.core.receipts import PodRecord
from ebbtide.store import receipts
from ebbtide.store.db import Database
from tests.builders import START, Rows


def pod(name: str, *, ends_by: datetime | None = None, tolerates: bool = False) -> PodSeen:
    return PodSeen(name, name, PodKind.WORKLOAD, 900, ends_by, "lab", tolerates)


def order(name: str, grace_s: int = 297, *, shorten: bool = False) -> PodOrder:
    return PodOrder(name, name, grace_s, shorten, "lab")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Book:
    """The records of one draining node."""

    def __init__(self, db: Database, uid: str) -> None:
        self._db = db
        self._uid = uid

    async def saw(self, seconds: float, *pods: PodSeen, arrived: bool = False) -> frozenset[str]:
        async with self._db.transaction() as tx:
            return await receipts.saw(tx, self._uid, at(seconds), pods, arrived=arrived)

    async def tells(
        self, seconds: float, *, signal: Sequence[PodOrder] = (), evict: Sequence[PodOrder] = ()
    ) -> None:
        async with self._db.transaction() as tx:
            await receipts.will_tell(tx, self._uid, at(seconds), signal, evict)

    async def answered(self, *results: tuple[str, str | None, str | None]) -> None:
        async with self._db.transaction() as tx:
            await receipts.answered(tx, self._uid, results)

    async def ends(self, *left: str) -> None:
        async with self._db.transaction() as tx:
            await receipts.end(tx, self._uid, left)

    async def read(self, name: str = "a") -> PodRecord:
        async with self._db.read() as tx:
            return next(one for one in await receipts.pods_of(tx, self._uid) if one.name == name)


@pytest.fixture
async def book(db: Database, rows: Rows) -> Book:
    async with db.transaction() as tx:
        return Book(db, await rows.node(tx, 0, Phase.DRAINING))


async def test_a_pod_is_written_down_once_as_it_was_first_seen(book: Book) -> None:
    assert await book.saw(0, pod("a"), pod("b")) == {"a", "b"}
    assert await book.saw(5, pod("a", ends_by=at(9)), pod("b"), arrived=True) == frozenset()
    found = await book.read()
    assert (found.first_seen_at, found.arrived, found.told_by, found.grace_asked_s) == (
        at(0),
        False,
        None,
        900,
    )
    assert (found.namespace, found.kind, found.tolerates) == ("lab", "workload", False)


async def test_a_pod_that_others_were_deleting_is_told_by_them(book: Book) -> None:
    await book.saw(0, pod("a", ends_by=at(30)))
    found = await book.read()
    assert (found.told_by, found.told_at, found.grace_given_s) == ("others", None, None)


async def test_an_order_is_rewritten_as_long_as_the_pod_is_untold(book: Book) -> None:
    """A process died between writing and sending; the next one tells the pod later, with less."""
    await book.saw(0, pod("a"))
    await book.tells(0, signal=[order("a", 297)])
    await book.tells(40, signal=[order("a", 257)])
    found = await book.read()
    assert (found.told_at, found.told_by, found.grace_given_s) == (at(40), "signal", 257)


async def test_a_shortening_keeps_the_first_order(book: Book) -> None:
    await book.saw(0, pod("a"))
    await book.tells(0, signal=[order("a", 200)])
    await book.tells(100, signal=[order("a", 50, shorten=True)])
    found = await book.read()
    assert (found.told_at, found.grace_given_s, found.shortened_to_s) == (at(0), 200, 50)


async def test_a_refused_eviction_told_nobody_and_a_later_signal_did(book: Book) -> None:
    await book.saw(0, pod("a"))
    await book.tells(0, evict=[order("a", 60)])
    await book.answered(("a", "budget keep says no", None))
    found = await book.read()
    assert (found.told_at, found.told_by, found.grace_given_s) == (None, None, None)
    assert found.refused == "budget keep says no"
    await book.tells(230, signal=[order("a", 60)])
    await book.answered(("a", None, "lab/keep"))
    found = await book.read()
    assert (found.told_at, found.told_by, found.refused, found.overrode) == (
        *(at(230), "signal"),
        *("budget keep says no", "lab/keep"),
    )


async def test_a_refusal_that_is_heard_late_takes_no_signal_back(book: Book) -> None:
    await book.saw(0, pod("a"))
    await book.tells(229, evict=[order("a", 60)])
    await book.tells(230, signal=[order("a", 60)])
    await book.answered(("a", "budget keep says no", None))
    found = await book.read()
    assert (found.told_at, found.told_by, found.grace_given_s) == (at(230), "signal", 60)


async def test_what_a_fresh_read_does_not_show_is_gone_and_stays_gone(book: Book) -> None:
    await book.saw(0, pod("a"), pod("b"))
    await book.saw(10, pod("b"))
    await book.saw(20, pod("b"))
    assert (await book.read()).gone_at == at(10)
    assert (await book.read("b")).gone_at is None


async def test_an_older_read_makes_no_newer_pod_gone(book: Book) -> None:
    """A visit that lost its lease read before the pod came, and writes after it was seen."""
    await book.saw(0)
    await book.saw(10, pod("a"), arrived=True)
    await book.saw(5, arrived=True)
    assert (await book.read()).gone_at is None


async def test_what_ends_with_the_machine_is_not_gone_as_well(book: Book) -> None:
    await book.saw(0, pod("a"), pod("b"))
    await book.saw(10, pod("b"))
    await book.ends("a", "b")
    await book.saw(310)
    assert ((await book.read()).killed, (await book.read()).gone_at) == (False, at(10))
    assert ((await book.read("b")).killed, (await book.read("b")).gone_at) == (True, None)


async def test_no_pods_are_no_statement(book: Book) -> None:
    await book.saw(0)
    await book.tells(0)
    await book.answered()
    await book.ends()
    assert await book.saw(1, pod("a", tolerates=True), arrived=True) == {"a"}
    found = await book.read()
    assert (found.arrived, found.tolerates) == (True, True)


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("told_by = 'fate'", "told_by_known"),
        ("told_at = now()", "told_by_somebody"),
        ("told_by = 'signal'", "told_by_somebody"),
        ("killed = true, gone_at = first_seen_at", "ended_once"),
        ("gone_at = first_seen_at - interval '1 s'", "ended_once"),
    ],
)
async def test_the_database_refuses_contradictions(
    db: Database, book: Book, change: str, constraint: str
) -> None:
    await book.saw(0, pod("a"))
    with pytest.raises(IntegrityError, match=constraint):
        async with db.transaction() as tx:
            await tx.conn.execute(sa.text(f"UPDATE drain_pods SET {change}"))
