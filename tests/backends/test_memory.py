"""What is remembered of machines that programs make: across processes, for one run at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.backends.memory import StoredMemory
from ebbtide.clock import ManualClock
from ebbtide.providers.base import Instance, InstanceOrder, InstanceState, Transient
from ebbtide.providers.memory import Noted
from ebbtide.store import instances, sealed
from ebbtide.store.db import Database, Tx

ORDER = InstanceOrder(
    node_uid="u1",
    node_name="gpu-dp-aaaaa-bbbbb",
    compute_class="preemptible",
    cluster_id="c1",
    project_id="p1",
    pool="h100",
    host_id="h-1",
    host_name="host-1",
    gpus=8,
    labels={"a": "b"},
    join={"server": "https://192.0.2.1:6443", "token": "abcdef.0123456789abcdef"},
    taints=("k=v:NoSchedule",),
    wipe="between_projects",
    wipe_first=True,
)


@pytest.fixture
def memory(db: Database) -> StoredMemory:
    return StoredMemory(db)


async def test_facts_and_handle_come_back_whoever_asks(memory: StoredMemory, db: Database) -> None:
    held = await memory.remember(ORDER, 30)
    assert (held.order, held.handle, held.gone) == (ORDER, None, False)
    await memory.note(held, Noted("create", 0, "on it", "job-1", "i-1", "192.0.2.9", "starting", "dd"))
    again = await StoredMemory(db).recall("u1", 30)
    assert again is not None
    assert again.order == ORDER
    assert (again.handle, again.instance_id, again.address) == ("job-1", "i-1", "192.0.2.9")
    assert again.wiped_first_by == "dd"
    await memory.note(again, Noted("status", 75, "no route"))  # says nothing new of these
    third = await memory.recall("u1", 30)
    assert third is not None
    assert (third.handle, third.instance_id) == ("job-1", "i-1")


async def test_one_run_at_a_time(memory: StoredMemory, clock: ManualClock) -> None:
    held = await memory.remember(ORDER, 30)
    for again in (memory.remember(ORDER, 30), memory.recall("u1", 30)):
        with pytest.raises(Transient, match="another program runs"):
            await again
    await memory.let_go(held)
    assert await memory.recall("u1", 30) is not None


async def test_of_many_that_ask_at_once_one_gets_it(memory: StoredMemory) -> None:
    await memory.let_go(await memory.remember(ORDER, 30))
    answers = await asyncio.gather(*(memory.recall("u1", 30) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, Transient) for one in answers) == 7


async def test_one_whose_run_ends_between_two_looks_is_not_taken_for_one_that_never_was(
    memory: StoredMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, hold = await memory.remember(ORDER, 30), instances.hold

    async def a_moment_too_early(tx: Tx, node_uid: str, hold_s: int) -> instances.InstanceRow | None:
        row = await hold(tx, node_uid, hold_s)
        await memory.let_go(held)
        return row

    monkeypatch.setattr(instances, "hold", a_moment_too_early)
    with pytest.raises(Transient, match="another program runs"):
        await memory.recall("u1", 30)


async def test_a_hold_ends_with_its_time_and_a_late_run_writes_nothing(
    memory: StoredMemory, clock: ManualClock
) -> None:
    """The worker that began it was killed, or cut off: the next one goes on, and its word counts."""
    late = await memory.remember(ORDER, 30)
    clock.advance(30)
    held = await memory.recall("u1", 30)
    assert held is not None
    await memory.note(late, Noted("delete", 0, gone=True, wiped_by="nobody"))
    await memory.note(held, Noted("stop", 0, handle="mine"))
    found = await memory.recall("u1", 30)
    assert found is not None
    assert (found.gone, found.handle) == (False, "mine")


async def test_what_is_gone_keeps_who_wiped_it_and_forgets_its_way_in(
    memory: StoredMemory, db: Database
) -> None:
    await memory.note(await memory.remember(ORDER, 30), Noted("delete", 0, gone=True, wiped_by="dd"))
    found = await memory.recall("u1", 30)
    assert found is not None
    assert (found.gone, found.wiped_by, found.order.join) == (True, "dd", {})
    await memory.let_go(found)
    late = await memory.remember(replace(ORDER, host_name="another"), 30)
    assert (late.gone, late.order.host_name) == (True, "host-1")


async def test_one_that_never_was_is_buried(memory: StoredMemory) -> None:
    assert await memory.recall("u1", 30) is None
    await memory.bury("u1")
    assert (await memory.remember(ORDER, 30)).gone
    await memory.bury("u1")


async def test_machines_found_are_remembered_and_those_known_stay(
    memory: StoredMemory, clock: ManualClock
) -> None:
    await memory.note(await memory.remember(ORDER, 30), Noted("create", 0, handle="mine"))
    listed = [Instance("i-9", uid, "host-9", InstanceState.UP, address="192.0.2.1") for uid in ("u1", "u9")]
    await memory.found("h100", listed)
    known, found = await memory.recall("u1", 30), await memory.recall("u9", 30)
    assert known is not None
    assert found is not None
    assert (known.order.host_name, known.handle) == ("host-1", "mine")
    assert (found.order.host_name, found.order.pool, found.instance_id) == ("host-9", "h100", "i-9")
    await memory.found("h100", [])


async def test_one_thought_gone_that_is_still_listed_later_is_not(
    memory: StoredMemory, clock: ManualClock
) -> None:
    await memory.note(await memory.remember(ORDER, 30), Noted("delete", 0, gone=True, wiped_by="dd"))
    there = [Instance("i-1", "u1", "host-1", InstanceState.UP)]
    for waited_s, gone in ((60, True), (61, False)):  # a list may be a little older than the end
        clock.advance(waited_s)
        await memory.found("h100", there)
        found = await memory.recall("u1", 30)
        assert found is not None
        assert found.gone is gone
        await memory.let_go(found)


async def test_join_data_is_sealed_and_can_be_sealed_anew(memory: StoredMemory, db: Database) -> None:
    await memory.let_go(await memory.remember(ORDER, 30))
    async with db.transaction() as tx:
        row = (await tx.conn.execute(sa.text("SELECT facts::text AS facts, join_data FROM instances"))).one()
        assert "abcdef" not in row.facts + row.join_data
        assert await sealed.reseal(tx) == 1
        after = (await tx.conn.execute(sa.text("SELECT join_data FROM instances"))).scalar_one()
        assert after != row.join_data
    found = await memory.recall("u1", 30)
    assert found is not None
    assert found.order.join == ORDER.join


async def test_what_a_pool_has(memory: StoredMemory) -> None:
    """For fleets without a program that lists."""
    for uid, state, pool in (("u1", "up", "h100"), ("u2", None, "h100"), ("u3", "up", "another")):
        held = await memory.remember(replace(ORDER, node_uid=uid, pool=pool), 30)
        await memory.note(held, Noted("create", 0, state=state))
    held = await memory.remember(replace(ORDER, node_uid="u4"), 30)
    await memory.note(held, Noted("delete", 0, state="not_found", gone=True, wiped_by="dd"))
    found = await memory.listed("h100")
    assert [(one.order.node_uid, one.state) for one in found] == [("u1", "up"), ("u2", None)]


async def test_it_is_forgotten_some_time_after_it_went(memory: StoredMemory, db: Database) -> None:
    await memory.note(await memory.remember(ORDER, 30), Noted("delete", 0, gone=True, wiped_by="dd"))
    await memory.let_go(await memory.remember(replace(ORDER, node_uid="u2"), 30))
    async with db.transaction() as tx:
        assert await instances.forget_older(tx, tx.now) == 0
        assert await instances.forget_older(tx, tx.now + timedelta(seconds=1)) == 1
    assert await memory.recall("u2", 30) is not None


async def test_the_last_run_is_shown(memory: StoredMemory, db: Database) -> None:
    held = await memory.remember(ORDER, 30)
    await memory.note(held, Noted("create", None, "one\n\n two \n\0\n", state="starting"))
    async with db.read() as tx:
        run = (await instances.last_runs(tx, ["u1", "u2"]))["u1"]
    assert (run.verb, run.exit_code, run.state, run.last_line) == ("create", None, "starting", "two")
