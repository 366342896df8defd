"""Everything a lint run sees at once: rules may ask about a pod and about the objects around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .model import LABEL, Document, PodUse, dig, items, mapping
from .workloads import pods

STANDARD, PREEMPTIBLE, ANY = "standard", "preemptible", "any"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True)
class Placement:
    """Where a pod may land: standard, preemptible or any. `stated` says that the manifest makes the choice
    at all."""

    compute_class: str
    stated: bool


class World:
    """The documents of one run. `window_s` is the time from notice to removal."""

    def __init__(self, documents: Iterable[Document], window_s: int = 300) -> None:
        self.documents = list(documents)
        self.window_s = window_s
        self.pods = [use for document in self.documents for use in pods(document)]
        self._placements = {id(use): self._place(use) for use in self.pods}

    def of_kind(self, kind: str) -> list[Document]:
        """All documents of one kind."""
        return [d for d in self.documents if d.kind == kind]

    def placement(self, use: PodUse) -> Placement:
        """Where the pod may land."""
        return self._placements[id(use)]

    def reclaimable(self) -> list[PodUse]:
        """Pods that can be on a node when it is taken back and are told of it: DaemonSets are not."""
        return [
            use
            for use in self.pods
            if use.doc.kind != "DaemonSet" and self.placement(use).compute_class != STANDARD
        ]

    def _place(self, use: PodUse) -> Placement:
        selected = mapping(use.spec.get("nodeSelector")).get(LABEL)
        if selected is not None:
            return Placement(str(selected) if selected in (STANDARD, PREEMPTIBLE) else ANY, True)
        affinity = mapping(dig(use.spec, ("affinity", "nodeAffinity")))
        required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        allowed = _allowed(items(required.get("nodeSelectorTerms")))
        if allowed is not None:
            return Placement(next(iter(allowed)) if len(allowed) == 1 else ANY, True)
        queue = self._queue(use)
        if queue is not None:
            return Placement(self._queue_class(queue, use.doc.namespace), True)
        return Placement(ANY, LABEL in str(affinity.get("preferredDuringSchedulingIgnoredDuringExecution")))

    @staticmethod
    def _queue(use: PodUse) -> str | None:
        labels = (mapping(use.doc.metadata.get("labels")), use.labels)
        return next((str(found[QUEUE_LABEL]) for found in labels if QUEUE_LABEL in found), None)

    def _queue_class(self, queue: str, namespace: str) -> str:
        """The class that a Kueue queue's flavors pin its pods to; "any" when they differ or are not here to
        see."""
        cluster_queue = next(
            (
                dig(d.content, ("spec", "clusterQueue"))
                for d in self.of_kind("LocalQueue")
                if d.name == queue and d.namespace == namespace
            ),
            None,
        )
        flavors = {
            str(flavor.get("name"))
            for d in self.of_kind("ClusterQueue")
            if d.name == cluster_queue
            for group in items(dig(d.content, ("spec", "resourceGroups")))
            for flavor in items(group.get("flavors"))
        }
        labels = {
            mapping(dig(d.content, ("spec", "nodeLabels"))).get(LABEL)
            for d in self.of_kind("ResourceFlavor")
            if d.name in flavors
        }
        return str(labels.pop()) if len(labels) == 1 and labels <= {STANDARD, PREEMPTIBLE} else ANY


def _allowed(terms: list[Mapping[str, Any]]) -> set[str] | None:
    """The classes that node selector terms (any one may match) leave open; None when none speaks of the
    class."""
    spoke = False
    union: set[str] = set()
    for term in terms:
        allowed = {STANDARD, PREEMPTIBLE}
        for expression in items(term.get("matchExpressions")):
            if expression.get("key") != LABEL:
                continue
            spoke = True
            values = {str(v) for v in expression.get("values") or []}
            operator = expression.get("operator")
            if operator == "In":
                allowed &= values
            elif operator == "NotIn":
                allowed -= values
            elif operator == "DoesNotExist":
                allowed -= {PREEMPTIBLE}
        union |= allowed
    return union if spoke else None


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) matches; an empty one matches
    everything."""
    if not isinstance(selector, Mapping):
        return False
    for key, value in mapping(selector.get("matchLabels")).items():
        if labels.get(key) != value:
            return False
    return all(_expression(e, labels) for e in items(selector.get("matchExpressions")))


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = str(expression.get("key")), [str(v) for v in expression.get("values") or []]
    operator = expression.get("operator")
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) == (operator == "Exists")
