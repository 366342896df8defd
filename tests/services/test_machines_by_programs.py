"""What can be asked for where machines come from programs: no new clusters, no pretended volumes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from ebbtide.core.remediations import Mode
from ebbtide.errors import BadInput
from ebbtide.services.details import Replay, VolumeOrder
from ebbtide.services.remediations import RemediationService
from ebbtide.settings import Settings
from tests.builders import (
    REGION,
    Office,
    a_fleet,
    all_join,
    an_office,
    an_order,
    control_planes_are_ready,
    one_plan,
)

BY_PROGRAMS = replace(Settings(), provider="exec")


async def test_clusters_are_imported_and_not_made(database_url: str) -> None:
    async with an_office(database_url, a_fleet(), settings=BY_PROGRAMS) as office:
        with pytest.raises(BadInput, match="`ebbtide clusters import`") as refused:
            await office.services.clusters.create(await office.caller(), an_order(), Replay("x"))
        assert refused.value.code == "clusters_are_imported"
        assert await office.services.clusters.list(await office.caller()) == ()


@pytest.mark.parametrize(("storage", "offered"), [("simulated", False), ("none", False), ("program", True)])
async def test_volumes_come_from_programs_or_not_at_all(
    database_url: str, storage: str, offered: bool
) -> None:
    settings = replace(BY_PROGRAMS, storage=storage)
    order = VolumeOrder("data", REGION, 1)
    async with an_office(database_url, a_fleet(), settings=settings) as office:
        caller = await office.caller()
        if offered:
            assert (await office.services.volumes.create(caller, order, Replay("x"))).name == "data"
            return
        with pytest.raises(BadInput, match="not offered here"):
            await office.services.volumes.create(caller, order, Replay("x"))


@pytest.mark.parametrize("mode", [Mode.REBOOT_VM, Mode.HOST_POWER_CYCLE])
async def test_no_restarts_in_place_without_a_program_for_them(office: Office, mode: Mode) -> None:
    caller = await office.caller()
    made = await office.services.clusters.create(caller, an_order(), Replay("x"))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
        await tx.conn.execute(sa.text("UPDATE nodes SET instance_id = 'i-1'"))
    without = RemediationService(office.db, office.ids, BY_PROGRAMS)
    with pytest.raises(BadInput, match="not restarted in place; ask for VM_ONLY or HOST_AWARE"):
        await without.create(caller, made.id, "i-1", mode, None, Replay("r"))
    settings = replace(BY_PROGRAMS, exec_reboot="/opt/reboot")
    having = RemediationService(office.db, office.ids, settings)
    assert (await having.create(caller, made.id, "i-1", mode, None, Replay("r"))).mode is mode
