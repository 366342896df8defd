"""Node objects: how they read, and the patches that we send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ebbtide.core import marks
from ebbtide.core.drain import PodKind
from ebbtide.core.events import rfc3339
from ebbtide.core.nodes import ComputeClass
from ebbtide.drivers.base import NodeRef, NodeSeen, Notice
from ebbtide.drivers.kubernetes import objects, pods
from ebbtide.drivers.kubernetes.objects import Json

ALL = "/api/v1/nodes"
OUT_OF_SERVICE: Json = {
    "key": "node.kubernetes.io/out-of-service",
    "value": "nodeshutdown",
    "effect": "NoExecute",
}
_LONGEST_MESSAGE = 1000


def path(name: str, subresource: str = "") -> str:
    return f"{ALL}/{name}" + (f"/{subresource}" if subresource else "")


def is_ours(node: Json, ref: NodeRef) -> bool:
    """Whether this object is that node. Its name never comes again, so a label that was taken off does not
    make it somebody else's.
    """
    return bool(objects.labels(node).get(marks.LABEL_NODE_UID, ref.uid) == ref.uid)


def seen(nodes: Iterable[Json], listed_pods: Iterable[Json]) -> list[NodeSeen]:
    """Every node of ours with the work on it. Of two that claim one uid the older is the true one."""
    work: dict[str, list[Json]] = {}
    for pod in listed_pods:
        if pods.kind(pod) is PodKind.WORKLOAD:
            work.setdefault(objects.text(pod, "spec", "nodeName"), []).append(pod)
    ours: dict[str, NodeSeen] = {}
    for node in sorted(nodes, key=lambda one: objects.text(one, "metadata", "creationTimestamp")):
        one = _seen(node, work.get(objects.name(node), []))
        ours.setdefault(one.uid, one)
    return list(ours.values())


def _seen(node: Json, work: list[Json]) -> NodeSeen:
    return NodeSeen(
        uid=objects.plain(objects.text(node, "metadata", "labels", marks.LABEL_NODE_UID)),
        name=objects.name(node),
        ready=objects.condition(node, "Ready").get("status") == "True",
        gpus=_gpus(node),
        cordoned=is_cordoned(node),
        workload_pods=len(work),
        first_pod_at=objects.earliest(pods.started_at(pod) for pod in work),
        deleting=is_deleting(node),
    )


def _gpus(node: Json) -> int:
    written = str(objects.part(node, "status", "allocatable").get(marks.GPU, "0"))
    return int(written) if written.isascii() and written.isdigit() and len(written) < 6 else 0


def is_cordoned(node: Json) -> bool:
    return objects.part(node, "spec").get("unschedulable") is True


def is_deleting(node: Json) -> bool:
    return bool(objects.text(node, "metadata", "deletionTimestamp"))


def is_preemptible(node: Json) -> bool:
    return objects.labels(node).get(marks.LABEL_CLASS) == ComputeClass.PREEMPTIBLE


def finalizers_without_ours(node: Json) -> list[str] | None:
    """The finalizers of others, None where ours is not there."""
    present = objects.words(node, "metadata", "finalizers")
    return [one for one in present if one != marks.FINALIZER] if marks.FINALIZER in present else None


# -- patches: each is what is to change, or None where nothing is


def admission(node: Json) -> Json | None:
    """Take the `initializing` taint away; hold preemptible nodes, so that a deletion becomes a release."""
    taints = objects.items(node, "spec", "taints")
    left = [one for one in taints if one.get("key") != marks.TAINT_INITIALIZING]
    finalizers = objects.words(node, "metadata", "finalizers")
    # No finalizer can be added to what is being deleted.
    hold = is_preemptible(node) and marks.FINALIZER not in finalizers and not is_deleting(node)
    if len(left) == len(taints) and not hold:
        return None
    change: Json = {"spec": {"taints": left}}
    return {**change, "metadata": {"finalizers": [*finalizers, marks.FINALIZER]}} if hold else change


def sentence(notice: Notice) -> str:
    """Why, and until when."""
    until = rfc3339(notice.deadline)
    told = notice.message if until in notice.message else f"{notice.message}; its pods have until {until}"
    return told[:_LONGEST_MESSAGE]


def announcement(node: Json, notice: Notice) -> Json | None:
    """Cordon, and say until when and why: one patch."""
    wanted = {
        marks.ANNOTATION_DEADLINE: rfc3339(notice.deadline),
        marks.ANNOTATION_REASON: f"{notice.reason}: {notice.message}"[:_LONGEST_MESSAGE],
    }
    if is_cordoned(node) and wanted.items() <= objects.notes(node).items():
        return None
    return {"metadata": {"annotations": wanted}, "spec": {"unschedulable": True}}


def draining(node: Json, notice: Notice, now: datetime) -> Json | None:
    """The condition that says so, for whoever looks at conditions."""
    message = sentence(notice)
    present = objects.condition(node, marks.CONDITION_DRAINING)
    known = (present.get("status"), present.get("reason"), present.get("message"))
    if known == ("True", str(notice.reason), message):
        return None
    mark = {
        "type": marks.CONDITION_DRAINING,
        "status": "True",
        "reason": str(notice.reason),
        "message": message,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": rfc3339(now),
    }
    return {"status": {"conditions": [mark]}}


NOT_DRAINING: Mapping[str, object] = {
    "status": {"conditions": [{"type": marks.CONDITION_DRAINING, "$patch": "delete"}]}
}


def announced_for(node: Json, reason: str) -> bool:
    """Whether what the node says of its removal was said under that reason."""
    written = objects.notes(node).get(marks.ANNOTATION_REASON, "")
    return str(written).partition(":")[0] == reason


def announced(node: Json) -> tuple[str, str] | None:
    """The reason and the sentence that the node carries, None where none was announced."""
    written = objects.notes(node).get(marks.ANNOTATION_REASON)
    if not isinstance(written, str):
        return None
    reason, _, message = written.partition(": ")
    until = str(objects.notes(node).get(marks.ANNOTATION_DEADLINE, ""))
    return reason, message if until in message else f"{message}; until {until}"


def taken_back(node: Json, reason: str) -> Json | None:
    """Uncordon, if it was cordoned under that reason."""
    if not announced_for(node, reason):
        return None
    gone = {marks.ANNOTATION_DEADLINE: None, marks.ANNOTATION_REASON: None}
    return {"metadata": {"annotations": gone}, "spec": {"unschedulable": None}}


def cordon(node: Json) -> Json | None:
    return None if is_cordoned(node) else {"spec": {"unschedulable": True}}


def out_of_service(node: Json) -> Json | None:
    """Cordon, and say that the machine is off: volumes may be detached without its kubelet."""
    taints = objects.items(node, "spec", "taints")
    if any(one.get("key") == OUT_OF_SERVICE["key"] for one in taints):
        return cordon(node)
    return {"spec": {"unschedulable": True, "taints": [*taints, OUT_OF_SERVICE]}}


def letting_go(node: Json) -> Json | None:
    """Take our finalizer off."""
    others = finalizers_without_ours(node)
    return None if others is None else {"metadata": {"finalizers": others}}
