"""A cluster that exists is imported, gets preemptible nodes, and is detached: on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from ebbtide import assembly
from ebbtide.clock import monotonic
from ebbtide.core import marks
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import NodeRef
from ebbtide.errors import BadInput, NotFound
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.rights import apply_rights
from ebbtide.providers.base import ControlPlane as Plane
from ebbtide.providers.base import Deletion, Instance, InstanceOrder, InstanceState
from ebbtide.services.details import Caller, ClusterDetails, ImportChange, ImportOrder, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.settings import Settings
from tests.live.rights_bed import Bed, kubeconfig_of

Json = dict[str, Any]
FLEET = parse("""
regions: {here: {}}
pools:
  h100: {region: here, gpu_type: H100_SXM, price_per_gpu_hour: 2, turn_over_s: 1, hosts: [a, b]}
""")
SELECTOR = "pool=reserved"
_LIMIT_S = 40
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


@dataclass
class PaperMachines:
    """A provider whose machines are Node objects that somebody registers."""

    admin: KubeClient
    made: dict[str, Instance] = field(default_factory=dict)
    planes_asked_for: list[str] = field(default_factory=list)

    async def create(self, order: InstanceOrder) -> Instance:
        assert order.join["token"]
        assert order.join["server"] == "https://announced.example:6443"
        if order.node_uid not in self.made:
            taints = [taint.partition("=") for taint in order.taints]
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": order.node_name, "labels": dict(order.labels)},
                "spec": {
                    "taints": [
                        {"key": key, "value": rest.split(":")[0], "effect": rest.split(":")[1]}
                        for key, _, rest in taints
                    ]
                },
            }
            await register(self.admin, node)
            self.made[order.node_uid] = Instance(
                f"i-{order.node_uid[:8]}", order.node_uid, order.host_name, InstanceState.UP
            )
        return self.made[order.node_uid]

    async def status(self, node_uid: str) -> Instance | None:
        return self.made.get(node_uid)

    async def stop(self, node_uid: str) -> bool:
        return True

    async def delete(self, node_uid: str) -> Deletion:
        self.made.pop(node_uid, None)
        return Deletion(gone=True, wiped=True, wiped_by="paper")

    async def list(self, pool: str) -> list[Instance]:
        return list(self.made.values())

    async def list_control_planes(self) -> list[str]:
        return []

    async def create_control_plane(self, cluster_id: str, name: str) -> Plane:
        self.planes_asked_for.append(cluster_id)
        return Plane(cluster_id, ready=False)

    async def delete_control_plane(self, cluster_id: str) -> bool:
        self.planes_asked_for.append(cluster_id)
        return True


async def register(admin: KubeClient, node: Json, gpus: int = 8) -> None:
    """What a kubelet does when it starts, and a device plugin."""
    await admin.create("/api/v1/nodes", node)
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", marks.GPU: str(gpus)}
    status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [READY]}}
    await admin.patch(f"/api/v1/nodes/{node['metadata']['name']}/status", status, kind=PatchKind.STRATEGIC)


@dataclass
class Ground:
    """A whole Ebbtide that runs, and the cluster that it is to work in."""

    bed: Bed
    system: assembly.System
    machines: PaperMachines
    operator: Caller
    tenant: Caller

    async def imports(self, name: str, kubeconfig: str, *, selector: str = SELECTOR, gpus: int = 0) -> str:
        order = ImportOrder(name, "here", "H100_SXM", kubeconfig, selector, gpus, self.tenant.project_id)
        made = await self.system.services.imports.create(self.operator, order, Replay(name))
        return made.id

    async def see(self, cluster_id: str) -> ClusterDetails:
        return await self.system.services.clusters.retrieve(self.tenant, cluster_id)

    async def until(self, cluster_id: str, holds: Callable[[ClusterDetails], bool]) -> ClusterDetails:
        late = monotonic() + _LIMIT_S
        while not holds(seen := await self.see(cluster_id)):
            assert monotonic() < late, f"{seen.phase} {seen.imported} {seen.fill} {seen.nodes}"
            await asyncio.sleep(0.1)
        return seen

    async def gone(self, cluster_id: str) -> bool:
        try:
            await self.see(cluster_id)
        except NotFound:
            return True
        return False


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    late = monotonic() + _LIMIT_S
    while not await look():
        assert monotonic() < late
        await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def ground(bed: Bed, database_url: str) -> AsyncIterator[Ground]:
    programs = {f"exec_{verb}": "/bin/false" for verb in ("create", "status", "stop", "delete", "list")}
    settings = Settings(
        provider="exec", storage="none", observe_every_s=1, retry_s=1, retry_limit_s=2, **programs
    )
    machines = PaperMachines(bed.admin)
    system = assembly.build(settings, database_url, provider=machines, alone=True)
    stop = asyncio.Event()
    await system.apply_fleet(FLEET)
    keys = {
        role: await system.first_key(role, role.value, role.value) for role in (Role.OPERATOR, Role.MEMBER)
    }
    callers = [await system.services.access.authenticate(keys[role].secret) for role in keys]
    await system.begin()
    running = asyncio.create_task(system.run(stop))
    yield Ground(bed, system, machines, *callers)
    stop.set()
    await running
    await system.close()


async def test_imported_used_and_detached(ground: Ground) -> None:
    admin = ground.bed.admin
    for name, gpus in (("own-a", 8), ("own-b", 4)):
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": "reserved"}},
        }
        await register(admin, node, gpus)
    before = {name: await admin.get(f"/api/v1/nodes/{name}") for name in ("own-a", "own-b")}

    reef = await ground.imports("reef", ground.bed.cluster.kubeconfig or "", gpus=8)
    seen = await ground.until(
        reef,
        lambda it: (
            it.phase is ClusterPhase.READY
            and any(
                node.compute_class is ComputeClass.PREEMPTIBLE and node.phase is Phase.RUNNING
                for node in it.nodes
            )
        ),
    )
    assert (seen.num_gpus, seen.kubeconfig, seen.allocated_preemptible_gpus) == (12, None, 8)
    standard = [node for node in seen.nodes if node.compute_class is ComputeClass.STANDARD]
    assert [(node.name, node.gpus, node.cpu_cores) for node in standard] == [
        ("own-a", 8, 96),
        ("own-b", 4, 96),
    ]
    (ours,) = [node for node in seen.nodes if node.compute_class is ComputeClass.PREEMPTIBLE]
    joined = await admin.get(f"/api/v1/nodes/{ours.name}")
    assert marks.TAINT_INITIALIZING not in [taint["key"] for taint in joined["spec"].get("taints", [])]
    assert joined["metadata"]["labels"][marks.LABEL_NODE_UID] == ours.uid

    pod = await ground.bed.pod(NodeRef(ours.uid, ours.name))
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
    await ground.system.services.clusters.delete(ground.tenant, reef)

    async def told() -> bool:
        return bool((await admin.get(path))["metadata"].get("deletionTimestamp"))

    await eventually(told)
    leaving = await admin.get(f"/api/v1/nodes/{ours.name}")
    assert leaving["spec"]["unschedulable"] is True
    assert marks.ANNOTATION_DEADLINE in leaving["metadata"]["annotations"]
    assert (await ground.see(reef)).phase is ClusterPhase.DELETING
    await admin.delete(path, grace_s=0)  # its kubelet: it has ended
    await eventually(lambda: ground.gone(reef))

    names = {each["metadata"]["name"] for each in (await admin.list("/api/v1/nodes")).items}
    assert ours.name not in names
    for name, was in before.items():  # nobody wrote to them, not once
        now = await admin.get(f"/api/v1/nodes/{name}")
        assert now["metadata"]["resourceVersion"] == was["metadata"]["resourceVersion"]
    tokens = await admin.list("/api/v1/namespaces/kube-system/secrets", labelSelector=marks.LABEL_NODE_UID)
    assert [
        each for each in tokens.items if each["metadata"]["labels"][marks.LABEL_NODE_UID] == ours.uid
    ] == []
    assert ground.machines.planes_asked_for == []
    assert ground.machines.made == {}
    for name in before:
        await admin.delete(f"/api/v1/nodes/{name}")


async def test_what_is_wrong_is_said_and_seen_again_when_it_is_put_right(
    ground: Ground, plane_alone: ControlPlane
) -> None:
    kubeconfig = kubeconfig_of(plane_alone, "lender")
    reef = await ground.imports("reef", kubeconfig, selector="nobody=here")
    seen = await ground.until(reef, lambda it: bool(it.imported and it.imported.problem))
    assert seen.imported is not None
    assert "may not get nodes, list nodes" in (seen.imported.problem or "")
    assert "ebbtide kube manifests" in (seen.imported.problem or "")
    await apply_rights(ground.bed.admin, user="lender")
    seen = await ground.until(
        reef, lambda it: "no node" in ((it.imported.problem if it.imported else None) or "")
    )
    assert not seen.control_plane_ready
    change = ImportChange(standard_selector="!ebbtide/node-uid")
    await ground.system.services.imports.renew(ground.operator, reef, change)
    seen = await ground.until(reef, lambda it: it.phase is ClusterPhase.READY)
    assert seen.imported is not None
    assert seen.imported.problem is None
    nowhere = ImportChange(kubeconfig.replace(plane_alone.url, "https://127.0.0.1:1"))
    await ground.system.services.imports.renew(ground.operator, reef, nowhere)
    seen = await ground.until(reef, lambda it: bool(it.imported and it.imported.problem))
    assert seen.phase is ClusterPhase.READY  # a cluster that does not answer is not gone
    await ground.system.services.clusters.delete(ground.tenant, reef)
    await apply_rights(ground.bed.admin)  # as it was


async def test_kubeconfigs_that_run_programs_are_refused(ground: Ground) -> None:
    bad = (ground.bed.cluster.kubeconfig or "").replace(
        '"client-key-data"', '"exec": {"command": "rm"}, "client-key-data"'
    )
    with pytest.raises(BadInput, match="exec"):
        await ground.imports("bad", bad)
    with pytest.raises(BadInput, match="cannot be used"):
        await ground.imports("bad", "hello")
