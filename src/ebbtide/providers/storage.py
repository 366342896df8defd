"""The seam to where volumes come from: a network file system, a storage cluster, a cloud's disks.

Every call names the volume's id, so that repeating one is harmless: a lost reply finds the same volume again.
Nothing here waits for slow work; it answers what is so now and is asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class VolumeOrder:
    """What is asked for. handle: the storage system's own name for the volume, once it said one."""

    volume_id: str
    name: str
    project_id: str
    region: str
    size_tib: int
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Provisioned:
    """How far it is. ready: at least as large as ordered, and usable. why: what is waited for."""

    ready: bool
    handle: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class StorageDeletion:
    """gone: nothing is left of the volume, its data neither."""

    gone: bool
    why: str = ""


class Storage(Protocol):
    """Makes, grows and deletes volumes. All methods raise `providers.base.Transient` or `Permanent` only."""

    async def provision(self, order: VolumeOrder) -> Provisioned:
        """Make the volume, or find the one made before, and bring it to the ordered size. Never shrinks."""

    async def delete(self, order: VolumeOrder) -> StorageDeletion:
        """Delete the volume and its data; called again until it is gone. What is not there is gone."""
