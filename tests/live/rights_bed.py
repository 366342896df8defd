"""A bare API server, people with certificates, and nodes and pods to use rights on."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.clock import AnchoredClock, monotonic
from ebbtide.core import marks
from ebbtide.core.nodes import ComputeClass
from ebbtide.drivers.base import ClusterRef, NodeRef
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.ids import SystemIds
from ebbtide.kube.certificates import Authority, Subject
from ebbtide.kube.client import Clients, KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Forbidden
from ebbtide.kube.kubeconfig import Access
from ebbtide.kube.rights import Right, apply_rights, may
from ebbtide.kube.servers import Options

Json = dict[str, Any]
# Nobody schedules, nobody collects: what a test makes stays as it made it.
BARE = Options(name="bare", durable=False, scheduler=False, controller_manager=False)
EBBTIDE = "ebbtide"
_LIMIT_S = 15


def kubeconfig_of(plane: ControlPlane, user: str, group: str | None = None) -> str:
    """The way in of a person with a certificate of this plane."""
    authority = Authority(plane.folder / "pki", AnchoredClock().now())
    pair = authority.issue(f"of-{user.replace(':', '-')}", Subject(user, organization=group))
    return Access(user, plane.url, authority.pair.certificate, pair).kubeconfig()


async def becomes(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it is so."""
    late = monotonic() + _LIMIT_S
    while not await look():
        assert monotonic() < late, f"after {_LIMIT_S} s still not: {what}"
        await asyncio.sleep(0.02)


def without(rules: list[Json], right: Right) -> list[Json]:
    """A role's rules less one right."""
    named = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    left: list[Json] = []
    for rule in rules:
        if rule["apiGroups"] == [right.group] and named in rule["resources"]:
            verbs = [verb for verb in rule["verbs"] if verb != right.verb]
            rule = {**rule, "verbs": verbs}
        if rule["verbs"]:
            left.append(rule)
    return left


@dataclass
class Bed:
    """One event loop's worth of clients for one plane. Made by `made`, ended by `close`."""

    plane: ControlPlane
    admin: KubeClient = field(init=False)
    ours: KubeClient = field(init=False)
    driver: KubernetesDriver = field(init=False)
    cluster: ClusterRef = field(init=False)

    def __post_init__(self) -> None:
        self._ids = SystemIds()
        self._clients = Clients()
        kubeconfig = kubeconfig_of(self.plane, EBBTIDE)
        self.admin = KubeClient(self.plane.access.kubeconfig())
        self.ours = KubeClient(kubeconfig)
        self.driver = KubernetesDriver(self._clients, AnchoredClock())
        self.cluster = ClusterRef("bed", "bed", kubeconfig)

    async def prepare(self) -> None:
        """Rights, an account for pods, and what kubeadm would have written down."""
        await apply_rights(self.admin, user=EBBTIDE, explicit=True, guard=True)
        base = "/api/v1/namespaces"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await self.admin.create(f"{base}/default/serviceaccounts", account)
        authority = self.plane.access.authority.read_bytes()
        announced = (
            "{clusters: [{name: '', cluster: {server: 'https://announced.example:6443', "
            f"certificate-authority-data: {base64.b64encode(authority).decode()}}}}}]}}"
        )
        info = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": announced},
        }
        await self.admin.create(f"{base}/kube-public/configmaps", info)
        stranger = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "stranger"}}
        await self.admin.create("/api/v1/nodes", stranger)

        async def in_force() -> bool:  # policies come into force a moment after they were written
            answers = [
                await refused(self.ours.patch("/api/v1/nodes/stranger", {})),
                await may(self.ours, Right("list", "", "nodes")),
            ]
            return all(answers)

        await becomes(in_force, "the rights and the limits are in force")

    async def close(self) -> None:
        await self.admin.close()
        await self.ours.close()
        await self._clients.close()

    async def node(self, *, uid: str | None = None, taint: bool = True) -> NodeRef:
        """A preemptible node of ours that has just registered."""
        uid = uid or self._ids.uuid4()
        ref = NodeRef(uid, f"gpu-preemptible-dp-{uid[:5]}-{uid[-5:]}")
        taints = [{"key": marks.TAINT_INITIALIZING, "effect": "NoSchedule"}] if taint else []
        labels = {marks.LABEL_NODE_UID: uid, marks.LABEL_CLASS: str(ComputeClass.PREEMPTIBLE)}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": ref.name, "labels": labels},
            "spec": {"taints": taints},
        }
        await self.admin.create("/api/v1/nodes", node)
        return ref

    async def pod(self, node: NodeRef | None, **spec: object) -> Json:
        """A pod bound to the node."""
        name = f"job-{self._ids.uuid4()}"
        full: Json = {
            "containers": [{"name": "main", "image": "none"}],
            "terminationGracePeriodSeconds": 60,
            **spec,
        }
        if node is not None:
            full["nodeName"] = node.name
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": full,
        }
        return await self.admin.create("/api/v1/namespaces/default/pods", body)


async def refused(call: Awaitable[object]) -> bool:
    """Whether the API server says that this is not allowed."""
    try:
        await call
    except Forbidden:
        return True
    return False
