"""Placement `explicit` and the guard, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ebbtide.core import marks
from ebbtide.drivers.base import NodeRef
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Forbidden
from tests.live.rights_bed import Bed, becomes, kubeconfig_of, refused

Json = dict[str, Any]
CLASS = marks.LABEL_CLASS
TOLERATION = {"key": CLASS, "operator": "Equal", "value": "preemptible", "effect": "NoSchedule"}
NODES = "/api/v1/nodes"


def affinity(operator: str, *values: str, required: bool = True) -> Json:
    term = {"matchExpressions": [{"key": CLASS, "operator": operator, "values": list(values)}]}
    if required:
        return {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
    preferred = [{"weight": 1, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


SELECTS: dict[str, Json] = {
    "selector": {"nodeSelector": {CLASS: "preemptible"}},
    "affinity": {"affinity": affinity("In", "preemptible")},
    "either class": {"affinity": affinity("In", "standard", "preemptible")},
    "selector and others' tolerations": {
        "nodeSelector": {CLASS: "preemptible"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    },
}
DOES_NOT: dict[str, Json] = {
    "nothing": {},
    "standard": {"nodeSelector": {CLASS: "standard"}},
    "standard by affinity": {"affinity": affinity("In", "standard")},
    "not preemptible": {"affinity": affinity("NotIn", "preemptible")},
    "would like it": {"affinity": affinity("In", "preemptible", required=False)},
    "another label": {"nodeSelector": {"class": "preemptible"}},
}


def tolerations(pod: Json) -> list[Json]:
    return [each for each in pod["spec"]["tolerations"] if each.get("key") == CLASS]


@pytest_asyncio.fixture
async def placed(bed: Bed) -> Bed:
    async def in_force() -> bool:
        return bool(tolerations(await bed.pod(None, **SELECTS["selector"])))

    await becomes(in_force, "placement explicit is in force")
    return bed


@pytest.mark.parametrize("how", SELECTS)
async def test_a_pod_that_selects_the_class_may_go_there(placed: Bed, how: str) -> None:
    pod = await placed.pod(None, **SELECTS[how])
    assert tolerations(pod) == [TOLERATION]
    for each in SELECTS[how].get("tolerations", []):
        assert each in pod["spec"]["tolerations"]


@pytest.mark.parametrize("how", DOES_NOT)
async def test_no_other_pod_is_let_there(placed: Bed, how: str) -> None:
    assert tolerations(await placed.pod(None, **DOES_NOT[how])) == []


@pytest.mark.parametrize(
    "own",
    [
        TOLERATION,
        {"key": CLASS, "operator": "Exists"},
        {"key": CLASS, "value": "preemptible"},
    ],
)
async def test_one_that_tolerates_it_already_is_left_alone(placed: Bed, own: Json) -> None:
    pod = await placed.pod(None, **SELECTS["selector"], tolerations=[own])
    assert len(tolerations(pod)) == 1


# -- the guard


@pytest_asyncio.fixture
async def tenant(plane_alone: ControlPlane, bed: Bed) -> AsyncIterator[KubeClient]:
    """A tenant with every right that a role can give."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/tenant"
    await bed.admin.patch(path, binding, kind=PatchKind.APPLY, fieldManager="test", force=True)
    client = KubeClient(kubeconfig_of(plane_alone, "tenant"))
    probe = {"metadata": {"labels": {CLASS: "preemptible"}}}

    async def in_force() -> bool:
        try:
            await client.patch(f"{NODES}/stranger", probe, dryRun="All")
        except Forbidden as error:
            return "ebbtide-guard" in error.detail
        return False

    await becomes(in_force, "the guard is in force")
    yield client
    await client.close()


async def draining(bed: Bed) -> NodeRef:
    """A node of ours as it looks while it drains."""
    node = await bed.node()
    explicit = {"key": CLASS, "value": "preemptible", "effect": "NoSchedule"}
    taints = [{"key": marks.TAINT_INITIALIZING, "effect": "NoSchedule"}, explicit]
    body = {
        "metadata": {
            "annotations": {
                marks.ANNOTATION_DEADLINE: "2026-01-02T03:04:05Z",
                marks.ANNOTATION_REASON: "why",
            },
            "finalizers": [marks.FINALIZER],
        },
        "spec": {"unschedulable": True, "taints": taints},
    }
    await bed.ours.patch(f"{NODES}/{node.name}", body)
    condition = {"type": marks.CONDITION_DRAINING, "status": "True", "reason": "x", "message": "x"}
    await bed.ours.patch(
        f"{NODES}/{node.name}/status", {"status": {"conditions": [condition]}}, kind=PatchKind.STRATEGIC
    )
    return node


FORGERIES: dict[str, tuple[str, Json]] = {
    "another class": ("", {"metadata": {"labels": {CLASS: "standard"}}}),
    "no class": ("", {"metadata": {"labels": {CLASS: None}}}),
    "another uid": ("", {"metadata": {"labels": {marks.LABEL_NODE_UID: "x"}}}),
    "a label of ours": ("", {"metadata": {"labels": {"ebbtide/new": "x"}}}),
    "labels by way of the status": ("/status", {"metadata": {"labels": {CLASS: "standard"}}}),
    "a later deadline": (
        "",
        {"metadata": {"annotations": {marks.ANNOTATION_DEADLINE: "2027-01-02T03:04:05Z"}}},
    ),
    "no deadline": ("", {"metadata": {"annotations": {marks.ANNOTATION_DEADLINE: None}}}),
    "no taints": ("", {"spec": {"taints": []}}),
    "another taint of ours": (
        "",
        {"spec": {"taints": [{"key": "ebbtide/new", "effect": "NoExecute"}]}},
    ),
    "no finalizer": ("", {"metadata": {"finalizers": []}}),
    "uncordoned": ("", {"spec": {"unschedulable": None}}),
    "no condition": ("/status", {"status": {"conditions": []}}),
}


@pytest.mark.parametrize("how", FORGERIES)
async def test_what_is_forged_is_refused(bed: Bed, tenant: KubeClient, how: str) -> None:
    node = await draining(bed)
    subresource, body = FORGERIES[how]
    path = f"{NODES}/{node.name}{subresource}"
    with pytest.raises(Forbidden, match="ebbtide-guard"):
        await tenant.patch(path, body)
    assert not await refused(bed.ours.patch(path, body)), "Ebbtide itself may"


async def test_a_tenants_own_marks_are_the_tenants(bed: Bed, tenant: KubeClient) -> None:
    path = f"{NODES}/{(await bed.node()).name}"
    taint = {"key": "mine", "effect": "NoSchedule"}
    ours = {"key": marks.TAINT_INITIALIZING, "effect": "NoSchedule"}
    await tenant.patch(path, {"metadata": {"labels": {"mine": "x"}, "annotations": {"mine": "x"}}})
    await tenant.patch(path, {"spec": {"taints": [ours, taint], "unschedulable": True}})
    await tenant.patch(path, {"spec": {"taints": [ours], "unschedulable": None}})  # it does not drain
    await tenant.patch(f"{NODES}/stranger", {"metadata": {"labels": {"mine": "x"}}})
    await tenant.delete(path)


async def test_nodes_of_ours_are_not_made_by_others(
    plane_alone: ControlPlane, bed: Bed, tenant: KubeClient
) -> None:
    """Kubelets register with our marks, each its own node; NodeRestriction sees to that."""
    name = "gpu-preemptible-dp-aaaaa-bbbbb"
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {CLASS: "preemptible", marks.LABEL_NODE_UID: "x"}},
    }
    with pytest.raises(Forbidden, match="ebbtide-guard"):
        await tenant.create(NODES, node)
    await tenant.create(NODES, {**node, "metadata": {"name": "plain"}})
    kubelet = KubeClient(kubeconfig_of(plane_alone, f"system:node:{name}", "system:nodes"))
    try:
        await kubelet.create(NODES, node)
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await kubelet.patch(f"{NODES}/{name}/status", status, kind=PatchKind.STRATEGIC)
        with pytest.raises(Forbidden):
            await kubelet.patch(f"{NODES}/{name}", {"metadata": {"labels": {CLASS: "standard"}}})
        with pytest.raises(Forbidden):
            await kubelet.create(NODES, {**node, "metadata": {**node["metadata"], "name": "another"}})
    finally:
        await kubelet.close()
    await bed.admin.patch(f"{NODES}/{name}", {"metadata": {"labels": {CLASS: "standard"}}})  # system:masters
