"""Simulated storage: volumes that take a while to be made, grown and deleted, and how clusters show them."""

from __future__ import annotations

from typing import Any, TypeVar

from ebbtide.playground import clusters
from ebbtide.playground.behaviours import (
    Behaviour,
    ProvisionFails,
    ProvisionImpossible,
    ProvisionReplyLost,
    ProvisionTakes,
    VolumeDeleteForgets,
    VolumeDeleteReplyLost,
)
from ebbtide.playground.facts import What
from ebbtide.playground.state import Disk, State
from ebbtide.playground.trouble import NeverPossible, NothingDone, ReplyLost

_B = TypeVar("_B", bound=Behaviour)


def _find(state: State, name: str, kind: type[_B]) -> tuple[str, _B] | None:
    for scope in (f"volume:{name}", ""):
        found = state.behaviours.get(scope, {}).get(kind.slot)
        if found is not None:
            return (scope, found) if isinstance(found, kind) else None
    return None


def _strikes(state: State, name: str, kind: type[Any]) -> bool:
    """Whether a counted misbehaviour happens now; if so, one of its times is used up."""
    found = _find(state, name, kind)
    if found is None:
        return False
    scope, behaviour = found
    if behaviour.times is None:
        return True
    key = f"{scope}|{behaviour.slot}"
    state.used[key] = state.used.get(key, 0) + 1
    return bool(state.used[key] <= behaviour.times)


def settled(state: State, volume_id: str, size_tib: int) -> Disk | None:
    """The disk, if a provision of that size would change nothing and nothing is set to go wrong."""
    disk = state.disks.get(volume_id)
    if disk is None or disk.wanted_tib < size_tib or disk.gone_at is not None:
        return None
    kinds: tuple[type[Behaviour], ...] = (ProvisionReplyLost, ProvisionFails, ProvisionImpossible)
    return None if any(_find(state, disk.name, kind) for kind in kinds) else disk


def provision(state: State, volume_id: str, name: str, region: str, size_tib: int) -> Disk:
    """Begin to make a volume or to grow it; the same again finds it as it is."""
    impossible = _find(state, name, ProvisionImpossible)
    if impossible is not None:
        raise NeverPossible(impossible[1].why)
    if _strikes(state, name, ProvisionFails):
        raise NothingDone("the storage system refused for the moment")
    disk = state.disks.get(volume_id)
    if disk is not None and disk.gone_at is not None:
        raise NeverPossible(f"the volume {volume_id} was deleted")
    if disk is None:
        disk = state.disks[volume_id] = Disk(volume_id, name, region, handle=f"sim-vol-{volume_id[:8]}")
    if size_tib > disk.wanted_tib:
        takes = _find(state, name, ProvisionTakes)
        disk.wanted_tib = size_tib
        disk.ready_at = state.at(takes[1].seconds if takes else state.habits.volume_s)
        state.plan(disk.ready_at, "volume_ready", volume_id)
    if _strikes(state, name, ProvisionReplyLost):
        state.tell(What.REPLY_LOST, detail=f"provision {name}")
        raise ReplyLost("the reply to the provision was lost")
    return disk


def on_volume_ready(state: State, volume_id: str) -> None:
    disk = state.disks.get(volume_id)
    if disk is None or disk.gone_at is not None or disk.ready_at is None or disk.ready_at > state.now:
        return
    if disk.size_tib < disk.wanted_tib:
        disk.size_tib = disk.wanted_tib
        state.tell(What.VOLUME_READY, detail=f"{disk.name} has {disk.size_tib} TiB")
        state.number()


def delete(state: State, volume_id: str) -> bool:
    """Delete a volume and its data. True when nothing is left of it."""
    disk = state.disks.get(volume_id)
    if disk is None:
        return True
    if _strikes(state, disk.name, VolumeDeleteForgets):
        raise NothingDone("the storage system did not delete the volume")
    if disk.gone_at is None:
        _complain_if_shown(state, disk)
        disk.gone_at = state.at(state.habits.volume_s)
        state.plan(disk.gone_at, "volume_gone", volume_id)
    if _strikes(state, disk.name, VolumeDeleteReplyLost):
        state.tell(What.REPLY_LOST, detail=f"delete {disk.name}")
        raise ReplyLost("the reply to the delete was lost")
    return False


def _complain_if_shown(state: State, disk: Disk) -> None:
    for cluster in state.clusters.values():
        if disk.name in cluster.volumes and not cluster.deleted:
            state.violations.append(
                f"{state.now.isoformat()}: volume {disk.name} was deleted and cluster {cluster.name} shows it"
            )


def on_volume_gone(state: State, volume_id: str) -> None:
    disk = state.disks.pop(volume_id, None)
    if disk is not None:
        state.tell(What.VOLUME_GONE, detail=disk.name)


def put(state: State, cluster_id: str, manifest: dict[str, Any]) -> None:
    """What `kubectl apply` does with a PersistentVolume."""
    cluster = clusters.ensure(state, cluster_id)
    name = manifest["metadata"]["name"]
    cluster.volumes[name] = manifest
    state.tell(
        What.VOLUME_SHOWN, cluster_id=cluster_id, detail=f"{name}: {manifest['spec']['capacity']['storage']}"
    )


def drop(state: State, cluster_id: str, name: str) -> None:
    """What `kubectl delete pv` does."""
    if clusters.ensure(state, cluster_id).volumes.pop(name, None) is not None:
        state.tell(What.VOLUME_DROPPED, cluster_id=cluster_id, detail=name)
