"""Which class of node a pod may land on, and whether that is a good place for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..model import LABEL, Found, Path, PodUse, dig, items, mapping, show
from ..world import PREEMPTIBLE, STANDARD, World, selects

_CLASSES = (STANDARD, PREEMPTIBLE)


def _selector(use: PodUse) -> str:
    return f'{show((*use.path, "nodeSelector"))}: {{"{LABEL}": %s}}'


def class_missing(world: World) -> Iterator[Found]:
    """Without a choice the scheduler chooses."""
    for use in world.reclaimable():
        if use.partial or world.placement(use).stated:
            continue
        message = f"nothing says which compute class: the pod may land on either, label {LABEL}"
        wanted = STANDARD if use.coordinates else f"{PREEMPTIBLE} (or {STANDARD})"
        yield Found(use.doc, (*use.path, "nodeSelector"), message, f"set {_selector(use) % wanted}")


def class_unknown(world: World) -> Iterator[Found]:
    """A value no node carries: the pod stays pending for ever."""
    for use in world.pods:
        for path, value in _named_classes(use):
            if value not in _CLASSES:
                message = f"no node has {LABEL}={value}: the pod will never be scheduled"
                yield Found(use.doc, path, message, f"set {show(path)} to {STANDARD} or {PREEMPTIBLE}")


def _named_classes(use: PodUse) -> Iterator[tuple[Path, str]]:
    selected = mapping(use.spec.get("nodeSelector")).get(LABEL)
    if selected is not None:
        yield (*use.path, "nodeSelector", LABEL), str(selected)
    terms: Path = (
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    )
    for index, term in enumerate(items(dig(use.spec, terms))):
        for number, expression in enumerate(items(term.get("matchExpressions"))):
            if expression.get("key") == LABEL and expression.get("operator") == "In":
                where = (*use.path, *terms, index, "matchExpressions", number, "values")
                yield from ((where, str(value)) for value in expression.get("values") or [])


def coordinator(world: World) -> Iterator[Found]:
    """One pod that all others need should not be where it can be taken."""
    for use in world.reclaimable():
        if use.coordinates and not use.partial:
            who = f"{use.role or use.doc.name} ({use.doc.kind})"
            where = "is on" if world.placement(use).compute_class == PREEMPTIBLE else "may land on"
            message = f"{who} {where} a preemptible node: the others depend on it and go down with it"
            yield Found(use.doc, (*use.path, "nodeSelector"), message, f"set {_selector(use) % STANDARD}")


def server(world: World) -> Iterator[Found]:
    """A Service needs some replicas that stay."""
    for service in world.of_kind("Service"):
        wanted = mapping(dig(service.content, ("spec", "selector")))
        behind = [
            u for u in world.pods if wanted and u.doc.namespace == service.namespace and _matches(wanted, u)
        ]
        if not behind or any(world.placement(u).compute_class != PREEMPTIBLE for u in behind):
            continue
        for use in behind:
            if use.batch or use.doc.kind not in (
                "Deployment",
                "StatefulSet",
                "ReplicaSet",
                "Pod",
                "LeaderWorkerSet",
            ):
                continue
            message = (
                f"Service {service.name} has preemptible replicas only: one wave of reclaims takes it down"
            )
            fix = (
                f"add a second {use.doc.kind} with the same labels and {_selector(use) % STANDARD} for "
                f"the base load"
            )
            yield Found(use.doc, (*use.path, "nodeSelector"), message, fix)


def _matches(wanted: Mapping[str, Any], use: PodUse) -> bool:
    return selects({"matchLabels": wanted}, use.labels)


def tolerates_all(world: World) -> Iterator[Found]:
    """A toleration for every taint includes the one that cordons."""
    for use in world.reclaimable():
        for index, toleration in enumerate(items(use.spec.get("tolerations"))):
            if toleration.get("operator") == "Exists" and not toleration.get("key"):
                where = (*use.path, "tolerations", index)
                message = (
                    "tolerates every taint: the replacement comes straight back to the node that is drained"
                )
                fix = f"name the taints in {show(where)}, such as key: nvidia.com/gpu"
                yield Found(use.doc, where, message, fix)


def daemonset(world: World) -> Iterator[Found]:
    """A drain leaves DaemonSet pods alone until the node goes, without SIGTERM."""
    for use in world.pods:
        if use.doc.kind == "DaemonSet" and world.placement(use).compute_class == PREEMPTIBLE:
            message = "pods of a DaemonSet are not signalled at a reclaim: work in them ends without notice"
            fix = (
                "if it does work that must be saved, make it a Job or Deployment; if not, ignore this "
                "rule here"
            )
            yield Found(use.doc, ("kind",), message, fix)


def runtime_unseen(world: World) -> Iterator[Found]:
    """Grace, class and failure policy of a TrainJob come from its runtime."""
    runtimes = {d.name for kind in ("TrainingRuntime", "ClusterTrainingRuntime") for d in world.of_kind(kind)}
    for document in world.of_kind("TrainJob"):
        name = dig(document.content, ("spec", "runtimeRef", "name"))
        if name not in runtimes:
            message = (
                f"grace, class and failure policy come from the runtime {name}, which is not in the input"
            )
            fix = (
                f"lint it together: kubectl get clustertrainingruntime {name} -o yaml | ebb lint - <this "
                f"file>"
            )
            yield Found(document, ("spec", "runtimeRef"), message, fix)
