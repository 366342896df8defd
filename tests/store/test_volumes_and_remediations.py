"""What the database itself refuses of volumes and remediations, and what one statement decides."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.remediations import OPEN, IllegalRemediationMove, Mode, State, Trigger
from ebbtide.core.volumes import IllegalVolumeMove, VolumeStatus
from ebbtide.errors import Conflict
from ebbtide.store import remediations, volumes
from ebbtide.store.db import Database, Tx
from ebbtide.store.remediations import Wanted
from ebbtide.store.tables_more import remediations as table
from tests.builders import REGION, Rows


async def a_volume(tx: Tx, rows: Rows, name: str = "data", **values: object) -> str:
    values = {"id": f"volume-{name}", **values}
    fixed = {"project_id": rows.project_id, "region": REGION, "name": name, "size_tib": 1}
    await volumes.insert(tx, **fixed, **values)
    return str(values["id"])


async def a_remediation(tx: Tx, rows: Rows, node_uid: str, number: int = 1) -> str:
    made = f"remediation-{number}"
    await remediations.insert(
        tx,
        id=made,
        cluster_id=rows.cluster_id,
        node_uid=node_uid,
        instance_id="i-1",
        instance_name="gpu-dp-a-b",
        mode=Mode.VM_ONLY,
        state=State.PENDING,
        trigger=Trigger.MANUAL,
    )
    return made


async def test_a_name_is_in_use_until_its_volume_is_gone(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        first = await a_volume(tx, rows)
        with pytest.raises(Conflict, match="already"):
            await a_volume(tx, rows, id="another")
        await volumes.set_fields(tx, first, deleted_at=tx.now)
        await a_volume(tx, rows, id="another")
        assert [row.id for row in await volumes.live(tx, project_id=rows.project_id)] == ["another"]


async def test_statuses_move_through_the_table_and_from_what_was_seen(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        one = await a_volume(tx, rows)
        with pytest.raises(IllegalVolumeMove):
            await volumes.move(tx, one, VolumeStatus.SCHEDULED, VolumeStatus.BOUND)
        with pytest.raises(AssertionError):
            await volumes.set_fields(tx, one, status=VolumeStatus.BOUND)
        assert await volumes.move(tx, one, VolumeStatus.SCHEDULED, VolumeStatus.PROVISIONING)
        assert not await volumes.move(tx, one, VolumeStatus.SCHEDULED, VolumeStatus.PROVISIONING)


async def test_of_two_that_want_a_volume_one_gets_it(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        one = await a_volume(tx, rows)
        row = await volumes.load(tx, one)
    assert row is not None

    async def wants() -> bool:
        async with db.transaction() as tx:
            return await volumes.attach(tx, row, rows.cluster_id)

    assert sorted(await asyncio.gather(*(wants() for _ in range(4)))) == [False, False, False, True]


async def test_when_a_cluster_goes_its_own_volumes_go_and_others_are_free(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        own = await a_volume(tx, rows, "own", cluster_id=rows.cluster_id, made_with_cluster=True)
        kept = await a_volume(
            tx,
            rows,
            "kept",
            cluster_id=rows.cluster_id,
            made_with_cluster=True,
            is_lifecycle_independent=True,
        )
        other = await a_volume(tx, rows, "other", cluster_id=rows.cluster_id)
        for one in (kept, other):
            await volumes.move(tx, one, VolumeStatus.SCHEDULED, VolumeStatus.PROVISIONING)
            await volumes.move(tx, one, VolumeStatus.PROVISIONING, VolumeStatus.BOUND, shown_tib=1)
        assert not await volumes.all_shown(tx, rows.cluster_id), "one is not made yet"
        await volumes.release(tx, rows.cluster_id)
        await volumes.mark_shown(tx, kept, rows.cluster_id, 1)
        found = {row.id: row for row in await volumes.live(tx, project_id=None)}
    assert found[own].status is VolumeStatus.DELETING
    assert {found[one].status for one in (kept, other)} == {VolumeStatus.AVAILABLE}
    assert {(row.cluster_id, row.shown_tib) for row in found.values()} == {(None, None)}


async def test_a_node_has_one_open_remediation_at_a_time(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        uid = await rows.node(tx, 1, Phase.RUNNING, compute_class=ComputeClass.STANDARD)
        first = await a_remediation(tx, rows, uid)
    for state, number in ((State.PENDING, 2), (State.RUNNING, 3)):
        async with db.transaction() as tx:
            row = await remediations.load(tx, first)
            assert row is not None
            if row.state is not state:
                assert await remediations.move(tx, first, row.state, state)
            with pytest.raises(Conflict, match="not over yet"):
                await a_remediation(tx, rows, uid, number)
    async with db.transaction() as tx:
        assert await remediations.move(tx, first, State.RUNNING, State.SUCCEEDED)
        await a_remediation(tx, rows, uid, 4)
        assert (await remediations.latest(tx, [rows.cluster_id]))[uid].id == "remediation-4"
        found = await remediations.page(tx, Wanted(rows.cluster_id), 10)
    assert [row.id for row, _ in found] == ["remediation-4", first]


async def test_of_two_that_ask_at_once_one_is_heard(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        uid = await rows.node(tx, 1, Phase.RUNNING, compute_class=ComputeClass.STANDARD)

    async def asks(number: int) -> bool:
        try:
            async with db.transaction() as tx:
                await a_remediation(tx, rows, uid, number)
        except Conflict:
            return False
        return True

    assert sorted(await asyncio.gather(*(asks(number) for number in range(4)))) == [False, False, False, True]


async def test_states_move_through_the_table(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        uid = await rows.node(tx, 1, Phase.RUNNING, compute_class=ComputeClass.STANDARD)
        one = await a_remediation(tx, rows, uid)
        with pytest.raises(IllegalRemediationMove):
            await remediations.move(tx, one, State.PENDING, State.SUCCEEDED)
        with pytest.raises(AssertionError):
            await remediations.set_fields(tx, one, state=State.RUNNING)
        assert not await remediations.move(tx, one, State.RUNNING, State.FAILED), "it is PENDING"


def test_the_index_of_open_ones_and_the_rules_agree() -> None:

    (index,) = [each for each in table.indexes if each.name == "uq_remediations_open"]
    condition = str(index.dialect_options["postgresql"]["where"])
    assert {word for word in State if f"'{word}'" in condition} == OPEN
