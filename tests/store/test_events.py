"""Lifecycle events: numbered without gaps, in an order in which a reader misses none."""

from __future__ import annotations

import asyncio
import random

from ebbtide.core.events import Event, Reason
from ebbtide.core.nodes import Phase
from ebbtide.store import events
from ebbtide.store.db import Database
from ebbtide.store.events import NewEvent
from tests.builders import START, Rows, a_database

WRITERS, EVENTS_EACH = 12, 40


def _new(cluster: str, uid: str, reason: Reason = Reason.SCALED_UP) -> NewEvent:
    return NewEvent(cluster, uid, f"name of {uid}", Event(reason, "it happened", START))


async def test_a_stream_read_while_twelve_writers_write_loses_none(
    database_url: str, db: Database, rows: Rows, rng: random.Random
) -> None:
    """Each writer has its own connection and dawdles inside its transactions, so commits overtake."""
    writers = [a_database(database_url) for _ in range(WRITERS)]
    pauses_s = [[rng.random() / 200 for _ in range(EVENTS_EACH)] for _ in range(WRITERS)]
    done = asyncio.Event()

    async def write(number: int, database: Database) -> None:
        for step, pause_s in enumerate(pauses_s[number]):
            async with database.transaction() as tx:
                await asyncio.sleep(pause_s)
                await events.append(tx, [_new("cluster", f"{number}/{step}")])
                await asyncio.sleep(pause_s / 4)

    async def read() -> list[int]:
        seen: list[int] = []
        while True:
            finished = done.is_set()
            async with db.read() as tx:
                found = await events.after(tx, "cluster", seen[-1] if seen else 0, limit=7)
            seen += [event.number for event in found]
            if finished and not found:
                return seen
            await asyncio.sleep(0)

    reader = asyncio.create_task(read())
    try:
        await asyncio.gather(*(write(number, one) for number, one in enumerate(writers)))
        done.set()
        seen = await asyncio.wait_for(reader, 30)
    finally:
        for one in writers:
            await one.close()
    assert seen == list(range(1, WRITERS * EVENTS_EACH + 1))


async def test_a_transaction_that_fails_leaves_no_gap(db: Database, rows: Rows) -> None:
    async def fail() -> None:
        async with db.transaction() as tx:
            await events.append(tx, [_new("cluster", "never")])
            raise KeyError

    for uid in ("a", "b"):
        async with db.transaction() as tx:
            await events.append(tx, [_new("cluster", uid)])
        try:
            await fail()
        except KeyError:
            continue
        raise AssertionError("it should have failed")
    async with db.read() as tx:
        assert [one.number for one in await events.after(tx, "cluster", 0, 10)] == [1, 2]


async def test_an_event_written_again_is_there_once(db: Database, rows: Rows) -> None:
    for _ in range(3):
        async with db.transaction() as tx:
            await events.append(
                tx, [_new("cluster", "a"), _new("cluster", "b"), _new("cluster", "a", Reason.LOST)]
            )
    async with db.read() as tx:
        found = await events.after(tx, "cluster", 0, 10)
    assert [(one.number, one.node_uid, one.reason) for one in found] == [
        (1, "a", "TogetherScaledUp"),
        (2, "b", "TogetherScaledUp"),
        (3, "a", "EbbtideNodeLost"),
    ]


async def test_each_cluster_has_its_own_numbers(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.cluster(tx, "other")
        await events.append(tx, [_new("cluster", "a"), _new("other", "b"), _new("cluster", "c")])
        assert [one.number for one in await events.after(tx, "cluster", 0, 10)] == [1, 2]
        assert [one.number for one in await events.after(tx, "other", 0, 10)] == [1]
        assert [one.node_uid for one in await events.after(tx, "cluster", 1, 10)] == ["c"]


async def test_writers_to_the_same_clusters_never_wait_in_a_circle(
    database_url: str, db: Database, rows: Rows, rng: random.Random
) -> None:
    """Orders of clusters are shuffled on purpose; `transaction` does not run a deadlock's victim again."""
    names = [f"c{n}" for n in range(6)]
    async with db.transaction() as tx:
        for name in names:
            await rows.cluster(tx, name)
    writers = [a_database(database_url) for _ in range(6)]
    orders = [[rng.sample(names, len(names)) for _ in range(15)] for _ in writers]

    async def write(number: int, database: Database) -> None:
        for step, order in enumerate(orders[number]):
            async with database.transaction() as tx:
                await events.append(tx, [_new(name, f"{number}/{step}/{name}") for name in order])

    try:
        await asyncio.gather(*(write(number, one) for number, one in enumerate(writers)))
    finally:
        for one in writers:
            await one.close()
    async with db.read() as tx:
        for name in names:
            numbers = [one.number for one in await events.after(tx, name, 0, 1_000)]
            assert numbers == list(range(1, 6 * 15 + 1))


async def test_events_of_a_window(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
        await events.append(tx, [_new("cluster", "a")])
        assert [one.node_uid for one in await events.since(tx, ["cluster"], START)] == ["a"]
        assert await events.since(tx, ["another"], START) == []
