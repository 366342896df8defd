"""Pods and budgets that a reclaim would hurt."""

from __future__ import annotations

from typing import Any

from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import Finding, note, ok, some, warning
from ebbtide.kube.doctor.seen import Seen, is_daemon, labels, name

_FINISHED = ("Succeeded", "Failed")
_SYSTEM = ("kube-system", "kube-public")
# What all other pods of a workload need, as the frameworks label it.
_COORDINATORS = {
    "ray.io/node-type": ("head",),
    "training.kubeflow.org/replica-type": ("launcher",),
    "training.kubeflow.org/job-role": ("launcher",),
    "spark-role": ("driver",),
    "dask.org/component": ("scheduler",),
    "jobset.sigs.k8s.io/replicatedjob-name": ("coordinator", "leader", "driver"),
    "app.kubernetes.io/component": ("coordinator", "scheduler"),
}
_STANDARD = "docs/workloads/coordinators.md has the affinity that keeps them on standard nodes"


async def system_pods(_client: KubeClient, seen: Seen) -> list[Finding]:
    """What should not go with a node: the cluster's own pods, and those that others cannot do without."""
    places = {name(each) for each in seen.preemptible}
    there = [
        each
        for each in seen.pods
        if each["spec"].get("nodeName") in places
        and not is_daemon(each)
        and (each.get("status") or {}).get("phase") not in _FINISHED
    ]
    system = [name(each) for each in there if each["metadata"]["namespace"] in _SYSTEM]
    heads = [name(each) for each in there if _coordinates(each)]
    found: list[Finding] = []
    if system:
        found.append(warning("system pods", f"on preemptible nodes: {some(system)}", _STANDARD))
    if heads:
        found.append(warning("coordinators", f"on preemptible nodes: {some(heads)}", _STANDARD))
    return found or [ok("system pods", "none of them, and no coordinator, sits on a preemptible node")]


async def budgets(client: KubeClient, seen: Seen) -> list[Finding]:
    listed = (await client.list("/apis/policy/v1/poddisruptionbudgets")).items
    closed = [name(each) for each in listed if _allows_nothing(each)]
    if not closed:
        return [ok("budgets", f"{len(listed)} disruption budgets, each allows something")]
    do = (
        "a release waits for these until the pods' own grace must begin; a reclaim asks no budget. Allow one "
        "disruption where you can"
    )
    return [note("budgets", f"allow no disruption now: {some(closed)}", do)]


def _coordinates(pod: dict[str, Any]) -> bool:
    has = labels(pod)
    return any(has.get(key) in values for key, values in _COORDINATORS.items())


def _allows_nothing(budget: dict[str, Any]) -> bool:
    status = budget.get("status") or {}
    return bool(status.get("expectedPods")) and not status.get("disruptionsAllowed")
