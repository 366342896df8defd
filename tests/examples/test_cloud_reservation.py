"""examples/cloud-reservation: the provider suite, and a cloud's bad habits."""

from __future__ import annotations

import base64
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.providers.base import InstanceOrder, InstanceState, OutOfCapacity, Permanent, Transient
from tests.contract.exec_rig import ExecProviderRig
from tests.contract.rigs import eventually
from tests.examples.contract import RESTARTS, SUITE
from tests.examples.fakes.cloud import Cloud, Refused

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "cloud-reservation" / "cloud_reservation.py"
VERBS = ("create", "status", "stop", "delete", "list", "reboot")
globals().update(SUITE)
globals().update(RESTARTS)


class CloudRig(ExecProviderRig):
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        argv = [sys.executable, "-IS", str(PROGRAM), str(cloud.config)]
        super().__init__(dict.fromkeys(VERBS, argv))

    async def pass_time(self, seconds: float) -> None:
        await super().pass_time(seconds)
        self.cloud.pass_time()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with Cloud(tmp_path) as made:
        yield made


@pytest.fixture
def rig(cloud: Cloud) -> CloudRig:
    return CloudRig(cloud)


@pytest.fixture
def machines(rig: CloudRig) -> CloudRig:
    return rig


async def state(rig: CloudRig, order: InstanceOrder) -> InstanceState | None:
    found = await rig.provider.status(order.node_uid)
    return found.state if found else None


async def test_a_launch_into_the_reservation_that_joins(rig: CloudRig, cloud: Cloud) -> None:
    order = replace(rig.order("slot-1"), labels={"a/b": "c"}, taints=("k=v:NoSchedule",))
    made = await rig.provider.create(order)
    assert (made.instance_id, made.state) == ("i-0000", InstanceState.STARTING)
    asked = cloud.machines["i-0000"].parameters
    where = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert (asked[where], asked["ClientToken"]) == ("cr-1", order.node_uid)
    assert cloud.machines["i-0000"].tags == {
        "Name": order.node_name,
        "ebbtide-node-uid": order.node_uid,
        "ebbtide-host": "slot-1",
        "ebbtide-pool": "h100",
    }
    script = base64.b64decode(asked["UserData"]).decode()
    discovery, config = (
        json.loads(shlex.split(line)[2]) for line in script.splitlines() if line.startswith("printf")
    )
    assert discovery["clusters"][0]["cluster"]["server"] == order.join["server"]
    assert config["discovery"]["tlsBootstrapToken"] == order.join["token"]
    assert config["nodeRegistration"]["taints"] == [{"key": "k", "value": "v", "effect": "NoSchedule"}]


async def test_a_launch_whose_answer_was_lost_finds_the_same_instance(rig: CloudRig, cloud: Cloud) -> None:
    """G4: also while the cloud does not list it yet, and with another join token."""
    cloud.lag = 2
    order = rig.order("slot-1")
    await rig.provider.create(order)
    assert (await rig.provider.create(order)).instance_id == "i-0000"  # by its token
    later = replace(order, join={**order.join, "token": "zzzzzz.0123456789abcdef"})
    cloud.machines["i-0000"].seen_after = 1
    with pytest.raises(Transient, match="IdempotentParameterMismatch"):
        await rig.provider.create(later)
    assert (await rig.provider.create(later)).instance_id == "i-0000"  # by its tag
    assert len(cloud.machines) == 1


async def test_what_the_cloud_refuses(rig: CloudRig, cloud: Cloud) -> None:
    cloud.slots = 0
    with pytest.raises(OutOfCapacity, match="ReservationCapacityExceeded: the reservation is full"):
        await rig.provider.create(rig.order("slot-1"))
    for refusal, kind in (
        (Refused(400, "InvalidAMIID.NotFound"), Permanent),
        (Refused(503, "RequestLimitExceeded"), Transient),
        (Refused(502, ""), Transient),
    ):
        cloud.trouble["RunInstances"] = [refusal]
        with pytest.raises(kind):
            await rig.provider.create(rig.order("slot-1"))
    with pytest.raises(Permanent, match="pool elsewhere is not in the configuration"):
        await rig.provider.create(rig.order("slot-1", pool="elsewhere"))


async def test_a_stop_is_confirmed_when_the_instance_has_ended(rig: CloudRig, cloud: Cloud) -> None:
    order = rig.order("slot-1")
    await rig.provider.create(order)
    assert not await rig.provider.stop(order.node_uid)
    assert not await rig.provider.stop(order.node_uid)
    assert cloud.actions.count("TerminateInstances") == 1
    await rig.pass_time(60)
    assert await rig.provider.stop(order.node_uid)
    deletion = await rig.provider.delete(order.node_uid)
    assert (deletion.gone, deletion.wiped_by) == (
        True,
        "the instance was terminated, its volumes deleted with it",
    )


async def test_one_that_the_cloud_ended_is_off_until_it_is_forgotten(rig: CloudRig, cloud: Cloud) -> None:
    order = rig.order("slot-1")
    await rig.provider.create(order)
    await rig.pass_time(60)
    cloud.machines["i-0000"].state = "shutting-down"
    assert await state(rig, order) is InstanceState.FAILED
    await rig.pass_time(60)
    assert await state(rig, order) is InstanceState.STOPPED
    assert await rig.provider.list("h100") == []
    cloud.machines.clear()
    assert await state(rig, order) is None


async def test_every_page_of_a_list_is_read(rig: CloudRig, cloud: Cloud) -> None:
    orders = [rig.order(f"slot-{number}") for number in range(5)]
    for order in orders:
        await rig.provider.create(order)
    listed = await rig.provider.list("h100")
    assert [one.node_uid for one in listed] == [order.node_uid for order in orders]
    assert [one.host_name for one in listed] == [order.host_name for order in orders]


async def test_wiped_first_is_what_a_new_instance_always_is(rig: CloudRig, cloud: Cloud) -> None:
    order = replace(rig.order("slot-1"), wipe="between_projects", wipe_first=True)
    await rig.provider.create(order)
    await rig.pass_time(60)
    found = await rig.provider.status(order.node_uid)
    assert found is not None
    assert (found.state, found.wiped_by) == (InstanceState.UP, "a new instance with new volumes")


async def test_a_wrong_key_is_said(rig: CloudRig, cloud: Cloud) -> None:
    (cloud.folder / "keys.json").write_text(json.dumps({"id": "AKIDEXAMPLE", "secret": "another"}))
    with pytest.raises(Permanent, match="AuthFailure: the signature is wrong"):
        await rig.provider.create(rig.order("slot-1"))


async def test_the_contract_holds_while_the_cloud_lags(rig: CloudRig, cloud: Cloud) -> None:
    cloud.lag = 3
    order = rig.order("slot-1")
    await rig.provider.create(order)

    async def up() -> bool:
        return await state(rig, order) is InstanceState.UP

    await eventually(rig, up)
