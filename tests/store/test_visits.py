"""Visits: who may work on which row, and that nothing due is ever forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.clock import ManualClock
from ebbtide.errors import LeaseLost
from ebbtide.store import visits
from ebbtide.store.db import Database
from ebbtide.store.visits import Finish, Loop, Visit
from tests.builders import START, a_database, rows

LEASE_S = 60


async def _hint(db: Database, *keys: str, loop: Loop = Loop.LIFECYCLE, **more: object) -> None:
    async with db.transaction() as tx:
        await visits.hint(tx, loop, keys, **more)  # type: ignore[arg-type]  # handed on as they are


async def _claim(
    db: Database, owner: str = "one", limit: int = 10, loop: Loop = Loop.LIFECYCLE, cap: int = 1_000
) -> list[Visit]:
    async with db.transaction() as tx:
        return await visits.claim(tx, loop, owner, limit=limit, lease_s=LEASE_S, cap_per_cluster=cap)


async def _finish(db: Database, visit: Visit, again_s: int | None = None, *, failed: bool = False) -> None:
    async with db.transaction() as tx:
        again = None if again_s is None else tx.now + timedelta(seconds=again_s)
        await visits.finish(tx, [Finish(visit, "done", again, failed=failed)])


def _keys(claimed: Sequence[Visit]) -> list[str]:
    return [visit.key for visit in claimed]


async def test_urgent_ones_come_first_then_the_longest_due(db: Database, clock: ManualClock) -> None:
    await _hint(db, "third", due_at=START - timedelta(seconds=1))
    await _hint(db, "second", due_at=START - timedelta(seconds=9))
    await _hint(db, "first", urgent=True)
    await _hint(db, "not yet", due_at=START + timedelta(seconds=1))
    assert _keys(await _claim(db, limit=2)) == ["first", "second"]
    assert _keys(await _claim(db)) == ["third"]
    clock.advance(1)
    assert _keys(await _claim(db)) == ["not yet"]


async def test_one_sick_cluster_leaves_room_for_the_others(db: Database) -> None:
    sick = [f"sick-{n:02}" for n in range(20)]
    await _hint(db, *sick, clusters=["a"] * 20, due_at=START - timedelta(hours=1))
    await _hint(db, "well-1", "well-2", clusters=["b", "b"])
    claimed = _keys(await _claim(db, limit=10, cap=5))
    assert len([key for key in claimed if key.startswith("sick")]) == 5
    assert {"well-1", "well-2"} <= set(claimed)


async def test_what_is_under_way_counts_as_well(db: Database, clock: ManualClock) -> None:
    """A sick cluster's visits hang; those that fall due meanwhile take no more room than the first had."""
    await _hint(db, *(f"sick-{n:02}" for n in range(20)), clusters=["a"] * 20)
    assert len(await _claim(db, limit=10, cap=5)) == 5
    assert await _claim(db, limit=10, cap=5) == []
    assert len(await _claim(db, "another process", limit=10, cap=8)) == 3
    clock.advance(LEASE_S)
    assert len(await _claim(db, limit=10, cap=5)) == 5


async def test_a_leased_visit_is_nobody_elses_until_the_lease_ends(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a")
    (first,) = await _claim(db, "one")
    assert await _claim(db, "two") == []
    clock.advance(LEASE_S - 1)
    first.check(clock.now())
    assert await _claim(db, "two") == []
    clock.advance(1)
    with pytest.raises(LeaseLost):
        first.check(clock.now())
    (second,) = await _claim(db, "two")
    assert second.fence > first.fence


async def test_a_worker_thought_dead_cannot_finish(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a")
    (first,) = await _claim(db, "one")
    clock.advance(LEASE_S)
    (second,) = await _claim(db, "two")
    with pytest.raises(LeaseLost):
        await _finish(db, first, 5)
    await _finish(db, second, 7)
    async with db.read() as tx:
        due = await visits.next_due(tx)
    assert due == (clock.now() + timedelta(seconds=7), Loop.LIFECYCLE)
    with pytest.raises(LeaseLost):
        await _finish(db, second, 9)  # once finished it is over


async def test_a_lost_lease_undoes_all_that_its_transaction_wrote(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a", "b")
    first, other = await _claim(db, "one")
    clock.advance(LEASE_S)
    await _claim(db, "two", limit=1)

    async def finish_both() -> None:
        async with db.transaction() as tx:
            await visits.hint(tx, Loop.CLUSTER, ["c"])
            await visits.finish(tx, [Finish(one, "done", None) for one in (first, other)])

    with pytest.raises(LeaseLost):
        await finish_both()
    async with db.read() as tx:
        assert not await rows(tx, "visits", "loop = 'cluster'")
        assert not await rows(tx, "visits", "outcome = 'done'")


async def test_leases_of_a_dead_worker_end_at_once_and_it_can_finish_nothing(db: Database) -> None:
    await _hint(db, "a", "b")
    claimed = await _claim(db, "dead")
    async with db.transaction() as tx:
        assert await visits.free_leases(tx, "dead") == 2
    with pytest.raises(LeaseLost):
        await _finish(db, claimed[0])
    assert _keys(await _claim(db, "alive")) == ["a", "b"]


async def test_a_hint_during_a_visit_makes_it_due_again(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a")
    (visit,) = await _claim(db)
    await _hint(db, "a")
    await _finish(db, visit, None)  # it thinks that it is settled
    assert _keys(await _claim(db)) == ["a"]


async def test_a_settled_visit_stays_settled_until_a_hint(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a")
    (visit,) = await _claim(db)
    await _finish(db, visit, None)
    clock.advance(1e6)
    assert await _claim(db) == []
    async with db.read() as tx:
        assert await visits.next_due(tx) is None
    await _hint(db, "a")
    assert _keys(await _claim(db)) == ["a"]


async def test_a_hint_only_brings_a_visit_nearer(db: Database, clock: ManualClock) -> None:
    await _hint(db, "a", due_at=START + timedelta(seconds=10))
    await _hint(db, "a", due_at=START + timedelta(seconds=99))
    async with db.read() as tx:
        assert await visits.next_due(tx) == (START + timedelta(seconds=10), Loop.LIFECYCLE)


async def test_next_due_counts_a_leased_visit_from_the_end_of_its_lease(
    db: Database, clock: ManualClock
) -> None:
    await _hint(db, "a")
    await _claim(db)
    async with db.read() as tx:
        assert await visits.next_due(tx) == (START + timedelta(seconds=LEASE_S), Loop.LIFECYCLE)
        assert await visits.next_due(tx, [Loop.METERING]) is None
    await _hint(db, "all", loop=Loop.METERING, due_at=START + timedelta(seconds=3))
    async with db.read() as tx:
        assert await visits.next_due(tx) == (START + timedelta(seconds=3), Loop.METERING)


async def test_failures_are_counted_in_a_row(db: Database) -> None:
    await _hint(db, "a")
    for expected in (0, 1, 2):
        (visit,) = await _claim(db)
        assert visit.failures == expected
        await _finish(db, visit, 0, failed=True)
    (visit,) = await _claim(db)
    await _finish(db, visit, 0)
    assert (await _claim(db))[0].failures == 0


async def test_a_visit_that_becomes_urgent_does_not_wait_as_long_as_it_had_learnt_to(db: Database) -> None:
    await _hint(db, "a")
    for _ in range(3):
        (visit,) = await _claim(db)
        await _finish(db, visit, 0, failed=True)
    await _hint(db, "a", urgent=True)
    assert (await _claim(db))[0].failures == 0


async def test_whoever_claims_at_once_never_shares_a_visit(database_url: str, db: Database) -> None:
    """Eight workers on connections of their own, two hundred due visits: each is claimed once."""
    keys = [f"{n:03}" for n in range(200)]
    await _hint(db, *keys)
    others = [a_database(database_url) for _ in range(8)]

    async def work(number: int, database: Database) -> list[str]:
        mine: list[str] = []
        for _ in range(100):
            claimed = await _claim(database, f"worker-{number}", limit=7)
            mine += _keys(claimed)
            if not claimed and len(mine):
                return mine
        return mine

    try:
        found = await asyncio.gather(*(work(n, one) for n, one in enumerate(others)))
    finally:
        for one in others:
            await one.close()
    claimed = [key for mine in found for key in mine]
    assert sorted(claimed) == keys


async def test_waking_makes_due_what_is_there_and_makes_nothing_new(db: Database) -> None:
    await _hint(db, "a", loop=Loop.OBSERVATION, due_at=START + timedelta(seconds=20))
    async with db.transaction() as tx:
        await visits.wake_existing(tx, Loop.OBSERVATION, ["a", "nobody"])
    assert _keys(await _claim(db, loop=Loop.OBSERVATION)) == ["a"]
    async with db.read() as tx:
        assert len(await rows(tx, "visits")) == 1


async def test_waking_locks_nothing_before_the_transactions_end(db: Database) -> None:
    """Else who hints later in its transaction locks in another order than who finishes."""
    await _hint(db, "b", loop=Loop.OBSERVATION, due_at=START + timedelta(hours=1))
    try_it = sa.text("SELECT 1 FROM visits WHERE loop = 'observation' AND key = 'b' FOR UPDATE NOWAIT")
    async with db.transaction() as tx:
        await visits.wake_existing(tx, Loop.OBSERVATION, ["b"], due_at=START + timedelta(minutes=2))
        await visits.wake_existing(tx, Loop.OBSERVATION, ["b"], due_at=START + timedelta(minutes=9))
        await visits.hint(tx, Loop.CLUSTER, ["b"])
        async with db.transaction() as other:
            assert (await other.conn.execute(try_it)).all()
    async with db.read() as tx:
        (woken,) = await rows(tx, "visits", "loop = 'observation'")
    assert woken["due_at"] == START + timedelta(minutes=2)


async def test_hints_are_told_after_the_commit_and_not_without_one(db: Database) -> None:
    told: list[str] = []
    db.on_wake(told.append)
    await _hint(db, "a")
    assert told == ["lifecycle"]

    async def rolled_back() -> None:
        async with db.transaction() as tx:
            await visits.hint(tx, Loop.METERING, ["all"])
            raise KeyError

    with pytest.raises(KeyError):
        await rolled_back()
    await _hint(db, "later", loop=Loop.LEAKS, due_at=START + timedelta(seconds=9))
    assert told == ["lifecycle"]


async def test_two_hints_for_one_key_in_one_transaction_are_one_visit(db: Database) -> None:
    async with db.transaction() as tx:
        await visits.hint(tx, Loop.CLUSTER, ["a"])
        await visits.hint(tx, Loop.CLUSTER, ["a"])
        await visits.hint(tx, Loop.CLUSTER, ["a", "a"])
    assert _keys(await _claim(db, loop=Loop.CLUSTER)) == ["a"]
