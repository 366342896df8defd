"""Where checkpoints go, and whether they are still there after the node has left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..model import Found, Path, PodUse, items, mapping, show, words
from ..world import World

_CHECKPOINT = re.compile(r"(?i)ckpt|check-?point|snapshot")
_OUTPUT = re.compile(r"(?i)ckpt|check-?point|snapshot|output|save|resume")
_NOT_WORK = re.compile(r"(?i)shm|tmp|cache|scratch|socket")
_ARGUMENT = re.compile(r"(?P<key>[\w.-]+)[=\s]+(?P<path>/[^\s'\";,]*)")
_FIX = "put them on a PersistentVolumeClaim or an object store, and mount that at the same path"


def _volumes(use: PodUse) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for index, volume in enumerate(items(use.spec.get("volumes"))):
        yield (*use.path, "volumes", index), volume


def _mounts(use: PodUse) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(volume, mount path, container) of every mount."""
    for _, container in use.containers():
        for mount in items(container.get("volumeMounts")):
            yield str(mount.get("name")), str(mount.get("mountPath", "")).rstrip("/"), container


def _told_paths(container: Mapping[str, Any], keys: re.Pattern[str]) -> Iterator[str]:
    """Absolute paths that the container is told to write to, by arguments or variables with a telling
    name."""
    for match in _ARGUMENT.finditer(" ".join(words(container))):
        if keys.search(match.group("key")):
            yield match.group("path")
    for variable in items(container.get("env")):
        value = str(variable.get("value") or "")
        if keys.search(str(variable.get("name", ""))) and value.startswith("/"):
            yield value


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def holds_checkpoints(use: PodUse, volume: str) -> str | None:
    """Why a volume is taken for one with checkpoints; None when it is not."""
    if _CHECKPOINT.search(volume) and not _NOT_WORK.search(volume):
        return f"its name is {volume}"
    for name, mount_path, container in _mounts(use):
        if name != volume:
            continue
        if _CHECKPOINT.search(mount_path):
            return f"it is mounted at {mount_path}"
        for told in _told_paths(container, _OUTPUT):
            if _inside(told, mount_path):
                return f"the program writes to {told}"
    return None


def claims_for_checkpoints(use: PodUse) -> Iterator[tuple[Path, str]]:
    """The claims that hold checkpoints: (path of the volume, its name)."""
    for path, volume in _volumes(use):
        name = str(volume.get("name"))
        if "persistentVolumeClaim" in volume and holds_checkpoints(use, name):
            yield path, name


def empty_dir(world: World) -> Iterator[Found]:
    """An emptyDir, and a generic ephemeral volume, end with the pod."""
    for use in world.reclaimable():
        for path, volume in _volumes(use):
            kind = next((k for k in ("emptyDir", "ephemeral") if k in volume), None)
            why = holds_checkpoints(use, str(volume.get("name"))) if kind else None
            if kind and why:
                message = (
                    f"lost at reclaim: volume {volume.get('name')} holds checkpoints ({why}) and ends "
                    f"with the pod"
                )
                yield Found(use.doc, (*path, kind), message, f"{_FIX}: replace {show((*path, kind))}")


def host_path(world: World) -> Iterator[Found]:
    """A hostPath stays on a node that is going away."""
    for use in world.reclaimable():
        for path, volume in _volumes(use):
            why = holds_checkpoints(use, str(volume.get("name"))) if "hostPath" in volume else None
            if why:
                on = mapping(volume.get("hostPath")).get("path")
                message = (
                    f"lost at reclaim: {on} is on the node, volume {volume.get('name')} holds checkpoints "
                    f"({why})"
                )
                fix = (
                    f"{_FIX}: replace {show((*path, 'hostPath'))}; if {on} is a shared file system, say "
                    f"so with the "
                    'annotation ebbtide/lint-ignore: "checkpoint-hostpath"'
                )
                yield Found(use.doc, (*path, "hostPath"), message, fix)


def unmounted(world: World) -> Iterator[Found]:
    """Checkpoints written to no volume at all."""
    for use in world.reclaimable():
        if use.partial:
            continue
        for path, container in use.containers():
            folders = [mount_path for _, mount_path, c in _mounts(use) if c is container]
            for told in sorted(set(_told_paths(container, _CHECKPOINT))):
                if not any(_inside(told, folder) for folder in folders):
                    message = f"lost at reclaim: {told} is on no volume, it is part of the container"
                    yield Found(
                        use.doc, (*path, "volumeMounts"), message, f"{_FIX}: {show((*path, 'volumeMounts'))}"
                    )
