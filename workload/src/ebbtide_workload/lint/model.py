"""The values a lint run is made of: documents, the pods they make, findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

Path = tuple[Union[str, int], ...]

LABEL = "together.ai/compute-class"
DEFAULT_GRACE_S = 30
DOC = "docs/workloads/lint.md"
SEVERITIES = ("error", "warning", "info")


def show(path: Path) -> str:
    """A path as people write it: spec.template.spec.containers[0].command."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part or "/" in part:
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def dig(value: Any, path: Sequence[str | int]) -> Any:
    """What stands at `path`, or None where the way ends."""
    for part in path:
        if isinstance(value, Mapping) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one; manifests hold null where people left a key without
    value."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; an empty list for anything else."""
    return [mapping(v) for v in value] if isinstance(value, list) else []


@dataclass(frozen=True)
class Document:
    """One Kubernetes object and where it was read. `lines` knows the line of each path, where the format has
    lines."""

    file: str
    content: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.content.get("kind", ""))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping(self.content.get("metadata"))

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or self.metadata.get("generateName") or "(no name)")

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    def line(self, path: Path) -> int | None:
        """The line of the path, or of the deepest part of it that exists."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


@dataclass(frozen=True)
class JobView:
    """The batch/v1 Job spec that makes a pod."""

    path: Path
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class PodUse:
    """A pod template somewhere in a document.

    `role` is its part in a group ("head", "Launcher", a replicated job's name). `partial` means that fields
    left out here come from an object elsewhere, so that nothing can be said about what is missing.
    """

    doc: Document
    path: Path
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    role: str = ""
    coordinates: bool = False
    batch: bool = False
    job: JobView | None = None
    replicas: int | None = None
    partial: bool = False

    def containers(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """The containers with their paths; a TrainJob's trainer stands for the one it sets."""
        if self.partial and "trainer" in self.spec:
            yield self.path, mapping(self.spec["trainer"])
        for index, container in enumerate(items(self.spec.get("containers"))):
            yield (*self.path, "containers", index), container

    @property
    def grace_s(self) -> int:
        """The grace the pod will ask for, in seconds."""
        given = self.spec.get("terminationGracePeriodSeconds")
        return given if isinstance(given, int) else DEFAULT_GRACE_S


def words(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments as far as the manifest names them."""
    return [str(w) for key in ("command", "args") for w in (container.get(key) or [])]


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables a container gets as plain values."""
    return {str(v.get("name")): str(v.get("value") or "") for v in items(container.get("env"))}


@dataclass(frozen=True)
class Found:
    """What a rule says about one place."""

    doc: Document
    path: Path
    message: str
    fix: str
    severity: str | None = None


@dataclass(frozen=True)
class Finding:
    """A rule's finding with everything a reader needs."""

    rule: str
    severity: str
    file: str
    line: int | None
    kind: str
    name: str
    namespace: str
    path: str
    message: str
    fix: str
    doc: str
