"""Storage volumes: their states, the moves between them, and how one appears inside a Kubernetes cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ebbtide.errors import BadInput, EbbtideError

# A PersistentVolume carries the volume's name, and some storage systems use it as a label or a folder.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
NAME_RULE = "lower-case letters, digits and dashes, 63 at most, no dash at either end"


class VolumeStatus(StrEnum):
    SCHEDULED = "scheduled"  # ordered; the storage system was not asked yet
    PROVISIONING = "provisioning"
    AVAILABLE = "available"  # it is there, and no cluster has it
    BOUND = "bound"  # it is there, and a cluster has it
    DELETING = "deleting"
    FAILED = "failed"  # the storage system said that this will never work


MOVES: dict[VolumeStatus, frozenset[VolumeStatus]] = {
    VolumeStatus.SCHEDULED: frozenset(
        {VolumeStatus.PROVISIONING, VolumeStatus.FAILED, VolumeStatus.DELETING}
    ),
    VolumeStatus.PROVISIONING: frozenset(
        {VolumeStatus.AVAILABLE, VolumeStatus.BOUND, VolumeStatus.FAILED, VolumeStatus.DELETING}
    ),
    VolumeStatus.AVAILABLE: frozenset({VolumeStatus.BOUND, VolumeStatus.DELETING}),
    VolumeStatus.BOUND: frozenset({VolumeStatus.AVAILABLE, VolumeStatus.DELETING}),
    VolumeStatus.FAILED: frozenset({VolumeStatus.DELETING}),
    VolumeStatus.DELETING: frozenset(),
}
THERE = frozenset({VolumeStatus.AVAILABLE, VolumeStatus.BOUND})
ATTACHABLE = frozenset({VolumeStatus.SCHEDULED, VolumeStatus.PROVISIONING, VolumeStatus.AVAILABLE})


class IllegalVolumeMove(EbbtideError):
    """A move that the table does not have. Always a fault in our own code."""


def check_move(before: VolumeStatus, after: VolumeStatus) -> None:
    """Raise IllegalVolumeMove unless the table has this move."""
    if after not in MOVES[before]:
        raise IllegalVolumeMove(f"a volume does not go from {before} to {after}")


def provisioned_status(*, attached: bool) -> VolumeStatus:
    """What a volume that is there is called."""
    return VolumeStatus.BOUND if attached else VolumeStatus.AVAILABLE


def outlives_cluster(*, made_with_cluster: bool, is_lifecycle_independent: bool) -> bool:
    """Whether a volume stays when its cluster goes: not if it was ordered with it and does not say so."""
    return not made_with_cluster or is_lifecycle_independent


def check_name(name: str, param: str = "volume_name") -> None:
    """Raise BadInput unless a PersistentVolume could have this name."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{param} names a PersistentVolume: {NAME_RULE}; got {name[:80]!r}", param=param)


def check_size(size_tib: int, most_tib: int, param: str = "size_tib") -> None:
    """Raise BadInput unless the size is a whole number of TiB that can be had."""
    if not 1 <= size_tib <= most_tib:
        raise BadInput(f"{param} is 1 to {most_tib:,} TiB, got {str(size_tib)[:40]}", param=param)


def check_growth(present_tib: int, wanted_tib: int) -> None:
    """Raise BadInput when a volume would shrink."""
    if wanted_tib < present_tib:
        raise BadInput(
            f"a volume only grows: it has {present_tib} TiB, the request says {wanted_tib}. "
            f"Make a smaller one and copy.",
            param="size_tib",
        )


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """What a template may name. handle: the storage system's own name for the volume."""

    name: str
    volume_id: str
    handle: str
    size_tib: int
    region: str
    project_id: str
    cluster_id: str

    def value(self, placeholder: str) -> str | None:
        if placeholder not in PLACEHOLDERS:
            return None
        return str(getattr(self, placeholder))


PLACEHOLDERS = tuple(VolumeFacts.__slots__)

# What stands in the cluster where the operator gave no template.
DEFAULT_TEMPLATE: Mapping[str, Any] = {
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "csi": {"driver": "storage.ebbtide.invalid", "volumeHandle": "{handle}"},
    }
}


def check_template(template: object) -> Mapping[str, Any]:
    """The template itself, when it is one. Raises BadInput naming what is wrong with it."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise BadInput("a volume template is a PersistentVolume in YAML with a `spec`")
    if template.get("kind", "PersistentVolume") != "PersistentVolume":
        raise BadInput(f"a volume template is a PersistentVolume, not a {template['kind']!r}")
    sources = sorted(set(template["spec"]) - _NOT_A_SOURCE)
    if len(sources) != 1:
        raise BadInput(
            f"a volume template's spec names one source, such as `nfs` or `csi`; it names {sources or 'none'}"
        )
    _fill(template, VolumeFacts("name", "id", "handle", 1, "region", "project", "cluster"), "")
    return template


_NOT_A_SOURCE = {
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
}


def render(template: Mapping[str, Any], facts: VolumeFacts) -> dict[str, Any]:
    """The static PersistentVolume of a volume: the operator's template with name, size and policy of ours.

    The reclaim policy is always Retain: inside the cluster nobody deletes data by deleting an object.
    """
    filled = _fill(dict(template), facts, "")
    metadata = dict(filled.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), "ebbtide.dev/volume-id": facts.volume_id}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        **filled["spec"],
        "capacity": {"storage": f"{facts.size_tib}Ti"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {**metadata, "name": facts.name, "labels": labels},
        "spec": spec,
    }


def _fill(value: Any, facts: VolumeFacts, where: str) -> Any:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _placed(found, facts, where), value)
    if isinstance(value, dict):
        return {key: _fill(item, facts, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, facts, where) for item in value]
    return value


def _placed(found: re.Match[str], facts: VolumeFacts, where: str) -> str:
    text = facts.value(found[1])
    if text is None:
        raise BadInput(
            f"the volume template's {where.lstrip('.')} names {{{found[1]}}}; there are: "
            f"{', '.join(PLACEHOLDERS)}"
        )
    return text
