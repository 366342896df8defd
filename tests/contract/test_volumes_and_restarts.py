"""What every driver and provider must do about PersistentVolumes and about restarts in place."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ebbtide.core.volumes import DEFAULT_TEMPLATE, VolumeFacts, render
from ebbtide.drivers.base import DriverError, NodeRef, Notice
from ebbtide.providers.base import InstanceState
from tests.contract.rigs import DRIVERS, PROVIDERS, DriverRig, ProviderRig, eventually

NOTICE = Notice("EbbtideNodeRestarting", "remediation REBOOT_VM", datetime(2027, 1, 1, tzinfo=UTC))


@pytest.fixture(params=sorted(DRIVERS))
def rig(request: pytest.FixtureRequest) -> DriverRig:
    return DRIVERS[request.param]()


@pytest.fixture(params=sorted(PROVIDERS))
def machines(request: pytest.FixtureRequest) -> ProviderRig:
    return PROVIDERS[request.param]()


def manifest(size_tib: int) -> dict[str, object]:
    facts = VolumeFacts("demo-data", "v-1", "vol-1", size_tib, "eu-1", "proj-1", "c-1")
    return render(DEFAULT_TEMPLATE, facts)


async def test_a_volume_is_put_grown_and_dropped_each_as_often_as_you_like(rig: DriverRig) -> None:
    await rig.add_node()
    for size_tib in (1, 1, 2, 2):
        await rig.driver.put_volume(rig.cluster, manifest(size_tib))
    await eventually(rig, lambda: rig.driver.drop_volume(rig.cluster, "demo-data"))
    assert await rig.driver.drop_volume(rig.cluster, "demo-data")


async def test_a_cluster_that_does_not_answer_takes_no_volume(rig: DriverRig) -> None:
    await rig.add_node()
    await rig.cut_off(30)
    with pytest.raises(DriverError):
        await rig.driver.put_volume(rig.cluster, manifest(1))
    with pytest.raises(DriverError):
        await rig.driver.drop_volume(rig.cluster, "demo-data")


async def _cordoned(rig: DriverRig, node: NodeRef) -> bool:
    (seen,) = [one for one in await rig.driver.observe(rig.cluster) if one.uid == node.uid]
    return seen.cordoned


async def test_a_notice_that_was_taken_back_can_be_given_again(rig: DriverRig) -> None:
    node = await rig.add_node()
    for _ in range(2):
        await rig.driver.notify(rig.cluster, node, NOTICE)
        assert await _cordoned(rig, node)
        await rig.driver.take_back(rig.cluster, node, NOTICE.reason)
        await rig.driver.take_back(rig.cluster, node, NOTICE.reason)
        assert not await _cordoned(rig, node)


@pytest.mark.parametrize("verb", ["reboot", "power_cycle"])
async def test_a_restart_happens_once_per_reference_and_ends_up(machines: ProviderRig, verb: str) -> None:
    restart = getattr(machines.provider, verb)
    order = machines.order("h1")
    made = await machines.provider.create(order)

    async def up() -> bool:
        instance = await machines.provider.status(order.node_uid)
        return instance is not None and instance.state is InstanceState.UP

    await eventually(machines, up)
    for reference in ("first", "second"):
        begun = await restart(order.node_uid, reference)
        assert begun is not None
        assert begun.state is InstanceState.STARTING
        await eventually(machines, up)
        again = await restart(order.node_uid, reference)
        assert (again.state, again.instance_id) == (InstanceState.UP, made.instance_id)


async def test_what_is_not_there_cannot_restart(machines: ProviderRig) -> None:
    assert await machines.provider.reboot(machines.new_id(), "ref") is None
    assert await machines.provider.power_cycle(machines.new_id(), "ref") is None
