"""A volume's visits, one at a time: what each does, and the sentence that it leaves."""

from __future__ import annotations

import pytest

from ebbtide.playground.behaviours import ProvisionFails, ProvisionImpossible
from ebbtide.services.details import Replay, VolumeChange, VolumeDetails, VolumeOrder
from ebbtide.store import volumes
from ebbtide.store.visits import Loop
from tests.builders import REGION
from tests.workers.conftest import Rig


async def ordered(rig: Rig, size_tib: int = 2) -> VolumeDetails:
    order = VolumeOrder("data", REGION, size_tib)
    return await rig.sim.system.services.volumes.create(await rig.caller(), order, Replay("v"))


async def test_each_step_says_what_it_did(rig: Rig) -> None:
    volume = await ordered(rig)
    assert await rig.one(Loop.VOLUMES) == "the storage system is asked for it"
    assert await rig.one(Loop.VOLUMES) == "0 of 2 TiB are there"
    rig.wait(10)
    assert await rig.one(Loop.VOLUMES) == "2 TiB are there"
    assert await rig.one(Loop.VOLUMES) == "2 TiB, available"
    assert await rig.visit(Loop.VOLUMES) == [], "settled"
    service, caller = rig.sim.system.services.volumes, await rig.caller()
    await service.update(caller, volume.id, VolumeChange(3))
    assert await rig.one(Loop.VOLUMES) == "2 of 3 TiB are there"
    await service.delete(caller, volume.id)
    assert await rig.one(Loop.VOLUMES) == "the data is being deleted"
    rig.wait(10)
    assert await rig.one(Loop.VOLUMES) == "deleted"
    assert await rig.visit(Loop.VOLUMES) == []


async def test_a_refusal_for_the_moment_is_tried_again_with_growing_waits(rig: Rig) -> None:
    rig.world.set_behaviour(ProvisionFails(3), volume="data")
    await ordered(rig)
    await rig.one(Loop.VOLUMES)
    for wait_s in (2, 4, 8):
        said = await rig.one(Loop.VOLUMES)
        assert said == "the storage system refused for the moment; trying again"
        assert await rig.visit(Loop.VOLUMES) == []
        rig.wait(wait_s)
    assert await rig.one(Loop.VOLUMES) == "0 of 2 TiB are there"


async def test_a_refusal_for_good_ends_it(rig: Rig) -> None:
    rig.world.set_behaviour(ProvisionImpossible("no room"), volume="data")
    await ordered(rig)
    await rig.one(Loop.VOLUMES)
    assert await rig.one(Loop.VOLUMES) == "failed for good: no room"
    assert await rig.visit(Loop.VOLUMES) == []


@pytest.mark.parametrize("ready", [False, True])
async def test_deleted_while_it_is_made(rig: Rig, ready: bool) -> None:
    volume = await ordered(rig)
    await rig.one(Loop.VOLUMES)
    if ready:
        await rig.one(Loop.VOLUMES)
        rig.wait(10)
    await rig.sim.system.services.volumes.delete(await rig.caller(), volume.id)
    await rig.sim.run_for(30)
    assert rig.world.disks() == []
    (row,) = await rig.stored("volumes")
    assert row["deleted_at"] is not None


async def test_it_waits_for_its_clusters_control_plane_and_is_shown_then(rig: Rig) -> None:
    volume = await ordered(rig)
    await rig.sim.run_for(10)
    cluster_id = await rig.cluster()
    async with rig.sim.system.db.transaction() as tx:
        row = await volumes.load(tx, volume.id)
        assert row is not None
        assert await volumes.attach(tx, row, cluster_id)
        assert not await volumes.attach(tx, row, cluster_id), "it is taken"
    assert await rig.one(Loop.VOLUMES) == "waiting for its cluster's control plane"
    await rig.sim.run_for(40)
    assert list(rig.world.volumes(cluster_id)) == ["data"]
    (row_now,) = await rig.stored("volumes")
    assert (row_now["status"], row_now["shown_tib"]) == ("bound", 2)
