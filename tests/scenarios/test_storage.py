"""Volumes from order to deletion, over a world that loses replies and a process that dies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.volumes import VolumeStatus
from ebbtide.drivers.base import DriverError
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.playground.behaviours import (
    ProvisionFails,
    ProvisionImpossible,
    ProvisionReplyLost,
    VolumeDeleteForgets,
    VolumeDeleteReplyLost,
)
from ebbtide.playground.facts import What
from ebbtide.playground.flaky import Flaky
from ebbtide.providers.base import Transient
from ebbtide.services.details import (
    Caller,
    ClusterDetails,
    ClusterOrder,
    Replay,
    Role,
    VolumeChange,
    VolumeDetails,
    VolumeOrder,
)
from ebbtide.services.fleet_file import parse
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation

FLEET = parse("""
regions:
  eu-1: {}
  us-1: {}
pools:
  eu-h100: {region: eu-1, gpu_type: H100_SXM, boot_s: 10, turn_over_s: 5, blocks: {b1: 3}}
""")
CALM = replace(
    Settings(), observe_every_s=300, meter_every_s=600, leaks_every_s=600
)  # fewer visits of others
DATA = VolumeOrder("demo-data", "eu-1", 2)


class Killed(BaseException):
    """The process dies at this line."""


@dataclass
class Tale:
    sim: Simulation
    tenant: Caller
    requests: int = 0

    def replay(self) -> Replay:
        self.requests += 1
        return Replay(body_hash=f"request-{self.requests}")

    async def orders(self, order: VolumeOrder = DATA, by: Caller | None = None) -> VolumeDetails:
        return await self.sim.system.services.volumes.create(by or self.tenant, order, self.replay())

    async def cluster(self, **more: object) -> ClusterDetails:
        order = ClusterOrder("demo", "eu-1", "H100_SXM", 8, **more)  # type: ignore[arg-type]  # a test's own fields
        return await self.sim.system.services.clusters.create(self.tenant, order, self.replay())

    async def see(self, volume: VolumeDetails) -> VolumeDetails:
        return await self.sim.system.services.volumes.retrieve(self.tenant, volume.id)

    async def see_cluster(self, cluster: ClusterDetails) -> ClusterDetails:
        return await self.sim.system.services.clusters.retrieve(self.tenant, cluster.id)

    async def grows(self, volume: VolumeDetails, size_tib: int) -> VolumeDetails:
        return await self.sim.system.services.volumes.update(self.tenant, volume.id, VolumeChange(size_tib))

    async def deletes(self, volume: VolumeDetails) -> None:
        await self.sim.system.services.volumes.delete(self.tenant, volume.id)

    async def deletes_cluster(self, cluster: ClusterDetails) -> None:
        await self.sim.system.services.clusters.delete(self.tenant, cluster.id)

    async def listed(self, by: Caller | None = None) -> list[str]:
        found = await self.sim.system.services.volumes.list(by or self.tenant)
        return [f"{each.name}:{each.status}" for each in found]

    def sizes(self, cluster: ClusterDetails) -> dict[str, str]:
        shown = self.sim.world.volumes(cluster.id)
        return {name: manifest["spec"]["capacity"]["storage"] for name, manifest in shown.items()}


Tell = Callable[..., object]


@pytest.fixture
async def tale(database_url: str) -> AsyncIterator[Tale]:
    sim = Simulation(database_url, settings=replace(Settings(), volume_limit_tib=100), inline=True)
    await sim.begin(FLEET)
    yield Tale(sim, await sim.caller("acme"))
    assert sim.world.violations == []
    await sim.system.close()


async def test_a_volume_alone_from_order_to_deletion(tale: Tale) -> None:
    made = await tale.orders()
    assert made.status is VolumeStatus.SCHEDULED
    await tale.sim.settle()
    assert (await tale.see(made)).status is VolumeStatus.PROVISIONING
    await tale.sim.run_for(10)
    assert (await tale.see(made)).status is VolumeStatus.AVAILABLE
    assert (await tale.grows(made, 5)).size_tib == 5
    await tale.sim.run_for(10)
    assert [disk.size_tib for disk in tale.sim.world.disks()] == [5]
    await tale.deletes(made)
    assert (await tale.see(made)).status is VolumeStatus.DELETING
    await tale.deletes(made)
    await tale.sim.run_for(15)
    with pytest.raises(NotFound):
        await tale.see(made)
    assert tale.sim.world.disks() == []
    again = await tale.orders()
    assert again.id != made.id, "a name is free again when its volume is gone"


async def test_made_with_a_cluster_it_is_waited_for_shown_and_goes_with_it(tale: Tale) -> None:
    tale.sim.world.set_behaviour(ProvisionFails(times=4), volume="demo-data")
    cluster = await tale.cluster(shared_volume=DATA)
    (volume,) = cluster.volumes
    await tale.sim.run_for(20)
    seen = await tale.see_cluster(cluster)
    assert seen.phase is ClusterPhase.WAITING_FOR_SHARED_VOLUME
    await tale.sim.run_for(90)
    seen = await tale.see_cluster(cluster)
    assert (seen.phase, seen.volumes[0].status) == (ClusterPhase.READY, VolumeStatus.BOUND)
    assert "WAITING_FOR_SHARED_VOLUME" in [each.phase for each in seen.phases]
    assert tale.sizes(cluster) == {"demo-data": "2Ti"}
    await tale.grows(volume, 4)
    await tale.sim.run_for(10)
    assert tale.sizes(cluster) == {"demo-data": "4Ti"}
    assert (await tale.see_cluster(cluster)).phase is ClusterPhase.READY
    with pytest.raises(Conflict, match="attached to cluster"):
        await tale.deletes(volume)
    await tale.deletes_cluster(cluster)
    await tale.sim.run_for(60)
    assert await tale.listed() == []
    assert tale.sim.world.disks() == []


async def test_others_survive_their_cluster(tale: Tale) -> None:
    alone = await tale.orders(replace(DATA, name="alone"))
    first = await tale.cluster(volume_id=alone.id)
    second = await tale.cluster(shared_volume=replace(DATA, name="kept", is_lifecycle_independent=True))
    with pytest.raises(Conflict, match="attached to cluster"):
        await tale.cluster(volume_id=alone.id)
    await tale.sim.run_for(60)
    assert sorted(await tale.listed()) == ["alone:bound", "kept:bound"]
    assert (await tale.see_cluster(first)).phase is ClusterPhase.READY
    await tale.deletes_cluster(first)
    await tale.deletes_cluster(second)
    await tale.sim.run_for(60)
    assert sorted(await tale.listed()) == ["alone:available", "kept:available"]
    third = await tale.cluster(volume_id=alone.id)
    await tale.sim.run_for(60)
    assert tale.sizes(third) == {"alone": "2Ti"}


async def test_a_cluster_is_not_made_with_a_volume_that_cannot_be(tale: Tale) -> None:
    far = await tale.orders(replace(DATA, name="far", region="us-1"))
    stranger = await tale.sim.caller("beta")
    theirs = await tale.orders(replace(DATA, name="theirs"), stranger)
    with pytest.raises(BadInput, match="does not exist in region eu-1"):
        await tale.cluster(volume_id=far.id)
    with pytest.raises(BadInput, match="must be in the same region"):
        await tale.cluster(shared_volume=replace(DATA, region="us-1"))
    for volume_id in (theirs.id, "nonsense", "\0", "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"):
        with pytest.raises(BadInput, match="has no volume"):
            await tale.cluster(volume_id=volume_id)
    with pytest.raises(BadInput, match="not the cluster's project"):
        await tale.cluster(shared_volume=replace(DATA, project_id=stranger.project_id))
    with pytest.raises(BadInput, match="1 to 100 TiB"):
        await tale.cluster(shared_volume=replace(DATA, size_tib=101))
    assert await tale.sim.system.services.clusters.list(tale.tenant) == ()
    assert await tale.listed() == ["far:scheduled"]


async def test_whose_volume_it_is(tale: Tale) -> None:
    made = await tale.orders()
    stranger, operator = await tale.sim.caller("beta"), await tale.sim.caller("ops", Role.OPERATOR)
    service = tale.sim.system.services.volumes
    for act in (
        service.retrieve(stranger, made.id),
        service.update(stranger, made.id, VolumeChange(3)),
        service.delete(stranger, made.id),
    ):
        with pytest.raises(NotFound):
            await act
    assert await service.list(stranger) == ()
    assert await service.list(stranger, tale.tenant.project_id) == ()
    assert [each.id for each in await service.list(operator)] == [made.id]
    with pytest.raises(Forbidden):
        await tale.orders(replace(DATA, project_id=tale.tenant.project_id), stranger)
    theirs = await tale.orders(DATA, stranger)
    assert theirs.name == made.name, "names are unique within a project only"
    with pytest.raises(Conflict, match="already"):
        await tale.orders()


async def test_what_an_order_or_change_may_say(tale: Tale) -> None:
    for wrong, said in (
        (replace(DATA, name="No_Name"), "lower-case"),
        (replace(DATA, size_tib=0), "1 to 100"),
        (replace(DATA, region="mars"), "eu-1, us-1"),
        (replace(DATA, instance_cluster_id="nope"), "no cluster"),
    ):
        with pytest.raises(BadInput, match=said):
            await tale.orders(wrong)
    cluster = await tale.cluster()
    with pytest.raises(BadInput, match="must be in the same region"):
        await tale.orders(replace(DATA, region="us-1", instance_cluster_id=cluster.id))
    made = await tale.orders(replace(DATA, instance_cluster_id=cluster.id))
    with pytest.raises(BadInput, match="only grows"):
        await tale.grows(made, 1)
    with pytest.raises(BadInput, match="1 to 100"):
        await tale.grows(made, 101)
    service = tale.sim.system.services.volumes
    same = {"volume_name": "demo-data", "region": "eu-1", "is_lifecycle_independent": False}
    assert (await service.update(tale.tenant, made.id, VolumeChange(2, same))).size_tib == 2
    with pytest.raises(BadInput, match="region of a volume cannot be changed"):
        await service.update(tale.tenant, made.id, VolumeChange(2, {"region": "us-1"}))


async def test_an_order_sent_twice_is_one(tale: Tale) -> None:
    service = tale.sim.system.services.volumes
    token = Replay("h", token="once")
    made = await service.create(tale.tenant, DATA, token)
    assert await service.create(tale.tenant, DATA, token) == made
    assert await service.create(tale.tenant, DATA, Replay("h", is_retry=True)) == made
    with pytest.raises(Conflict, match="idempotency key"):
        await service.create(tale.tenant, replace(DATA, name="other"), Replay("i", token="once"))


async def test_lost_replies_and_refusals_for_the_moment_do_not_make_two(tale: Tale) -> None:
    lost = (
        ProvisionReplyLost(2),
        ProvisionFails(1),
        VolumeDeleteForgets(2),
        VolumeDeleteReplyLost(1),
    )
    tale.sim.world.set_behaviour(*lost, volume="demo-data")
    made = await tale.orders()
    await tale.sim.run_for(60)
    assert (await tale.see(made)).status is VolumeStatus.AVAILABLE
    assert len(tale.sim.world.disks()) == 1
    await tale.deletes(made)
    await tale.sim.run_for(60)
    assert tale.sim.world.disks() == []
    assert len(tale.sim.world.facts(what=What.VOLUME_GONE)) == 1
    assert len(tale.sim.world.facts(what=What.REPLY_LOST)) == 3


async def test_what_can_never_be_says_why(tale: Tale) -> None:
    tale.sim.world.set_behaviour(ProvisionImpossible("no room left"), volume="demo-data")
    cluster = await tale.cluster(shared_volume=DATA)
    await tale.sim.run_for(60)
    seen = await tale.see_cluster(cluster)
    assert (seen.phase, seen.volumes[0].status) == (
        ClusterPhase.WAITING_FOR_SHARED_VOLUME,
        VolumeStatus.FAILED,
    )
    assert seen.volumes[0].why == "no room left"
    await tale.deletes_cluster(cluster)
    await tale.sim.run_for(60)
    assert await tale.listed() == []


async def test_a_volume_that_does_not_grow_stays_as_it_is(tale: Tale) -> None:
    made = await tale.orders()
    await tale.sim.run_for(10)
    tale.sim.world.set_behaviour(ProvisionImpossible("no room left"), volume="demo-data")
    await tale.grows(made, 50)
    await tale.sim.run_for(10)
    seen = await tale.see(made)
    assert (seen.size_tib, seen.status, seen.why) == (2, VolumeStatus.AVAILABLE, "no room left")


async def test_a_cluster_that_does_not_answer_holds_its_deletion_up_but_not_for_ever(tale: Tale) -> None:
    cluster = await tale.cluster(shared_volume=DATA)
    await tale.sim.run_for(60)
    start = tale.sim.now
    tale.sim.world.unreachable(cluster.id, start, start.replace(year=start.year + 1), ("drop_volume",))
    await tale.deletes_cluster(cluster)
    await tale.sim.run_for(300)
    assert (await tale.see_cluster(cluster)).phase is ClusterPhase.DELETING
    await tale.sim.run_for(500)
    with pytest.raises(NotFound):
        await tale.see_cluster(cluster)
    assert tale.sim.world.disks() == []


async def _life(
    sim: Simulation, flaky: Flaky, strikes: Sequence[int], error: BaseException
) -> tuple[int, int]:
    """A cluster with its volume, grown and taken down, with faults; answers calls made and deaths died."""
    tale = Tale(sim, await sim.caller("acme"))
    for strike in strikes:
        flaky.strike(strike, error, after=True)
    deaths = 0

    async def passes(seconds: float) -> None:
        nonlocal deaths
        end = sim.now.timestamp() + seconds
        while sim.now.timestamp() < end:
            try:
                await sim.run_for(end - sim.now.timestamp())
            except Killed:
                deaths += 1
                await sim.restart()

    cluster = await tale.cluster(shared_volume=DATA)
    await passes(45)
    (volume,) = (await tale.see_cluster(cluster)).volumes
    assert volume.status is VolumeStatus.BOUND
    await tale.grows(volume, 3)
    await passes(20)
    assert tale.sizes(cluster) == {"demo-data": "3Ti"}
    await tale.deletes_cluster(cluster)
    await passes(50)
    assert await tale.listed() == []
    assert sim.world.disks() == []
    assert sim.world.violations == []
    assert len(sim.world.facts(what=What.VOLUME_READY)) == 2
    assert len(sim.world.facts(what=What.VOLUME_GONE)) == 1
    return len(flaky.calls), deaths


async def _lived(
    database_url: str, number: int, strikes: Sequence[int], error: BaseException
) -> tuple[int, int]:
    """A life in the database of the one before: nothing that a life leaves disturbs the next."""
    flaky = Flaky()
    sim = Simulation(database_url, seed=number, settings=CALM, storage=flaky.wrap, inline=True)
    await sim.begin(FLEET)
    answer = await _life(sim, flaky, strikes, error)
    await sim.system.close()
    return answer


async def test_killed_after_each_call_to_storage_it_ends_the_same(database_url: str) -> None:
    calls, _ = await _lived(database_url, 0, (), Killed())
    assert calls >= 5
    for strike in range(1, calls + 1):
        _, deaths = await _lived(database_url, strike, (strike,), Killed())
        assert deaths == 1, strike


@pytest.mark.parametrize("first", [1, 2])
async def test_with_every_second_reply_of_storage_lost_it_ends_the_same(
    database_url: str, first: int
) -> None:
    strikes = range(first, 40, 2)
    calls, _ = await _lived(database_url, first, strikes, Transient("the reply was lost"))
    assert calls >= 5


@pytest.mark.parametrize("verb", ["put_volume", "drop_volume"])
@pytest.mark.parametrize("error", [Killed(), DriverError("no answer")], ids=["killed", "lost"])
async def test_a_fault_after_a_call_to_the_cluster_changes_nothing_in_the_end(
    database_url: str, verb: str, error: BaseException
) -> None:
    flaky = Flaky()
    sim = Simulation(database_url, settings=CALM, driver=flaky.wrap, inline=True)
    await sim.begin(FLEET)
    flaky.strike_verb(verb, error, after=True)
    _, deaths = await _life(sim, flaky, (), error)
    assert deaths == (1 if isinstance(error, Killed) else 0)
    assert len(sim.world.facts(what=What.VOLUME_SHOWN)) == 2
    assert len(sim.world.facts(what=What.VOLUME_DROPPED)) == 1
    await sim.system.close()
