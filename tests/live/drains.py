"""A cluster on real servers with nodes that kwok plays, and our driver with just the rights that it needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from ebbtide.clock import AnchoredClock
from ebbtide.drivers.base import ClusterRef, NodeRef
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients, KubeClient, PatchKind
from ebbtide.kube.errors import NotFound
from ebbtide.kube.way_in import address
from ebbtide.providers.base import InstanceOrder
from ebbtide.providers.kwok.kubelet import LABEL_ON
from tests.live.kwok import KwokRig

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
NOTICE = "TogetherPreempted"
NOWHERE = "https://127.0.0.1:1"
_LOOK_S = 0.1


@dataclass
class Place:
    """One cluster. admin: its administrator; ours: our own account; cluster: as our driver is told of it."""

    machines: KwokRig
    cluster: ClusterRef
    admin: KubeClient
    ours: KubeClient
    orders: dict[str, InstanceOrder] = field(default_factory=dict)
    hosts: int = 0

    async def node(self) -> NodeRef:
        """A node that has registered; nobody has admitted it yet."""
        self.hosts += 1
        order = await self.machines.node(self.cluster.cluster_id, f"host-{self.hosts}")
        self.orders[order.node_uid] = order
        return NodeRef(order.node_uid, order.node_name)

    async def pod(
        self,
        node: NodeRef,
        name: str = "job",
        *,
        grace_s: int = 30,
        labels: Json | None = None,
        notes: Json | None = None,
        spec: Json | None = None,
        metadata: Json | None = None,
    ) -> Json:
        """A pod that runs on the node. notes: how kwok plays it."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{name}-",
                "labels": {"app": name, **(labels or {})},
                "annotations": notes or {},
                **(metadata or {}),
            },
            "spec": {
                "nodeName": node.name,
                "terminationGracePeriodSeconds": grace_s,
                "containers": [{"name": "main", "image": "none"}],
                **(spec or {}),
            },
        }
        made = await self.admin.create(PODS, body)
        path = f"{PODS}/{made['metadata']['name']}"
        for _ in range(200):
            pod = await self.admin.get(path)
            if pod["status"].get("phase") == "Running":
                return pod
            await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"it does not run: {pod['status']}")

    async def budget(self, name: str, app: str, least: int = 1000) -> None:
        """A disruption budget over the pods of that app; as it stands it allows none."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
        }
        await self.admin.create(BUDGETS, body)
        for _ in range(100):
            status = (await self.admin.get(f"{BUDGETS}/{name}")).get("status", {})
            if status.get("observedGeneration"):
                return
            await asyncio.sleep(_LOOK_S)
        raise AssertionError("nobody looks at disruption budgets")

    async def attachment(self, node: NodeRef, name: str) -> None:
        """A volume attachment that nobody detaches: there is no driver for it."""
        source = {"persistentVolumeName": "none"}
        spec = {"attacher": "csi.test.invalid", "nodeName": node.name, "source": source}
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": name, "finalizers": ["test.invalid/held"]},
            "spec": spec,
        }
        await self.admin.create(ATTACHMENTS, body)

    async def detach(self, name: str) -> None:
        path = f"{ATTACHMENTS}/{name}"
        try:
            await self.admin.patch(path, {"metadata": {"finalizers": None}})
            await self.admin.delete(path)
        except NotFound:
            return

    @property
    def root(self) -> KubeClient:
        """Who is asked by no policy."""
        plane = self.machines.kwok._planes.get(self.cluster.cluster_id)
        assert plane is not None
        return plane.client

    async def kubelet_dies(self, node: NodeRef) -> None:
        """The machine runs, and nobody speaks for it."""
        path = f"/api/v1/nodes/{node.name}"
        await self.root.patch(path, {"metadata": {"labels": {LABEL_ON: None}}})
        mark = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await self.root.patch(f"{path}/status", {"status": {"conditions": [mark]}}, kind=PatchKind.STRATEGIC)

    async def node_now(self, node: NodeRef) -> Json | None:
        try:
            return await self.admin.get(f"/api/v1/nodes/{node.name}")
        except NotFound:
            return None

    async def pods_on(self, node: NodeRef) -> list[Json]:
        listed = await self.admin.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")
        return listed.items

    async def events_on(self, node: NodeRef) -> list[Json]:
        """Events about the node that we sent."""
        listed = await self.admin.list(EVENTS, fieldSelector=f"involvedObject.name={node.name}")
        return [one for one in listed.items if one.get("reportingComponent") == "ebbtide"]

    async def power_off(self, node: NodeRef) -> None:
        """The machine is off, and time has passed: the node is seen to be away."""
        assert await self.machines.provider.stop(node.uid)
        mark = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        path = f"/api/v1/nodes/{node.name}/status"
        await self.root.patch(path, {"status": {"conditions": [mark]}}, kind=PatchKind.STRATEGIC)

    async def clear(self) -> None:
        """Nothing of the test before is there any more."""
        for listed in (await self.admin.list(ATTACHMENTS)).items:
            await self.detach(listed["metadata"]["name"])
        await self.admin.delete(BUDGETS)
        for uid, order in self.orders.items():
            await self.machines.provider.stop(uid)
            path = f"/api/v1/nodes/{order.node_name}"
            try:
                await self.ours.patch(path, {"metadata": {"finalizers": None}})
                await self.ours.delete(path)
            except NotFound:
                pass
            await self.machines.provider.delete(uid)
        self.orders.clear()
        for pod in (await self.admin.list(PODS)).items:
            path = f"{PODS}/{pod['metadata']['name']}"
            try:
                if pod["metadata"].get("finalizers"):
                    await self.admin.patch(path, {"metadata": {"finalizers": None}})
                await self.admin.delete(path, grace_s=0)
            except NotFound:
                continue


class KwokDriverRig:
    """See `tests.contract.rigs.DriverRig`. Time is real here, and passes faster than it is said to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clients = Clients()
        self.driver = KubernetesDriver(self.clients, AnchoredClock())
        self.cluster = place.cluster
        self._away_s = 0.0

    async def pass_time(self, seconds: float) -> None:
        self._away_s -= seconds
        if self._away_s <= 0:
            self.cluster = self.place.cluster
        await asyncio.sleep(min(seconds, 2.5))

    async def add_node(self) -> NodeRef:
        node = await self.place.node()
        await self.driver.admit(self.cluster, node)
        return node

    async def add_pod(
        self, node: NodeRef, *, grace_s: int = 30, obeys: bool = True, name: str = "job"
    ) -> str:
        notes = {} if obeys else {"ebbtide/obeys": "false"}
        pod = await self.place.pod(node, name, grace_s=grace_s, notes=notes)
        return str(pod["metadata"]["uid"])

    async def forbid_evictions(self, name: str) -> None:
        await self.place.budget(f"keep-{name}", name)

    async def notices(self, node: NodeRef) -> int:
        return len([one for one in await self.place.events_on(node) if one["reason"] == NOTICE])

    async def power_off(self, node: NodeRef) -> None:
        await self.place.power_off(node)

    async def delete_node(self, node: NodeRef) -> None:
        await self.place.admin.delete(f"/api/v1/nodes/{node.name}")

    async def cut_off(self, seconds: float) -> None:
        self._away_s = seconds
        kubeconfig = self.place.cluster.kubeconfig or ""
        server, _ = address(kubeconfig)
        self.cluster = replace(self.cluster, kubeconfig=kubeconfig.replace(server, NOWHERE))

    async def close(self) -> None:
        await self.clients.close()
