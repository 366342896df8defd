"""Moves: through the table, many at once, each with all that belongs to it, or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ebbtide.clock import ManualClock
from ebbtide.core import events as core_events
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import MOVES, ComputeClass, EndReason, IllegalMove, Phase
from ebbtide.store import nodes
from ebbtide.store.db import Database
from ebbtide.store.nodes import Move
from tests.builders import Rows, a_database, a_notice, count
from tests.builders import rows as read

_ALL = [(before, after) for before in Phase for after in Phase]
_ILLEGAL = [pair for pair in _ALL if pair[1] not in MOVES[pair[0]]]


def test_some_moves_are_illegal() -> None:
    assert len(_ILLEGAL) > len(Phase)


@pytest.mark.parametrize(("before", "after"), _ILLEGAL, ids=lambda phase: str(phase))
async def test_an_illegal_move_is_refused_before_anything_is_asked(before: Phase, after: Phase) -> None:
    nothing = object()
    with pytest.raises(IllegalMove):
        await nodes.move(nothing, [Move("x", before, after)])  # type: ignore[arg-type]  # it never gets that far


async def test_one_illegal_move_among_many_undoes_none_because_none_was_made(
    db: Database, rows: Rows
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.SCHEDULING)
        await rows.node(tx, 1, Phase.RUNNING)
        with pytest.raises(IllegalMove):
            await nodes.move(
                tx,
                [
                    Move("node-0", Phase.SCHEDULING, Phase.BOOTING),
                    Move("node-1", Phase.RUNNING, Phase.PENDING),
                ],
            )
    async with db.read() as tx:
        seen = await nodes.load(tx, "node-0")
    assert seen
    assert seen.phase is Phase.SCHEDULING


async def test_a_thousand_nodes_move_in_one_call(db: Database) -> None:
    made = Rows()
    async with db.transaction() as tx:
        await made.ground(tx, hosts=1_000)
        uids = await made.nodes(tx, 1_000)
    async with db.transaction() as tx:
        notices = [
            a_notice(uid, tx.now, event=core_events.preempted("more", tx.now, tx.now + timedelta(minutes=5)))
            for uid in uids
        ]
        moved = await nodes.move(tx, notices)
    assert {one.uid for one in moved} == set(uids)
    async with db.read() as tx:
        assert (
            await count(tx, "nodes", "phase = 'DRAINING' AND deadline = draining_at + interval '5 min'")
            == 1_000
        )
        assert await count(tx, "phase_transitions", "phase = 'DRAINING'") == 1_000
        numbers = sorted(int(str(row["number"])) for row in await read(tx, "lifecycle_events"))
        assert await count(tx, "visits", "loop = 'lifecycle' AND urgent AND due_at IS NOT NULL") == 1_000
    assert numbers == list(range(1, 1_001))


async def test_a_move_writes_all_that_belongs_to_it(db: Database, rows: Rows, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
        started_s = epoch_s(tx.now)
    clock.advance(90)
    async with db.transaction() as tx:
        event = core_events.preempted("an order", tx.now, tx.now + timedelta(seconds=300))
        await nodes.move(tx, [a_notice("node-0", tx.now, event=event, why="an order")])
    clock.advance(60)
    async with db.transaction() as tx:
        await nodes.move(tx, [Move("node-0", Phase.DRAINING, Phase.REMOVING)])
    clock.advance(30)
    async with db.transaction() as tx:
        await nodes.move(tx, [Move("node-0", Phase.REMOVING, Phase.REMOVED)])
    async with db.read() as tx:
        history = [
            row["phase"] for row in await read(tx, "phase_transitions", "node_uid = 'node-0' ORDER BY no")
        ]
        (interval,) = await read(tx, "intervals")
        (stored,) = await read(tx, "lifecycle_events")
        (host,) = await read(tx, "hosts", "name = 'host-0'")
        node = await nodes.load(tx, "node-0")
    assert history == [phase.value for phase in Phase]
    assert (interval["start_s"], interval["end_s"]) == (started_s, started_s + 150)
    assert (stored["number"], stored["reason"]) == (1, "TogetherPreempted")
    assert host["node_uid"] is None
    assert host["lendable_at"] == clock.now()  # taken for no claim: it rests for the cooldown, here 0 s
    assert node
    assert node.end_reason is EndReason.PREEMPTED
    assert node.left_at == clock.now() - timedelta(seconds=30)


async def test_everything_of_a_move_is_rolled_back_together(db: Database, rows: Rows) -> None:
    tables = ("phase_transitions", "lifecycle_events", "intervals", "visits")
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.BOOTSTRAPPING)
    async with db.read() as tx:
        before = {table: await read(tx, table) for table in (*tables, "hosts", "nodes", "clusters")}

    class Killed(Exception):
        pass

    async def joins_and_dies() -> None:
        async with db.transaction() as tx:
            joined = core_events.joined("preemptible", tx.now, 1)
            await nodes.move(tx, [Move("node-0", Phase.BOOTSTRAPPING, Phase.RUNNING, event=joined)])
            await nodes.move(tx, [a_notice("node-0", tx.now)])
            await rows.node(tx, 1, Phase.SCHEDULING)
            assert await count(tx, "intervals") == 1
            assert await count(tx, "hosts", "node_uid = 'node-1'") == 1
            raise Killed

    with pytest.raises(Killed):
        await joins_and_dies()
    async with db.read() as tx:
        after = {table: await read(tx, table) for table in (*tables, "hosts", "nodes", "clusters")}
    assert after == before


async def test_of_two_that_move_one_node_one_wins_and_the_other_changes_nothing(
    database_url: str, db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
    other = a_database(database_url, clock)
    ready = asyncio.Barrier(2)

    async def take(database: Database, why: str) -> int:
        async with database.transaction() as tx:
            await ready.wait()
            event = core_events.preempted(why, tx.now, tx.now + timedelta(seconds=300))
            return len(await nodes.move(tx, [a_notice("node-0", tx.now, event=event, why=why)]))

    try:
        won = await asyncio.gather(take(db, "first"), take(other, "second"))
    finally:
        await other.close()
    assert sorted(won) == [0, 1]
    async with db.read() as tx:
        node = await nodes.load(tx, "node-0")
        assert await count(tx, "lifecycle_events") == 1
        assert await count(tx, "phase_transitions", "phase = 'DRAINING'") == 1
    assert node
    assert node.why == ("first" if won[0] else "second")


async def test_a_deadline_is_written_once(db: Database, rows: Rows, clock: ManualClock) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.DRAINING)
    async with db.read() as tx:
        first = await nodes.load(tx, "node-0")
    clock.advance(100)
    async with db.transaction() as tx:
        later = tx.now + timedelta(seconds=300)
        await nodes.move(tx, [Move("node-0", Phase.DRAINING, Phase.REMOVING, deadline=later)])
    async with db.read() as tx:
        second = await nodes.load(tx, "node-0")
    assert first
    assert second
    assert first.deadline == second.deadline == second.ends_at


async def test_a_host_given_back_by_demand_that_displaces_rests(
    db: Database, rows: Rows, clock: ManualClock
) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING, compute_class=ComputeClass.STANDARD)
        await rows.node(tx, 1, Phase.RUNNING)
        ends = [
            Move(f"node-{n}", Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.SCALED_DOWN) for n in (0, 1)
        ]
        await nodes.move(tx, ends)
        await nodes.move(
            tx, [Move(f"node-{n}", Phase.REMOVING, Phase.REMOVED) for n in (0, 1)], cooldown_s=120
        )
    async with db.read() as tx:
        hosts = {row["name"]: row["lendable_at"] for row in await read(tx, "hosts")}
    assert hosts["host-0"] == clock.now() + timedelta(seconds=120)
    assert hosts["host-1"] is None


async def test_a_second_occupant_is_an_error_in_our_own_plan(db: Database, rows: Rows) -> None:
    async def place_twice() -> None:
        async with db.transaction() as tx:
            await nodes.place(tx, [rows.new_node(1, host=False)])
            move = Move("node-1", Phase.PENDING, Phase.SCHEDULING, host_id="host-0")
            await nodes.move(tx, [move])

    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.SCHEDULING)
    with pytest.raises(Exception, match=r"second occupant|uq_nodes_one_occupant"):
        await place_twice()


async def test_facts_do_not_include_what_only_moves_write(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0)
        for name in ("phase", "phase_since", "deadline", "end_reason", "host_id"):
            with pytest.raises(AssertionError, match=name):
                await nodes.set_facts(tx, "node-0", **{name: None, "workload_pods": 3})
        await nodes.set_facts(tx, "node-0", workload_pods=3)
    async with db.read() as tx:
        node = await nodes.load(tx, "node-0")
    assert node
    assert node.workload_pods == 3


async def test_only_uids_that_the_ledger_calls_gone_are_gone(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.REMOVED)
        await rows.node(tx, 1, Phase.RUNNING)
        node = await nodes.load(tx, "node-0")
        assert node
        seen = {"node-0": node.name, "node-1": "any", "a stranger": node.name}
        assert await nodes.gone_among(tx, node.cluster_id or "", seen) == {"node-0": Phase.REMOVED}
        other = "00000000-0000-4000-8000-00000000dead"
        assert await nodes.gone_among(tx, other, seen) == {}, "of another cluster"
        assert await nodes.gone_among(tx, node.cluster_id or "", {"node-0": "cpu-1"}) == {}, "a copied label"
