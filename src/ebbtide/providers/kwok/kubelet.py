"""What a kubelet says to its API server that kwok does not say for it: here I am, I live."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from ebbtide.core import marks
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Conflict, NotFound
from ebbtide.kube.programs import KUBERNETES
from ebbtide.providers.kwok.machines import Machine

Json = dict[str, Any]

LABEL_ON = "ebbtide/machine"  # kwok plays the Nodes that have it with the value "on"
ON = "on"
_NODES = "/api/v1/nodes"
_PODS = "/api/v1/pods"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_S = 40  # a kubelet's default; it renews four times as often
_LIVE = ("Pending", "Running")


class NameTaken(Exception):
    """A Node of that name is there and is another node's."""


async def register(client: KubeClient, machine: Machine, now: datetime) -> str:
    """Put the Node into the cluster, or find it there and let it be played again; its uid there.

    Raises KubeError and NameTaken.
    """
    try:
        node = await client.create(_NODES, node_object(machine, now))
    except Conflict:
        node = await client.get(f"{_NODES}/{machine.node_name}")
        if not _is(node, machine):
            raise NameTaken(machine.node_name) from None
        await _label(client, node, ON)
        if machine.boots > 1:
            await _restart_containers(client, machine, now)
    uid: str = node["metadata"]["uid"]
    await beat(client, machine.known(uid), now)
    return uid


async def beat(client: KubeClient, machine: Machine, now: datetime) -> None:
    """Renew the node's lease. As a kubelet does: made only while the Node is there. Raises KubeError."""
    spec = {
        "holderIdentity": machine.node_name,
        "leaseDurationSeconds": _LEASE_S,
        "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z",
    }
    try:
        await client.patch(f"{_LEASES}/{machine.node_name}", {"spec": spec})
    except NotFound:
        await _make_lease(client, machine, spec)


async def _make_lease(client: KubeClient, machine: Machine, spec: Json) -> None:
    try:
        node = await client.get(f"{_NODES}/{machine.node_name}")
    except NotFound:
        return
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": machine.node_name,
        "uid": node["metadata"]["uid"],
    }
    metadata = {
        "name": machine.node_name,
        "namespace": "kube-node-lease",
        "ownerReferences": [owner],
    }
    await client.create(_LEASES, {"metadata": metadata, "spec": spec})


async def fall_silent(client: KubeClient, machine: Machine) -> bool:
    """Take the node from kwok; whether live pods are left on it, for which kwok may have plans.

    Raises KubeError.
    """
    try:
        found = await client.get(f"{_NODES}/{machine.node_name}")
        if _is(found, machine) and LABEL_ON in found["metadata"]["labels"]:
            await _label(client, found, None)
    except NotFound:
        pass
    return bool(await _live_pods(client, machine))


async def _live_pods(client: KubeClient, machine: Machine) -> list[Json]:
    listed = await client.list(_PODS, fieldSelector=f"spec.nodeName={machine.node_name}")
    return [
        pod
        for pod in listed.items
        if pod.get("status", {}).get("phase", "Pending") in _LIVE or "deletionTimestamp" in pod["metadata"]
    ]


async def _label(client: KubeClient, node: Json, value: str | None) -> None:
    meta = {"uid": node["metadata"]["uid"], "labels": {LABEL_ON: value}}  # the uid: of this Node or of none
    await client.patch(f"{_NODES}/{node['metadata']['name']}", {"metadata": meta})


def _is(node: Json, machine: Machine) -> bool:
    labels: Json = node["metadata"].get("labels", {})
    return labels.get(marks.LABEL_NODE_UID) == machine.node_uid


async def _restart_containers(client: KubeClient, machine: Machine, now: datetime) -> None:
    """After a restart of its machine a kubelet starts the containers of running pods once more."""
    for pod in await _live_pods(client, machine):
        statuses = pod.get("status", {}).get("containerStatuses", [])
        if "deletionTimestamp" in pod["metadata"] or not statuses:
            continue
        again = [
            {
                **each,
                "restartCount": each["restartCount"] + 1,
                "state": {"running": {"startedAt": _rfc3339(now)}},
            }
            for each in statuses
        ]
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        body = {"metadata": {"uid": meta["uid"]}, "status": {"containerStatuses": again}}
        try:
            await client.patch(path, body)
        except (NotFound, Conflict):
            continue  # it ended meanwhile


def node_object(machine: Machine, now: datetime) -> Json:
    """The Node as a kubelet registers it: with all its resources, and ready."""
    resources = {
        "cpu": str(machine.habits.cpu_cores),
        "memory": f"{machine.habits.memory_gib}Gi",
        "ephemeral-storage": "2Ti",
        "pods": "110",
        marks.GPU: str(machine.gpus),
    }
    name = machine.node_name
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**own, **machine.labels, LABEL_ON: ON},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {
            "providerID": f"kwok://{machine.pool}/{machine.host_name}",
            "taints": [_taint(each) for each in machine.taints],
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": _conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": _address(machine)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _node_info(machine),
        },
    }


def _conditions(now: datetime) -> list[Json]:
    at = _rfc3339(now)
    said = (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    )
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for kind, status, reason, message in said
    ]


def _node_info(machine: Machine) -> Json:
    return {
        "architecture": "amd64",
        "operatingSystem": "linux",
        "kubeletVersion": KUBERNETES.version,
        "kubeProxyVersion": "",
        "containerRuntimeVersion": "kwok://0.7.0",
        "kernelVersion": "none",
        "osImage": "no machine: played by kwok",
        "machineID": hashlib.sha256(machine.host_name.encode()).hexdigest()[:32],
        "systemUUID": machine.node_uid,
        "bootID": f"{machine.node_uid}-{machine.boots}",
    }


def _taint(text: str) -> Json:
    """From `key=value:Effect`."""
    left, _, effect = text.rpartition(":")
    key, _, value = left.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _address(machine: Machine) -> str:
    """An address of its own, always the same for a host; nothing answers there."""
    digest = hashlib.sha256(f"{machine.pool}/{machine.host_name}".encode()).digest()
    return f"10.{128 + digest[0] % 64}.{digest[1]}.{1 + digest[2] % 254}"


def _rfc3339(now: datetime) -> str:
    return f"{now:%Y-%m-%dT%H:%M:%S}Z"
