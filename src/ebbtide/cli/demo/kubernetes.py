"""The story on real Kubernetes: pods are made, and all is looked at, as a tenant would do it with kubectl.

The way into a cluster is the kubeconfig that the public API hands out.
"""

from __future__ import annotations

import asyncio
import base64
import shlex
from collections.abc import Awaitable, Callable, Sequence, Set
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from ebbtide.cli.demo import stage as on
from ebbtide.cli.demo.scene import PodPlan, PodTold
from ebbtide.cli.demo.stage import Json
from ebbtide.client import Client
from ebbtide.core import marks
from ebbtide.kube.certificates import write_private
from ebbtide.kube.client import Clients, KubeClient

T = TypeVar("T")

_PODS = "/api/v1/namespaces/default/pods"
_EVENTS = "/api/v1/events"
_NOTICE = "TogetherPreempted"
_NEVER_IN_TIME_S = 600


class KubernetesScene:
    """A `Scene` in the tenant's own clusters. For one thread."""

    about: Sequence[str] = (
        "Every cluster is a real Kubernetes control plane on this machine: etcd, API server, scheduler,",
        "controller manager. Only the kubelets are played (by kwok).",
    )
    join_limit_s = 150.0
    shows_notices = True

    def __init__(self, tenant: Client, folder: Path, watch_s: float) -> None:
        """tenant: whose clusters they are. folder: where kubeconfigs for people are written."""
        self.watch_s = watch_s
        self._tenant = tenant
        self._folder = folder
        self._runner = asyncio.Runner()
        self._clients = Clients()

    def watch(self, cluster: Json) -> Sequence[str]:
        path = self._folder / f"{cluster['cluster_name']}.kubeconfig"
        write_private(path, self._kubeconfig(cluster).encode())
        kubectl = f"kubectl --kubeconfig {shlex.quote(str(path))}"
        return (
            f"{kubectl} get nodes --watch",
            f"{kubectl} get events --watch",
            f"{kubectl} get pods -o wide",
        )

    def run(self, cluster: Json, plans: Sequence[PodPlan]) -> None:
        async def create(client: KubeClient) -> None:
            for plan in plans:
                await client.create(_PODS, _pod(plan))

        self._do(cluster, create)

    def running(self, cluster: Json) -> Set[str]:
        return {
            pod["spec"]["nodeName"]
            for pod in self._pods(cluster)
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def told(self, cluster: Json) -> Sequence[PodTold]:
        return [_told(pod) for pod in self._pods(cluster) if "deletionTimestamp" in pod["metadata"]]

    def announced(self, cluster: Json, node: str, deadline: datetime) -> str | None:
        async def look(client: KubeClient) -> tuple[Json, list[Json]]:
            found = await client.get(f"/api/v1/nodes/{node}")
            events = await client.list(_EVENTS, fieldSelector=f"involvedObject.name={node},reason={_NOTICE}")
            return found, events.items

        found, events = self._do(cluster, look)
        told = found["metadata"].get("annotations", {}).get(marks.ANNOTATION_DEADLINE)
        if not events or not told or not found["spec"].get("unschedulable"):
            return None
        on.require(abs(on.instant(told) - deadline) <= timedelta(seconds=1), f"{node} shows its deadline")
        return f"kubectl shows it: {node} is SchedulingDisabled, with one Warning event {_NOTICE}"

    def close(self) -> None:
        self._runner.run(self._clients.close())
        self._runner.close()

    def _pods(self, cluster: Json) -> Sequence[Json]:
        async def listed(client: KubeClient) -> list[Json]:
            return (await client.list(_PODS)).items

        return self._do(cluster, listed)

    def _do(self, cluster: Json, what: Callable[[KubeClient], Awaitable[T]]) -> T:
        async def done() -> T:
            return await what(self._clients.of(cluster["cluster_id"], self._kubeconfig(cluster)))

        return self._runner.run(done())

    def _kubeconfig(self, cluster: Json) -> str:
        known = cluster if cluster.get("kube_config") else self._tenant.cluster(cluster["cluster_id"])
        return base64.b64decode(known["kube_config"]).decode()


def _pod(plan: PodPlan) -> Json:
    """A pod that asks for all GPUs of its node; the scheduler places it."""
    behaviour = (
        {"ebbtide/obeys": "false", "ebbtide/killed-late-s": str(_NEVER_IN_TIME_S)}
        if plan.exits_after_s is None
        else {"ebbtide/exits-after-s": str(plan.exits_after_s)}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": plan.name, "annotations": behaviour},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": plan.grace_s,
            "nodeSelector": {"kubernetes.io/hostname": plan.node, marks.LABEL_CLASS: "preemptible"},
            "containers": [
                {"name": "main", "image": "trainer", "resources": {"limits": {marks.GPU: "8"}}},
            ],
        },
    }


def _told(pod: Json) -> PodTold:
    ends_by = on.instant(pod["metadata"]["deletionTimestamp"])
    told_at = ends_by - timedelta(seconds=pod["metadata"]["deletionGracePeriodSeconds"])
    return PodTold(pod["spec"]["nodeName"], told_at, ends_by)
