"""Billable time in the database: opened, closed, cut at midnight, never twice, never past what is proven."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.clock import ManualClock
from ebbtide.core.metering import DAY_S, epoch_s
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.store import clusters, intervals, nodes
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move
from tests.builders import START, Rows, a_database, a_notice, count
from tests.builders import rows as read

MIDNIGHT = datetime(2026, 3, 2, tzinfo=UTC)
NOON_S, MIDNIGHT_S = epoch_s(START), epoch_s(MIDNIGHT)
FAR_S = NOON_S + 100 * DAY_S


async def _spans(tx: Tx) -> list[tuple[int, int | None]]:
    """Seconds after noon of the first day."""
    found = await read(tx, "intervals", "true ORDER BY start_s")
    return [(int(str(one["start_s"])) - NOON_S, _end(one["end_s"])) for one in found]


def _end(value: object) -> int | None:
    return None if value is None else int(str(value)) - NOON_S


async def _roll(db: Database, limit: int = 100) -> int:
    async with db.transaction() as tx:
        return await intervals.roll_days(tx, limit)


def _gone(phase: Phase = Phase.RUNNING, **more: object) -> Move:
    return Move("node-0", phase, Phase.REMOVING, end_reason=EndReason.LOST, **more)  # type: ignore[arg-type]  # fields by name


async def test_twelve_minutes_are_twelve_minutes(db: Database, rows: Rows, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.advance(720)
    async with db.transaction() as tx:
        await nodes.move(tx, [_gone()])
        assert await _spans(tx) == [(0, 720)]


async def test_joining_nodes_and_claimed_hosts_are_not_billed(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.BOOTSTRAPPING)
        await rows.node(tx, 1, Phase.SCHEDULING, compute_class=ComputeClass.EXTERNAL)
        assert await count(tx, "intervals") == 0


async def test_draining_goes_on_being_billed_but_never_past_the_deadline(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.advance(100)
    async with db.transaction() as tx:
        await nodes.move(tx, [a_notice("node-0", tx.now)])
        assert await _spans(tx) == [(0, None)]
    clock.advance(350)
    async with db.transaction() as tx:
        await nodes.move(tx, [Move("node-0", Phase.DRAINING, Phase.REMOVING)])
        assert await _spans(tx) == [(0, 400)]


async def test_what_is_sealed_never_goes_past_the_deadline_either(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    """A node still there after its deadline (a late notice, a slow loop): what is final must stay final."""
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
        await nodes.move(tx, [a_notice("node-0", tx.now)])
    clock.advance(360)
    async with db.transaction() as tx:
        await clusters.mark_observed(tx, {"cluster": tx.now})
        (before,) = await intervals.read(tx, 0, FAR_S, project_id=None, cluster_id=None)
        await nodes.move(tx, [Move("node-0", Phase.DRAINING, Phase.REMOVING)])
        (after,) = await intervals.read(tx, 0, FAR_S, project_id=None, cluster_id=None)
    assert before.sealed_until_s == after.sealed_until_s == NOON_S + 300


async def test_a_vanished_host_is_billed_until_it_was_last_seen_well(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.advance(100)
    async with db.transaction() as tx:
        await nodes.move(tx, [_gone(bill_until=START + timedelta(seconds=60))])
        assert await _spans(tx) == [(0, 60)]


async def test_an_end_before_the_start_is_no_time_and_not_negative(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
        await nodes.move(tx, [_gone(bill_until=START - timedelta(seconds=60))])
        assert await _spans(tx) == [(0, 0)]


async def test_a_pod_that_slipped_in_is_billed_from_its_start(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.BOOTSTRAPPING)
        await nodes.move(
            tx,
            [
                Move(
                    "node-0",
                    Phase.BOOTSTRAPPING,
                    Phase.DRAINING,
                    end_reason=EndReason.FAILED,
                    drain_kind=DrainKind.RECLAIM,
                    deadline=tx.now + timedelta(seconds=300),
                    bill_from=tx.now - timedelta(seconds=45),
                )
            ],
        )
        assert await _spans(tx) == [(-45, None)]


@pytest.mark.parametrize("days", [1, 2, 5])
async def test_open_intervals_are_cut_at_every_midnight_that_passed(
    db: Database, rows: Rows, clock: ManualClock, days: int
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.set(MIDNIGHT + timedelta(days=days - 1, seconds=90))
    assert await _roll(db) == 1
    assert await _roll(db) == 0
    half = DAY_S // 2
    cuts = [0, *(half + DAY_S * day for day in range(days)), None]
    async with db.read() as tx:
        assert await _spans(tx) == list(itertools.pairwise(cuts))


async def test_exactly_at_midnight_and_again_later(db: Database, rows: Rows, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.set(MIDNIGHT)
    assert await _roll(db) == 1
    async with db.transaction() as tx:
        await nodes.move(tx, [_gone()])
        assert await _spans(tx) == [(0, DAY_S // 2), (DAY_S // 2, DAY_S // 2)]
    assert await _roll(db) == 0


async def test_rolling_goes_in_portions(db: Database, rows: Rows, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await rows.nodes(tx, 4, Phase.RUNNING)
    clock.set(MIDNIGHT + timedelta(seconds=5))
    assert [await _roll(db, 3), await _roll(db, 3), await _roll(db, 3)] == [3, 1, 0]


async def test_a_host_that_had_vanished_before_midnight_is_cut_back_over_it(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.set(MIDNIGHT + timedelta(seconds=20))
    await _roll(db)
    async with db.transaction() as tx:
        await nodes.move(tx, [_gone(bill_until=MIDNIGHT - timedelta(seconds=10))])
        found = await intervals.read(tx, 0, FAR_S, project_id=None, cluster_id=None)
    assert sum(one.sealed_until_s - one.interval.start_s for one in found) == DAY_S // 2 - 10


async def test_a_node_that_leaves_while_the_day_is_being_cut_stays_closed(
    database_url: str, db: Database, rows: Rows, clock: ManualClock
) -> None:
    """The move waits for the meter; the day that the meter adds must not stay open behind its back."""
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.set(MIDNIGHT + timedelta(seconds=30))
    other = a_database(database_url, clock)

    async def leave() -> None:
        async with other.transaction() as tx:
            await nodes.move(tx, [_gone()])

    try:
        async with db.transaction() as tx:
            await intervals.roll_days(tx, 100)
            leaving = asyncio.create_task(leave())
            await asyncio.sleep(0.3)  # long enough for it to reach the row that is locked here
        await leaving
    finally:
        await other.close()
    async with db.read() as tx:
        assert await count(tx, "intervals", "end_s IS NULL") == 0
        assert await _spans(tx) == [(0, DAY_S // 2), (DAY_S // 2, DAY_S // 2 + 30)]


async def test_the_meter_leaves_a_node_alone_that_is_just_leaving(
    database_url: str, db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    clock.set(MIDNIGHT + timedelta(seconds=30))
    other = a_database(database_url, clock)
    try:
        async with db.transaction() as tx:
            await nodes.move(tx, [_gone()])
            assert await asyncio.wait_for(_roll(other), 5) == 0
    finally:
        await other.close()
    async with db.read() as tx:
        assert await count(tx, "intervals", "end_s IS NULL") == 0


async def test_sealed_follows_observation_and_stops_where_a_node_is_not_well(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async def sealed() -> int:
        async with db.read() as tx:
            (one,) = await intervals.read(tx, 0, FAR_S, project_id=None, cluster_id=None)
        return one.sealed_until_s - NOON_S

    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    assert await sealed() == 0
    clock.advance(60)
    assert await sealed() == 0  # nobody looked
    async with db.transaction() as tx:
        await clusters.mark_observed(tx, {"cluster": tx.now})
    assert await sealed() == 60
    async with db.transaction() as tx:
        await clusters.mark_observed(tx, {"cluster": START})  # an older look never takes it back
    assert await sealed() == 60
    clock.advance(60)
    async with db.transaction() as tx:
        await nodes.set_facts(tx, "node-0", healthy_until=START + timedelta(seconds=80))
        await clusters.mark_observed(tx, {"cluster": tx.now})
    assert await sealed() == 80
    async with db.transaction() as tx:
        await nodes.set_facts(tx, "node-0", healthy_until=None)
    assert await sealed() == 120
