"""Nodes that kwok plays: they register as kubelets do, their pods end as they should, and off is off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest
import pytest_asyncio

from ebbtide.clock import monotonic
from ebbtide.core import marks
from ebbtide.providers.base import InstanceOrder
from tests.live.kubectl import Kubectl, Refused
from tests.live.kwok import KwokRig

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]


@dataclass
class Place:
    """A cluster, and kubectl as its tenant."""

    rig: KwokRig
    cluster_id: str
    kubectl: Kubectl
    hosts: int = 0

    async def node(self) -> InstanceOrder:
        self.hosts += 1
        return await self.rig.node(self.cluster_id, f"host-{self.hosts}")

    async def pod(self, node: str, name: str, grace_s: int = 30, **behaviour: str) -> Json:
        """A pod that runs on the node."""
        notes = {f"ebbtide/{key.replace('_', '-')}": value for key, value in behaviour.items()}
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "annotations": notes},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": grace_s,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "main", "image": "none"}],
                },
            }
        )
        return await self.until(name, lambda pod: pod["status"].get("phase") == "Running")

    async def until(self, name: str, holds: Any, limit_s: float = 20) -> Json:
        for _ in range(int(limit_s * 5)):
            pod = self.kubectl.one("pod", name)
            if holds(pod):
                return pod
            await asyncio.sleep(0.2)
        raise AssertionError(f"not so within {limit_s} s: {pod['status']}")

    async def lives_s(self, name: str) -> float:
        """Until the pod is gone, in seconds; or 15."""
        begun = asyncio.get_running_loop().time()
        while (lasted := asyncio.get_running_loop().time() - begun) < 15:
            if not self.kubectl("get", "pod", name, "--ignore-not-found"):
                break
            await asyncio.sleep(0.1)
        return lasted

    async def until_node_is(self, name: str, ready: str) -> None:
        for _ in range(200):
            (found,) = [
                each
                for each in self.kubectl.one("node", name)["status"]["conditions"]
                if each["type"] == "Ready"
            ]
            if found["status"] == ready:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"the node is still {found}")

    def tell(self, name: str, grace_s: int) -> None:
        self.kubectl("delete", "pod", name, f"--grace-period={grace_s}", "--wait=false")

    def exit_code(self, pod: Json) -> int:
        return int(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, programs: object, kwok_program: object, kubectl_program: Path
) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("kwok")
    rig = KwokRig(folder / "data")
    await rig.kwok.begin()
    try:
        cluster_id = await rig.cluster()
        yield Place(rig, cluster_id, await rig.kubectl(kubectl_program, cluster_id, folder / "kubeconfig"))
    finally:
        await rig.kwok.close()


async def test_a_node_registers_with_all_that_was_ordered(place: Place) -> None:
    order = await place.node()
    node = place.kubectl.one("node", order.node_name)
    assert dict(order.labels).items() <= node["metadata"]["labels"].items()
    assert marks.TAINT_INITIALIZING in [taint["key"] for taint in node["spec"]["taints"]]
    assert node["status"]["allocatable"][marks.GPU] == "8"
    ready = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
    assert [each["status"] for each in ready] == ["True"]
    lease = json.loads(
        place.kubectl("get", "lease", order.node_name, "--namespace=kube-node-lease", "--output=json")
    )
    assert lease["spec"]["holderIdentity"] == order.node_name
    # It goes with the Node, even if the kubelet still lives then.
    assert [each["uid"] for each in lease["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


async def test_the_tenant_is_an_administrator_and_we_are_not(place: Place, tmp_path: Path) -> None:
    assert place.kubectl("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
    assert place.kubectl("auth", "whoami", "--output=jsonpath={.status.userInfo.username}") == "tidal-admin"
    plane = await place.rig.provider.control_plane(place.cluster_id)
    assert plane is not None
    assert plane.driver_kubeconfig is not None
    path = tmp_path / "ours"
    path.write_text(plane.driver_kubeconfig)
    ours = Kubectl(place.kubectl.program, path)
    assert ours("auth", "can-i", "patch", "nodes").strip() == "yes"
    with pytest.raises(Refused):
        ours("get", "secrets", "--all-namespaces")


async def test_the_tenant_cannot_forge_our_marks(place: Place) -> None:
    order = await place.node()
    with pytest.raises(Refused, match="written by Ebbtide only"):
        place.kubectl("label", "node", order.node_name, "--overwrite", f"{marks.LABEL_CLASS}=standard")


async def test_pods_end_on_sigterm_or_with_their_grace(place: Place) -> None:
    node = (await place.node()).node_name
    for name, behaviour in (
        ("obedient", {}),
        ("slow", {"exits_after_s": "4"}),
        ("deaf", {"obeys": "false"}),
        ("too-slow", {"exits_after_s": "60"}),
    ):
        await place.pod(node, name, **behaviour)
    for name in ("obedient", "slow", "deaf", "too-slow"):
        place.tell(name, 6)
    lived = dict(
        zip(
            ("obedient", "slow", "deaf", "too-slow"),
            await asyncio.gather(*(place.lives_s(one) for one in ("obedient", "slow", "deaf", "too-slow"))),
            strict=True,
        )
    )
    assert lived["obedient"] < 3
    assert 2.5 < lived["slow"] < 6
    assert 4 < lived["deaf"] < 9
    assert 4 < lived["too-slow"] < 9


async def test_a_grace_that_is_shortened_counts_from_the_first_sigterm(place: Place) -> None:
    await place.pod((await place.node()).node_name, "shortened", obeys="false", grace_s=300)
    place.tell("shortened", 200)
    await asyncio.sleep(2)
    place.tell("shortened", 5)
    assert await place.lives_s("shortened") < 5


async def test_a_pod_finishes_by_itself(place: Place) -> None:
    await place.pod((await place.node()).node_name, "short", finishes_after_s="2")
    pod = await place.until("short", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert place.exit_code(pod) == 0


async def test_nothing_happens_on_a_machine_that_is_off(place: Place) -> None:
    """Not even what kwok had planned; and its neighbour's pods end as if nothing had been."""
    off, neighbour = await place.node(), await place.node()
    before = await place.pod(off.node_name, "frozen", exits_after_s="3", grace_s=60)
    await place.pod(neighbour.node_name, "beside", exits_after_s="3", grace_s=60)
    place.tell("frozen", 60)
    place.tell("beside", 60)
    assert await place.rig.provider.stop(off.node_uid)
    assert await place.rig.provider.stop(off.node_uid)
    assert await place.lives_s("beside") < 6
    await asyncio.sleep(2)
    after = place.kubectl.one("pod", "frozen")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    await place.until_node_is(off.node_name, "Unknown")
    assert place.kubectl.one("node", neighbour.node_name)["status"]["conditions"][-1]["status"] == "True"


async def test_a_machine_is_off_also_while_the_api_server_hangs(place: Place) -> None:
    """Power does not depend on the cluster; and when it answers again, the machine does nothing more."""
    order = await place.node()
    await place.pod(order.node_name, "stuck", exits_after_s="4", grace_s=60)
    place.tell("stuck", 60)
    (server,) = servers(place.rig.folder, "kube-apiserver")
    os.kill(server, signal.SIGSTOP)
    try:
        begun = monotonic()
        assert await place.rig.provider.stop(order.node_uid)
        assert monotonic() - begun < 5
        await asyncio.sleep(3)
    finally:
        os.kill(server, signal.SIGCONT)
    other = await place.node()
    await place.pod(other.node_name, "beside-stuck", exits_after_s="1")
    place.tell("beside-stuck", 30)
    assert await place.lives_s("beside-stuck") < 6  # kwok plays again
    pod = place.kubectl.one("pod", "stuck")
    assert pod["status"]["phase"] == "Running"
    assert marks_of(place, order.node_name).get("ebbtide/machine") is None


def marks_of(place: Place, node: str) -> Json:
    labels: Json = place.kubectl.one("node", node)["metadata"]["labels"]
    return labels


def servers(folder: Path, name: str) -> list[int]:
    """Process ids of servers that work below this folder."""
    found = psutil.process_iter(["cwd", "name", "pid"])
    return [
        each.info["pid"]
        for each in found
        if (each.info["cwd"] or "").startswith(str(folder)) and each.info["name"] == name[:15]
    ]


async def test_a_machine_that_restarts_runs_its_pods_again(place: Place) -> None:
    order = await place.node()
    await place.pod(order.node_name, "again")
    assert await place.rig.provider.power_cycle(order.node_uid, "one")
    pod = await place.until("again", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    assert pod["status"]["phase"] == "Running"
    place.tell("again", 30)
    assert await place.lives_s("again") < 4


async def test_a_kubelet_that_is_started_again_brings_its_node_back(place: Place) -> None:
    order = await place.node()
    first = place.kubectl.one("node", order.node_name)["metadata"]["uid"]
    place.kubectl("delete", "node", order.node_name)
    await place.rig.kwok.restart_kubelet(order.node_uid)
    for _ in range(50):
        if place.kubectl("get", "node", order.node_name, "--ignore-not-found"):
            break
        await asyncio.sleep(0.1)
    again = place.kubectl.one("node", order.node_name)
    assert again["metadata"]["uid"] != first
    assert again["metadata"]["labels"][marks.LABEL_NODE_UID] == order.node_uid
    # Off, it does not come back.
    assert await place.rig.provider.stop(order.node_uid)
    place.kubectl("delete", "node", order.node_name)
    await place.rig.kwok.restart_kubelet(order.node_uid)
    await asyncio.sleep(1.5)
    assert not place.kubectl("get", "node", order.node_name, "--ignore-not-found")


async def test_daemon_pods_run_on_every_node(place: Place) -> None:
    order = await place.node()
    place.kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}},
                    "spec": {
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{"name": "main", "image": "none"}],
                    },
                },
            },
        }
    )
    late = await place.node()
    for node in (order, late):
        selector = f"--field-selector=spec.nodeName={node.node_name},status.phase=Running"
        for _ in range(100):
            if place.kubectl.items("pods", "--selector=app=agent", selector):
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError(f"no daemon pod runs on {node.node_name}")
    place.kubectl("delete", "daemonset", "agent", "--timeout=20s")
