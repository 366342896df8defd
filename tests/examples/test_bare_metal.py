"""examples/bare-metal: the provider suite, and what can go wrong with metal."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.providers.base import InstanceOrder, InstanceState, OutOfCapacity, Permanent, Transient
from tests.contract.exec_rig import ExecProviderRig
from tests.contract.rigs import eventually
from tests.examples.contract import RESTARTS, SUITE
from tests.examples.fakes.rack import Rack

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "bare-metal" / "bare_metal.py"
VERBS = ("create", "status", "stop", "delete", "list", "reboot")
globals().update(SUITE)
globals().update(RESTARTS)


class RackRig(ExecProviderRig):
    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        argv = ["env", f"RACK={rack.folder}", f"PATH={rack.bin}:/usr/bin:/bin"]
        argv += [sys.executable, "-IS", str(PROGRAM), str(rack.config)]
        super().__init__(dict.fromkeys(VERBS, argv))

    async def pass_time(self, seconds: float) -> None:
        await super().pass_time(seconds)
        self.rack.pass_time()

    def said(self) -> str:
        """What the last program wrote for people."""
        return self.memory.notes[-1][1].output


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    folder = tmp_path / "rack"
    folder.mkdir()
    with Rack(folder, {"h1": "h100", "h2": "h100", "x1": "another"}) as made:
        yield made


@pytest.fixture
def rig(rack: Rack) -> RackRig:
    return RackRig(rack)


@pytest.fixture
def machines(rig: RackRig) -> RackRig:
    return rig


async def up(rig: RackRig, order: InstanceOrder) -> None:
    await rig.provider.create(order)
    await eventually(rig, lambda: is_(rig, order, InstanceState.UP))


async def is_(rig: RackRig, order: InstanceOrder, state: InstanceState) -> bool:
    found = await rig.provider.status(order.node_uid)
    return found is not None and found.state is state


async def gone(rig: RackRig, order: InstanceOrder) -> bool:
    deletion = await rig.provider.delete(order.node_uid)
    return deletion.gone and deletion.wiped


async def test_the_machine_joins_with_what_it_was_given(rig: RackRig, rack: Rack) -> None:
    order = replace(rig.order("h1"), labels={"a/b": "c", "d": "e"}, taints=("k=v:NoSchedule", "x:NoExecute"))
    await up(rig, order)
    config = json.loads(rack.read("h1", "joined-with"))
    assert config["discovery"]["tlsBootstrapToken"] == order.join["token"]
    registration = config["nodeRegistration"]
    assert registration["name"] == order.node_name
    assert registration["taints"] == [
        {"key": "k", "value": "v", "effect": "NoSchedule"},
        {"key": "x", "value": "", "effect": "NoExecute"},
    ]
    assert registration["kubeletExtraArgs"] == [{"name": "node-labels", "value": "a/b=c,d=e"}]
    cluster = json.loads(rack.read("h1", "joined-by"))["clusters"][0]["cluster"]
    assert cluster["server"] == order.join["server"]
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == order.join["ca"]
    left = (rack.root("h1") / "run/ebbtide").iterdir()
    assert list(left) == []  # the token is not left lying about
    assert not rack.has("h1", "kubelet-enabled")


async def test_a_host_powered_on_to_be_wiped_runs_nothing_of_its_tenant(rig: RackRig, rack: Rack) -> None:
    order = rig.order("h1")
    await up(rig, order)
    await eventually(rig, lambda: rig.provider.stop(order.node_uid))
    assert rack.resets("h1")[-1] == "ForceOff"
    seen = []

    async def ended() -> bool:
        seen.append(rack.has("h1", "kubelet-active"))
        return await gone(rig, order)

    await eventually(rig, ended)
    assert not any(seen)
    assert rack.read("h1", "discarded").splitlines() == ["/dev/nvme1n1", "/dev/nvme2n1"]
    assert not rack.has("h1", "var/lib/kubelet")
    again = await rig.provider.delete(order.node_uid)
    assert again.wiped_by.startswith("kubeadm reset; blkdiscard of 2 drives")
    assert rack.tags["h1"] == ""


async def test_a_machine_that_hangs_is_fenced_all_the_same(rig: RackRig, rack: Rack) -> None:
    """Its controller knows whose it is, and cuts the power; no answer of the host is needed."""
    order = rig.order("h1")
    await up(rig, order)
    rack.write("h1", "hung")
    assert not await rig.provider.stop(order.node_uid)  # sent, and not confirmed yet
    await rig.pass_time(5)
    assert await rig.provider.stop(order.node_uid)
    assert await is_(rig, order, InstanceState.STOPPED)


async def test_a_stop_is_confirmed_only_by_the_power_being_off(rig: RackRig, rack: Rack) -> None:
    order = rig.order("h1")
    await up(rig, order)
    for _ in range(3):
        assert not await rig.provider.stop(order.node_uid)
        rack.pending.pop("h1")  # the controller took the order and did nothing
    assert not await rig.provider.stop(order.node_uid)


async def test_a_wipe_that_fails_is_tried_again_and_said(rig: RackRig, rack: Rack) -> None:
    order = rig.order("h1")
    await up(rig, order)
    rack.write("h1", "disk-broken")
    for _ in range(4):
        assert not await gone(rig, order)
        await rig.pass_time(5)
    assert "Input/output error" in rig.said()
    assert rack.tags["h1"] != ""  # it is still marked
    rack.remove("h1", "disk-broken")
    await eventually(rig, lambda: gone(rig, order))


@pytest.mark.parametrize("text", ["/dev/nvme1n1", "\n/dev/nvme1n1\n\n"])
async def test_every_drive_that_is_named_is_wiped(rig: RackRig, rack: Rack, text: str) -> None:
    rack.write("h1", "etc/ebbtide/data-disks", text)
    order = rig.order("h1")
    await up(rig, order)
    await eventually(rig, lambda: gone(rig, order))
    assert rack.read("h1", "discarded").splitlines() == ["/dev/nvme1n1"]
    again = await rig.provider.delete(order.node_uid)
    assert again.wiped_by.startswith("kubeadm reset; blkdiscard of 1 drives")


async def test_a_host_that_names_no_drive_is_not_wiped(rig: RackRig, rack: Rack) -> None:
    rack.write("h1", "etc/ebbtide/data-disks", "\n")
    order = rig.order("h1")
    await up(rig, order)
    for _ in range(6):
        assert not await gone(rig, order)
        await rig.pass_time(5)
    assert "/etc/ebbtide/data-disks names no drive" in rig.said()


async def test_wiped_first_before_another_projects_machine(rig: RackRig, rack: Rack) -> None:
    first = replace(rig.order("h1"), wipe="between_projects")
    await up(rig, first)
    await eventually(rig, lambda: gone(rig, first))
    assert (await rig.provider.delete(first.node_uid)).wiped_by == ""
    assert not rack.has("h1", "discarded")
    assert not rack.has("h1", "kubelet-active")
    same = replace(rig.order("h1"), wipe="between_projects")
    await up(rig, same)
    assert not rack.has("h1", "discarded")
    await eventually(rig, lambda: gone(rig, same))
    other = replace(rig.order("h1"), wipe="between_projects", wipe_first=True)
    await up(rig, other)
    assert len(rack.read("h1", "discarded").splitlines()) == 2
    found = await rig.provider.status(other.node_uid)
    assert found is not None
    assert found.wiped_by.startswith("kubeadm reset; blkdiscard of 2 drives")


async def test_a_join_that_fails_says_why(rig: RackRig, rack: Rack) -> None:
    rack.write("h1", "broken")
    order = rig.order("h1")
    await rig.provider.create(order)
    await eventually(rig, lambda: is_(rig, order, InstanceState.FAILED))
    found = await rig.provider.status(order.node_uid)
    assert found is not None
    assert "the CRI endpoint does not answer" in found.why
    rack.remove("h1", "broken")
    await eventually(rig, lambda: gone(rig, order))
    await up(rig, rig.order("h1"))


async def test_a_host_that_another_node_has_is_not_touched(rig: RackRig, rack: Rack) -> None:
    order = rig.order("h1")
    await up(rig, order)
    with pytest.raises(OutOfCapacity, match=f"the host still has node {order.node_uid}"):
        await rig.provider.create(rig.order("h1"))
    late = rig.order("h1")
    rig.memory.rows[late.node_uid] = rig.memory._new(late)  # as after a restored database
    before = list(rack.asked)
    assert await rig.provider.stop(late.node_uid)
    assert await rig.provider.status(late.node_uid) is None
    assert (await rig.provider.delete(late.node_uid)).gone
    assert [one[0] for one in rack.asked[len(before) :]] == ["GET"] * 3
    assert await is_(rig, order, InstanceState.UP)


async def test_controllers_that_do_not_answer(rig: RackRig, rack: Rack) -> None:
    order, other = rig.order("h1"), rig.order("h2")
    await up(rig, order)
    await up(rig, other)
    rack.silent.add("h1")
    for call in (rig.provider.stop, rig.provider.delete, rig.provider.status):
        with pytest.raises(Transient, match="does not answer"):
            await call(order.node_uid)
    assert [one.host_name for one in await rig.provider.list("h100")] == ["h2"]
    with pytest.raises(Permanent, match="host h9 is not in the configuration"):
        await rig.provider.create(rig.order("h9"))


async def test_a_reboot_of_a_host_that_hangs(rig: RackRig, rack: Rack) -> None:
    order = rig.order("h1")
    await up(rig, order)
    rack.write("h1", "hung")
    begun = await rig.provider.power_cycle(order.node_uid, "r1")
    assert begun is not None
    assert begun.state is InstanceState.STARTING
    assert not await is_(rig, order, InstanceState.UP)
    rack.remove("h1", "hung")
    await eventually(rig, lambda: is_(rig, order, InstanceState.UP))
    assert rack.has("h1", "kubelet-active")
    assert rack.resets("h1") == ["On", "ForceRestart"]


def test_the_host_script_is_plain_sh() -> None:
    assert shutil.which("sh")
    text = (PROGRAM.parent / "host.sh").read_text()
    assert "[[" not in text
    assert "local " not in text


def names(found: dict[str, Any]) -> list[str]:
    return sorted(found)


def test_the_suite_is_the_whole_suite() -> None:
    assert len(names(SUITE)) >= 9
    assert len(names(RESTARTS)) == 2
