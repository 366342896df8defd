"""An API server in memory, as far as the driver asks: uids, versions, finalizers, grace, budgets, refusals.

It stands in for `KubeClient`. What real servers do was tried on them; tests/live runs the driver there.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from ebbtide.clock import Clock
from ebbtide.core import marks
from ebbtide.core.events import rfc3339
from ebbtide.core.nodes import ComputeClass
from ebbtide.kube.client import Clients, KubeClient, KubeList, PatchKind
from ebbtide.kube.errors import KubeError, from_status
from ebbtide.kube.server_time import ServerTime

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
_STATUS = "/status"
_EVICTION = "/eviction"


@dataclass(frozen=True, slots=True)
class Call:
    """One request. what: as `PATCH /api/v1/nodes/a`."""

    what: str
    body: Any = None
    uid: str | None = None
    grace_s: int | None = None


def refusal(code: int, message: str, reason: str = "", cause: Json | None = None) -> KubeError:
    """What a client raises for a server's Status."""
    details = {"causes": [cause]} if cause else {}
    return from_status("a call", {"code": code, "reason": reason, "message": message, "details": details})


@dataclass(eq=False)
class FakeApi:
    """calls: what was asked. before: called with each request; what it raises is the answer, and nothing
    happens.
    after: the same when it has happened.
    """

    clock: Clock
    calls: list[Call] = field(default_factory=list)
    before: Callable[[Call], None] = lambda call: None
    after: Callable[[Call], None] = lambda call: None
    things: dict[str, Json] = field(default_factory=dict)
    off: set[str] = field(default_factory=set)  # nodes whose kubelets do nothing
    server_time: ServerTime = field(default_factory=ServerTime)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(32))

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    # -- what tests make

    def node(
        self, uid: str, name: str, compute_class: ComputeClass = ComputeClass.PREEMPTIBLE, gpus: int = 8
    ) -> Json:
        """A node that is ready, as its kubelet registers it."""
        labels = marks.labels(uid, compute_class, region="r", gpu_type="g", fabric_block=None)
        ready = {"type": "Ready", "status": "True"}
        self.put(f"{LEASES}/{name}", {"metadata": {"name": name}})
        return self.put(
            f"{NODES}/{name}",
            {
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": [{"key": marks.TAINT_INITIALIZING, "effect": "NoSchedule"}]},
                "status": {"conditions": [ready], "allocatable": {marks.GPU: str(gpus)}},
            },
        )

    def pod(
        self,
        node_name: str,
        name: str = "job",
        *,
        grace_s: int = 30,
        exits_after_s: int | None = 2,
        labels: Json | None = None,
        **more: Any,
    ) -> Json:
        """A pod that runs. exits_after_s: from SIGTERM to its end; None: it ignores it."""
        metadata = {"name": name, "namespace": "default", "labels": labels or {"app": name}}
        spec = {"nodeName": node_name, "terminationGracePeriodSeconds": grace_s}
        return self.put(
            f"{PODS}/{name}",
            {
                "kind": "Pod",
                "metadata": {**metadata, **more.get("metadata", {})},
                "spec": {**spec, **more.get("spec", {})},
                "status": {"phase": "Running", "startTime": rfc3339(self.clock.now())},
                "exits_after_s": exits_after_s,
            },
        )

    def budget(self, name: str, app: str, allowed: int = 0) -> Json:
        spec = {"selector": {"matchLabels": {"app": app}}}
        metadata = {"name": name, "namespace": "default"}
        thing = {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}
        return self.put(f"{BUDGETS}/{name}", thing)

    def attachment(self, name: str, node_name: str) -> Json:
        thing = {"metadata": {"name": name}, "spec": {"nodeName": node_name}}
        return self.put(f"{ATTACHMENTS}/{name}", thing)

    def put(self, path: str, thing: Json) -> Json:
        """Store an object, with uid and version."""
        thing = copy.deepcopy(thing)
        metadata = thing["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata["resourceVersion"] = str(next(self._numbers))
        metadata.setdefault("creationTimestamp", rfc3339(self.clock.now()))
        self.things[path] = thing
        return thing

    def clients(self) -> Clients:
        """To hand to a driver."""
        return cast(Clients, OneApi(self))

    # -- what is seen

    def sent(self, verb: str = "") -> list[str]:
        """What was asked, by verb and path."""
        return [call.what for call in self.calls if call.what.startswith(verb)]

    def reasons(self, node_name: str) -> list[str]:
        """Reasons of events about a node, in the order in which they came."""
        found = [thing for path, thing in self.things.items() if path.startswith(f"{EVENTS}/")]
        return [one["reason"] for one in found if one["involvedObject"]["name"] == node_name]

    def names(self, collection: str) -> set[str]:
        return {thing["metadata"]["name"] for thing in self._listed(collection)}

    # -- as KubeClient

    async def get(self, path: str, **params: Any) -> Json:
        with_call = self._begin("GET", path)
        answer = copy.deepcopy(self._one(path))
        return self._end(with_call, answer)

    async def list(self, path: str, *, page: int = 500, **params: Any) -> KubeList:
        call = self._begin("LIST", path)
        found = [thing for thing in self._listed(path) if _selected(thing, params)]
        items = copy.deepcopy(found)
        self._end(call, {})
        return KubeList(items, "1")

    async def pages(self, path: str, *, page: int = 500, **params: Any) -> AsyncGenerator[KubeList, None]:
        found = [thing for thing in self._listed(path) if _selected(thing, params)]
        for at in range(0, len(found) or 1, page):
            call = self._begin("LIST", path)
            yield KubeList(copy.deepcopy(found[at : at + page]), "1")
            self._end(call, {})

    async def create(self, path: str, body: Mapping[str, Any], **params: Any) -> Json:
        call = self._begin("POST", path, body)
        if path.endswith(_EVICTION):
            return self._end(call, self._evict(path.removesuffix(_EVICTION), dict(body)))
        name = body["metadata"]["name"]
        if f"{path}/{name}" in self.things:
            raise refusal(409, "it is there", "AlreadyExists")
        return self._end(call, self.put(f"{path}/{name}", dict(body)))

    async def patch(self, path: str, body: Any, *, kind: PatchKind = PatchKind.MERGE, **params: Any) -> Json:
        call = self._begin("PATCH", path, body)
        whole = path.removesuffix(_STATUS)
        if kind is PatchKind.APPLY and whole not in self.things:
            return self._end(call, self.put(whole, dict(body)))
        thing = self._one(whole)
        metadata = body.get("metadata", {})
        if metadata.get("uid", thing["metadata"]["uid"]) != thing["metadata"]["uid"]:
            raise refusal(422, "metadata.uid: Invalid value: field is immutable", "Invalid")
        version = thing["metadata"]["resourceVersion"]
        if metadata.get("resourceVersion", version) != version:
            raise refusal(409, "the object has been modified", "Conflict")
        merged = _merge(thing, body, strategic=kind is PatchKind.STRATEGIC)
        merged["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.things[whole] = merged
        self._drop_if_free(whole)
        return self._end(call, copy.deepcopy(merged))

    async def delete(
        self, path: str, *, uid: str | None = None, grace_s: int | None = None, propagation: str | None = None
    ) -> Json:
        call = self._begin("DELETE", path, uid=uid, grace_s=grace_s)
        thing = self._one(path)
        if uid is not None and thing["metadata"]["uid"] != uid:
            raise refusal(409, "the UID in the precondition does not match", "Conflict")
        if thing.get("kind") == "Pod" and grace_s != 0:
            self._terminate(thing, 30 if grace_s is None else grace_s)
        else:
            thing["metadata"].setdefault("deletionTimestamp", rfc3339(self.clock.now()))
            self._drop_if_free(path, forced=True)
        return self._end(call, copy.deepcopy(thing) if path in self.things else {"kind": "Status"})

    # -- how it works

    def _begin(
        self, verb: str, path: str, body: Any = None, uid: str | None = None, grace_s: int | None = None
    ) -> Call:
        self._kubelets()
        call = Call(f"{verb} {path}", copy.deepcopy(body), uid, grace_s)
        self.calls.append(call)
        self.before(call)
        return call

    def _end(self, call: Call, answer: Json) -> Json:
        self.after(call)
        return answer

    def _one(self, path: str) -> Json:
        if path not in self.things:
            raise refusal(404, f"{path} not found", "NotFound")
        return self.things[path]

    def _listed(self, path: str) -> list[Json]:
        resource = path.rsplit("/", 1)[1]
        whole = path.startswith(("/api/v1/namespaces/", "/apis/")) and "/namespaces/" in path
        return [
            thing
            for at, thing in self.things.items()
            if at.rsplit("/", 1)[0] == path
            or (not whole and "/namespaces/" in at and at.split("/")[-2] == resource)
        ]

    def _terminate(self, pod: Json, grace_s: int) -> None:
        metadata = pod["metadata"]
        before = metadata.get("deletionGracePeriodSeconds")
        if before is None:
            pod["told_at"] = self.clock.now()
        elif grace_s >= before:
            return
        metadata["deletionGracePeriodSeconds"] = grace_s
        ends = pod["told_at"] + timedelta(seconds=grace_s)
        metadata["deletionTimestamp"] = rfc3339(ends)

    def _kubelets(self) -> None:
        """Pods whose end has come are gone."""
        for path, pod in list(self.things.items()):
            if pod.get("kind") != "Pod" or "told_at" not in pod:
                continue
            if pod["spec"].get("nodeName") in self.off:
                continue
            grace_s = pod["metadata"]["deletionGracePeriodSeconds"]
            lasts_s = min(grace_s, grace_s if pod["exits_after_s"] is None else pod["exits_after_s"])
            if self.clock.now() >= pod["told_at"] + timedelta(seconds=lasts_s):
                self._drop_if_free(path, forced=True)

    def _drop_if_free(self, path: str, *, forced: bool = False) -> None:
        metadata = self.things[path]["metadata"]
        leaving = metadata.get("deletionTimestamp") and (forced or "told_at" not in self.things[path])
        if leaving and not metadata.get("finalizers"):
            del self.things[path]

    def _evict(self, path: str, body: Json) -> Json:
        pod = self._one(path)
        options = body["deleteOptions"]
        if pod["metadata"]["uid"] != options["preconditions"]["uid"]:
            raise refusal(409, "the UID in the precondition does not match", "Conflict")
        app = pod["metadata"]["labels"].get("app")
        covering = [
            one for one in self._listed(BUDGETS) if one["spec"]["selector"]["matchLabels"]["app"] == app
        ]
        if len(covering) > 1:
            raise refusal(500, "This pod has more than one PodDisruptionBudget, which is not supported.")
        for budget in covering:
            if budget["status"]["disruptionsAllowed"] < 1:
                said = f"The disruption budget {budget['metadata']['name']} needs more"
                cause = {"reason": "DisruptionBudget", "message": said}
                raise refusal(429, "Cannot evict pod", "TooManyRequests", cause)
        self._terminate(pod, options["gracePeriodSeconds"])
        return {"kind": "Status"}


class OneApi:
    """Clients of one cluster."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    def of(self, cluster_id: str, kubeconfig: str) -> KubeClient:
        return cast(KubeClient, self.api)


def _selected(thing: Json, params: Mapping[str, Any]) -> bool:
    label = params.get("labelSelector")
    if label and label not in thing["metadata"].get("labels", {}):
        return False
    for term in (params.get("fieldSelector") or "").split(","):
        field_name, unequal, value = term.partition("!=")
        if not unequal:
            field_name, _, value = term.partition("=")
        if not field_name:
            continue
        found = thing
        for key in field_name.split("."):
            found = found.get(key) or {}
        if ((found or "") == value) is bool(unequal):
            return False
    return True


def _merge(before: Any, change: Any, *, strategic: bool) -> Any:
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif key == "conditions" and strategic:
            merged[key] = _by_type(merged.get(key, []), value)
        else:
            merged[key] = _merge(merged.get(key), value, strategic=strategic)
    return merged


def _by_type(before: list[Json], changes: list[Json]) -> list[Json]:
    kept = {one["type"]: one for one in before}
    for change in changes:
        if change.get("$patch") == "delete":
            kept.pop(change["type"], None)
        else:
            kept[change["type"]] = {**kept.get(change["type"], {}), **change}
    return list(kept.values())


def at(clock: Clock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)
