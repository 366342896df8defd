"""Nodes and pods of a cluster, read once for all checks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.core import marks
from ebbtide.core.nodes import ComputeClass
from ebbtide.kube.client import KubeClient

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """server: the API server's address in the kubeconfig."""

    nodes: list[Json]
    pods: list[Json]
    server: str = ""

    @property
    def preemptible(self) -> list[Json]:
        """Nodes of the class, whoever labelled them."""
        return [
            each for each in self.nodes if labels(each).get(marks.LABEL_CLASS) == ComputeClass.PREEMPTIBLE
        ]

    @property
    def ours(self) -> list[Json]:
        return [each for each in self.nodes if marks.LABEL_NODE_UID in labels(each)]

    @property
    def is_explicit(self) -> bool:
        """Whether preemptible nodes of this cluster are tainted."""
        taints = [taint for each in self.preemptible for taint in each["spec"].get("taints") or ()]
        return any(taint.get("key") == marks.LABEL_CLASS for taint in taints)


async def see(client: KubeClient, server: str) -> Seen:
    """Raises KubeError."""
    nodes, pods = await asyncio.gather(client.list("/api/v1/nodes"), client.list("/api/v1/pods"))
    return Seen(nodes.items, pods.items, server)


def name(thing: Mapping[str, Any]) -> str:
    """The name, with its namespace where it has one."""
    meta = thing["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def labels(thing: Mapping[str, Any]) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}


def owner(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Kind and name of what made a pod."""
    for each in pod["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            return str(each.get("kind")), str(each.get("name"))
    return None


def is_daemon(pod: Mapping[str, Any]) -> bool:
    """Whether it belongs to its node: a daemon's, or one that the kubelet made itself."""
    found = owner(pod)
    return found is not None and found[0] in ("DaemonSet", "Node")


def images(pod: Mapping[str, Any]) -> list[str]:
    return [str(each.get("image", "")) for each in pod["spec"].get("containers") or ()]


def tolerates(pod: Mapping[str, Any], key: str, value: str = "") -> bool:
    """Whether a taint of this key (effect NoSchedule) keeps the pod out."""
    for each in pod["spec"].get("tolerations") or ():
        if each.get("effect") not in (None, "", "NoSchedule"):
            continue
        if each.get("operator") == "Exists" and each.get("key") in (None, "", key):
            return True
        if each.get("key") == key and (each.get("value") or "") == value:
            return True
    return False
