"""Lives of worker processes: who was killed, and whether anybody was there when notice was due."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from ebbtide.clock import ManualClock
from ebbtide.store import runs
from ebbtide.store.db import Database
from ebbtide.store.tables import worker_runs
from tests.builders import START, rows

Life = tuple[int, int, bool]  # started, last seen, whether it has ended; seconds after START


_CASES: list[tuple[str, list[Life], int, int, bool]] = [
    ("none yet, and only for a heartbeat's doubt", [], 0, 5, False),
    ("none at all", [], 0, 11, True),
    ("one that is alive", [(-100, 298, False)], 0, 300, False),
    ("one whose next heartbeat is not due yet", [(-100, -3, False)], 0, 4, False),
    ("killed soon after, nobody since", [(-100, 20, True)], 0, 300, True),
    ("killed, the next came late", [(-100, 20, True), (290, 290, False)], 0, 290, True),
    ("killed, the next came at once", [(-100, 20, True), (28, 290, False)], 0, 290, False),
    ("just more than the doubt between", [(-100, 20, True), (31, 290, False)], 0, 290, True),
    ("two, and one of them survived", [(-100, 20, True), (-50, 299, False)], 0, 300, False),
    ("a short life beside a long one", [(-100, 299, False), (50, 60, True)], 0, 300, False),
    ("the gap was before", [(-100, -20, True), (200, 300, False)], 210, 300, False),
    ("the next started with it", [(-500, -400, True), (5, 300, False)], 0, 300, False),
]


async def test_was_down(db: Database) -> None:
    for what, lives, since_s, now_s, down in _CASES:
        async with db.transaction() as tx:
            for number, (started_s, seen_s, ended) in enumerate(lives):
                seen = START + timedelta(seconds=seen_s)
                await tx.conn.execute(
                    sa.insert(worker_runs).values(
                        id=f"run-{number}",
                        started_at=START + timedelta(seconds=started_s),
                        seen_at=seen,
                        stopped_at=seen if ended else None,
                        ended_how="killed" if ended else None,
                    )
                )
            tx.now = START + timedelta(seconds=now_s)
            assert await runs.was_down(tx, START + timedelta(seconds=since_s)) is down, what
            await tx.conn.execute(sa.delete(worker_runs))


async def test_whoever_did_not_say_goodbye_was_killed(db: Database, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        for run_id in ("polite", "killed", "alive"):
            await runs.start(tx, run_id)
        await runs.stop(tx, "polite")
    clock.advance(3)
    async with db.transaction() as tx:
        await runs.beat(tx, "killed")
    clock.advance(runs.DEAD_AFTER_S)
    async with db.transaction() as tx:
        await runs.beat(tx, "alive")
        await runs.start(tx, "new")
        found = await runs.bury_dead(tx, all_others=False, run_id="new")
    assert [(run.id, run.ended_how, run.stopped_at) for run in found] == [
        ("killed", "killed", START + timedelta(seconds=3))
    ]
    async with db.transaction() as tx:
        assert await runs.bury_dead(tx, all_others=False, run_id="new") == []
        ended = {row["id"]: row["ended_how"] for row in await rows(tx, "worker_runs")}
    assert ended == {"polite": "stopped", "killed": "killed", "alive": None, "new": None}


async def test_alone_every_other_run_is_dead_at_once(db: Database) -> None:
    async with db.transaction() as tx:
        await runs.start(tx, "old")
        await runs.start(tx, "new")
        assert [run.id for run in await runs.bury_dead(tx, all_others=True, run_id="new")] == ["old"]


async def test_old_runs_are_forgotten_and_live_ones_are_not(db: Database, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await runs.start(tx, "ended")
        await runs.stop(tx, "ended")
        await runs.start(tx, "alive")
    clock.advance(1e6)
    async with db.transaction() as tx:
        assert await runs.forget_older(tx, tx.now) == 1
        assert [row["id"] for row in await rows(tx, "worker_runs")] == ["alive"]


async def test_a_run_taken_for_dead_that_beats_again_lives(db: Database, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await runs.start(tx, "silent")
    clock.advance(runs.DEAD_AFTER_S + 5)
    async with db.transaction() as tx:
        assert [run.id for run in await runs.bury_dead(tx, all_others=False, run_id="new")] == ["silent"]
    clock.advance(60)
    async with db.transaction() as tx:
        await runs.beat(tx, "silent")
        assert not await runs.was_down(tx, tx.now - timedelta(seconds=30))
