"""The playground's volumes, as storage."""

from __future__ import annotations

from ebbtide.playground.world import World
from ebbtide.providers.simulated import translated
from ebbtide.providers.storage import Provisioned, StorageDeletion, VolumeOrder


class SimulatedStorage:
    """A `Storage` over a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def provision(self, order: VolumeOrder) -> Provisioned:
        with translated():
            disk = self._world.provision_volume(order.volume_id, order.name, order.region, order.size_tib)
        if disk.size_tib < order.size_tib:
            return Provisioned(False, disk.handle, f"{disk.size_tib} of {order.size_tib} TiB are there")
        return Provisioned(True, disk.handle)

    async def delete(self, order: VolumeOrder) -> StorageDeletion:
        with translated():
            gone = self._world.delete_volume(order.volume_id)
        return StorageDeletion(gone, "" if gone else "the data is being deleted")
