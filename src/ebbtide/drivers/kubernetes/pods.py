"""Pods: what kind each is, when its grace ends, and what is sent to make it go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from ebbtide.core.drain import PodKind, PodOrder, PodSeen
from ebbtide.core.events import rfc3339
from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json

ALL = "/api/v1/pods"
DISRUPTED = "DisruptionTarget"
FINISHED = ("Succeeded", "Failed")
_MIRROR = "kubernetes.io/config.mirror"
_CRITICAL = "system-node-critical"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_DEFAULT_GRACE_S = 30


def path(namespace: str, name: str, subresource: str = "") -> str:
    """A pod's address. Without a namespace it is in `default`."""
    return f"/api/v1/namespaces/{namespace or 'default'}/pods/{name}" + (
        f"/{subresource}" if subresource else ""
    )


def bound_to(node_name: str) -> str:
    """The field selector of pods on a node."""
    return f"spec.nodeName={node_name}"


def kind(pod: Json) -> PodKind:
    """What a pod is to a drain.

    A mirror is nobody's to delete, finished or not; a daemon's pod that finished is replaced at once, so it
    counts as a daemon's.
    """
    owners = objects.items(pod, "metadata", "ownerReferences")
    if _MIRROR in objects.notes(pod) or any(one.get("kind") == "Node" for one in owners):
        return PodKind.MIRROR
    if any(one.get("kind") == "DaemonSet" and one.get("controller") for one in owners):
        return PodKind.DAEMON
    if objects.text(pod, "status", "phase") in FINISHED:
        return PodKind.FINISHED
    if objects.text(pod, "spec", "priorityClassName") == _CRITICAL:
        return PodKind.CRITICAL
    return PodKind.WORKLOAD


def counts(pod: Json) -> bool:
    """Whether a drain waits for it."""
    return kind(pod) in (PodKind.WORKLOAD, PodKind.CRITICAL)


def started_at(pod: Json) -> datetime | None:
    """When its kubelet took it up."""
    return objects.instant(objects.text(pod, "status", "startTime"))


def all_seen(listed: Iterable[Json], difference: timedelta) -> tuple[PodSeen, ...]:
    """Pods as core.drain reads them, each uid once."""
    return tuple({one.uid: one for one in (seen(pod, difference) for pod in listed)}.values())


def seen(pod: Json, difference: timedelta = timedelta(0)) -> PodSeen:
    """A pod as core.drain reads it. difference: what makes the API server's instants ours."""
    ends_by = objects.instant(objects.text(pod, "metadata", "deletionTimestamp"))
    return PodSeen(
        uid=objects.uid(pod),
        name=objects.name(pod),
        kind=kind(pod),
        grace_s=own_grace_s(pod),
        ends_by=objects.shifted(ends_by, difference) if ends_by else None,
        namespace=objects.namespace(pod),
        tolerates_cordon=tolerates_cordon(pod),
        containers=running(pod),
    )


def running(pod: Json) -> tuple[str, ...]:
    """Names of its containers that run, as its kubelet last said."""
    statuses = objects.items(pod, "status", "containerStatuses")
    up = [one for one in statuses if objects.part(one, "state", "running")]
    return tuple(objects.plain(objects.text(one, "name")) for one in up)


def own_grace_s(pod: Json) -> int:
    grace_s = objects.seconds(pod, "spec", "terminationGracePeriodSeconds")
    return _DEFAULT_GRACE_S if grace_s is None else grace_s


def told_for_s(pod: Json, difference: timedelta, now: datetime) -> int:
    """How long ago it was told to go, 0 if it was not.

    Its deletionTimestamp is the end of its grace, so the beginning is that much earlier.
    """
    ends_by = objects.instant(objects.text(pod, "metadata", "deletionTimestamp"))
    grace_s = objects.seconds(pod, "metadata", "deletionGracePeriodSeconds")
    if ends_by is None or grace_s is None:
        return 0
    began = objects.shifted(ends_by, difference - timedelta(seconds=grace_s))
    return max(0, int((now - began).total_seconds()))


def tolerates_cordon(pod: Json) -> bool:
    """Whether the scheduler may put it onto a cordoned node."""
    return any(
        one.get("key", "") in ("", _UNSCHEDULABLE)
        and one.get("effect", "") in ("", "NoSchedule")
        and (one.get("operator") == "Exists" or one.get("key") == _UNSCHEDULABLE)
        for one in objects.items(pod, "spec", "tolerations")
    )


def disrupted(pod_uid: str, now: datetime, message: str, *, ended: bool = False) -> Json:
    """The patch that tells a pod's owner not to count its end as a failure.

    Without a transition time the Job controller sets the condition back. ended: its machine is off, so the
    pod has failed: an owner that waits for a final phase may replace it.
    """
    mark = {
        "type": DISRUPTED,
        "status": "True",
        "reason": "EbbtideNodeDraining",
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }
    status: Json = {"conditions": [mark]}
    return {"metadata": {"uid": pod_uid}, "status": {**status, "phase": "Failed"} if ended else status}


def eviction(order: PodOrder) -> Json:
    """The body of an eviction of that very pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": order.name, "namespace": order.namespace or "default"},
        "deleteOptions": {"gracePeriodSeconds": order.grace_s, "preconditions": {"uid": order.uid}},
    }
