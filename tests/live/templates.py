"""The pods that a manifest would make, wherever in it their templates stand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.live.fleet import CLASS
from tests.live.kubectl import Json

# Kinds whose controllers run in every control plane; their pods come by themselves.
_PODS_OF: dict[str, Callable[[Json], int]] = {
    "Deployment": lambda spec: spec.get("replicas", 1),
    "StatefulSet": lambda spec: spec.get("replicas", 1),
    "Job": lambda spec: 0 if spec.get("suspend") else spec.get("parallelism", 1),
}


@dataclass(frozen=True)
class Manifest:
    """A file of objects."""

    path: Path
    objects: tuple[Json, ...]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        return cls(path, tuple(each for each in yaml.safe_load_all(path.read_text()) if each))

    def own_pods(self) -> int:
        """How many pods the control plane's own controllers make of it."""
        return sum(_PODS_OF[each["kind"]](each["spec"]) for each in self.objects if each["kind"] in _PODS_OF)

    def other_pods(self) -> list[Json]:
        """A pod from each template whose controller is not here: JobSet's, Trainer's, KubeRay's, Kueue's."""
        pods: list[Json] = []
        for each in self.objects:
            if each["kind"] not in _PODS_OF or each["spec"].get("suspend"):
                flavor = self._flavor(each)
                for template in _templates(each.get("spec", {})):
                    pods.append(_pod(f"{each['metadata']['name']}-{len(pods)}", template, flavor))
        return pods

    def claims(self) -> set[str]:
        """The volume claims that templates name."""
        volumes = (
            volume
            for each in self.objects
            for template in _templates(each.get("spec", {}))
            for volume in template["spec"].get("volumes", [])
        )
        return {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes
            if "persistentVolumeClaim" in volume
        }

    def _flavor(self, each: Json) -> Json:
        """What Kueue adds to the pods of a queued object: the flavor of its queue, which has just one."""
        queue = each["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        if queue is None:
            return {}
        (cluster_queue,) = [
            one["spec"]["clusterQueue"]
            for one in self._of_kind("LocalQueue")
            if one["metadata"]["name"] == queue
        ]
        ((group,),) = [
            one["spec"]["resourceGroups"]
            for one in self._of_kind("ClusterQueue")
            if one["metadata"]["name"] == cluster_queue
        ]
        (flavor,) = group["flavors"]
        (found,) = [
            one["spec"]
            for one in self._of_kind("ResourceFlavor")
            if one["metadata"]["name"] == flavor["name"]
        ]
        return found  # type: ignore[no-any-return]  # YAML has no types

    def _of_kind(self, kind: str) -> list[Json]:
        return [each for each in self.objects if each["kind"] == kind]


def asks_for_preemptible(pod: Json) -> bool:
    """Whether a pod selects the class; all others belong on standard nodes."""
    return bool(pod["spec"].get("nodeSelector", {}).get(CLASS) == "preemptible")


def _templates(value: Any) -> Iterator[Json]:
    """Everything that looks like a pod's template: a `template` with containers in its spec."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "template" and "containers" in inner.get("spec", {}):
                yield inner
            else:
                yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


def _pod(name: str, template: Json, flavor: Json) -> Json:
    spec = copy.deepcopy(template["spec"])
    if flavor:
        spec["nodeSelector"] = spec.get("nodeSelector", {}) | flavor.get("nodeLabels", {})
        spec["tolerations"] = spec.get("tolerations", []) + flavor.get("tolerations", [])
    labels = template.get("metadata", {}).get("labels", {})
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
