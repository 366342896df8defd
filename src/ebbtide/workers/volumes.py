"""A volume's next step: made, grown, shown in its cluster, or deleted. One visit, one move."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.volumes import THERE, VolumeFacts, VolumeStatus, provisioned_status, render
from ebbtide.drivers.base import Driver
from ebbtide.providers.base import Permanent
from ebbtide.providers.storage import Storage, VolumeOrder
from ebbtide.settings import Settings
from ebbtide.store import clusters, visits, volumes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop, Visit
from ebbtide.store.volumes import VolumeRow
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.refs import ref_of
from ebbtide.workers.single import SingleVisits

LONGEST_LOOK_S = 10  # between two looks at a volume that is being made


class Volumes(SingleVisits):
    """template: the operator's PersistentVolume, see `core.volumes.render`."""

    loop = Loop.VOLUMES
    batch = 16

    def __init__(
        self,
        db: Database,
        settings: Settings,
        storage: Storage,
        driver: Driver,
        template: Mapping[str, Any],
    ) -> None:
        super().__init__(db, settings)
        self._storage = storage
        self._driver = driver
        self._template = template

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.read() as tx:
            row = await volumes.load(tx, visit.key)
            cluster = await clusters.load(tx, row.cluster_id) if row and row.cluster_id else None
        if row is None or row.deleted_at is not None or row.status is VolumeStatus.FAILED:
            return await self._settle(visit, (row.why if row else None) or "nothing to do")
        if row.status is VolumeStatus.DELETING:
            return await self._delete(visit, row)
        if row.status is VolumeStatus.SCHEDULED:
            return await self._begin(visit, row)
        if row.provisioned_tib < row.size_tib:
            return await self._provision(visit, row)
        if cluster is not None and row.shown_tib != row.provisioned_tib:
            return await self._show(visit, row, cluster)
        return await self._settle(visit, f"{row.provisioned_tib} TiB, {row.status}")

    async def _settle(self, visit: Visit, sentence: str) -> Outcome:
        async with self._db.transaction() as tx:
            return await finish(tx, visit, Outcome(sentence))

    async def _begin(self, visit: Visit, row: VolumeRow) -> Outcome:
        """Say that it is being made before anybody is asked to make it."""
        async with self._db.transaction() as tx:
            await volumes.move(tx, row.id, row.status, VolumeStatus.PROVISIONING)
            return await finish(tx, visit, Outcome("the storage system is asked for it", tx.now))

    async def _provision(self, visit: Visit, row: VolumeRow) -> Outcome:
        try:
            visit.check(self._db.clock.now())
            made = await self._storage.provision(_order(row))
        except Permanent as refusal:
            return await self._refused(visit, row, refusal.message)
        async with self._db.transaction() as tx:
            if not made.ready:
                await volumes.set_fields(tx, row.id, handle=made.handle or row.handle, why=made.why or None)
                return await self._again(tx, visit, made.why or "the storage system is at work")
            now = await volumes.load(tx, row.id, for_update=True)
            if now is None or now.status is VolumeStatus.DELETING:
                return await finish(tx, visit, Outcome("to be deleted meanwhile; looking again", tx.now))
            await volumes.set_fields(
                tx, row.id, provisioned_tib=row.size_tib, handle=made.handle or row.handle, why=None
            )
            if now.status not in THERE:
                status = provisioned_status(attached=now.cluster_id is not None)
                await volumes.move(tx, row.id, now.status, status)
            if now.cluster_id:
                await visits.hint(tx, Loop.CLUSTER, [now.cluster_id])
            return await finish(tx, visit, Outcome(f"{row.size_tib} TiB are there", tx.now))

    async def _refused(self, visit: Visit, row: VolumeRow, why: str) -> Outcome:
        """Never made: it failed. Made, and does not grow: it stays as large as it is, and says so."""
        async with self._db.transaction() as tx:
            now = await volumes.load(tx, row.id, for_update=True)
            if now is None or now.status is VolumeStatus.DELETING:
                return await finish(tx, visit, Outcome("to be deleted meanwhile; looking again", tx.now))
            if now.status in THERE:
                if now.size_tib == row.size_tib:
                    await volumes.set_fields(tx, row.id, size_tib=now.provisioned_tib, why=why)
                return await finish(
                    tx, visit, Outcome(f"it stays at {now.provisioned_tib} TiB: {why}", tx.now)
                )
            await volumes.move(tx, row.id, now.status, VolumeStatus.FAILED, why=why)
            if now.cluster_id:
                await visits.hint(tx, Loop.CLUSTER, [now.cluster_id])
            return await finish(tx, visit, Outcome(f"failed for good: {why}"))

    async def _show(self, visit: Visit, row: VolumeRow, cluster: ClusterRow) -> Outcome:
        """Let it stand in its cluster as a PersistentVolume of its name and size."""
        if cluster.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):
            return await self._settle(visit, "its cluster is being deleted")
        if not cluster.control_plane_ready:
            return await self._settle(visit, "waiting for its cluster's control plane")
        visit.check(self._db.clock.now())
        ref = ref_of(self._db, cluster)
        await self._driver.put_volume(ref, render(self._template, _facts(row)))
        async with self._db.transaction() as tx:
            await volumes.mark_shown(tx, row.id, cluster.id, row.provisioned_tib)
            await visits.hint(tx, Loop.CLUSTER, [cluster.id])
            return await finish(
                tx, visit, Outcome(f"cluster {cluster.name} shows it with {row.provisioned_tib} TiB")
            )

    async def _delete(self, visit: Visit, row: VolumeRow) -> Outcome:
        visit.check(self._db.clock.now())
        try:
            deletion = await self._storage.delete(_order(row))
        except Permanent as refusal:
            async with self._db.transaction() as tx:
                await volumes.set_fields(tx, row.id, why=refusal.message)
                return await self._again(tx, visit, f"{refusal.message}; the operator has to help")
        async with self._db.transaction() as tx:
            if not deletion.gone:
                return await self._again(tx, visit, deletion.why or "its data is being deleted")
            await volumes.set_fields(tx, row.id, deleted_at=tx.now, why=None)
            return await finish(tx, visit, Outcome("deleted"))

    async def _again(self, tx: Tx, visit: Visit, sentence: str) -> Outcome:
        wait_s = min(self._settings.retry_in_s(visit.failures), LONGEST_LOOK_S)
        return await finish(tx, visit, Outcome(sentence, tx.now + timedelta(seconds=wait_s), failed=True))


def _order(row: VolumeRow) -> VolumeOrder:
    return VolumeOrder(row.id, row.name, row.project_id, row.region, row.size_tib, row.handle)


def _facts(row: VolumeRow) -> VolumeFacts:
    return VolumeFacts(
        name=row.name,
        volume_id=row.id,
        handle=row.handle or row.id,
        size_tib=row.provisioned_tib,
        region=row.region,
        project_id=row.project_id,
        cluster_id=row.cluster_id or "",
    )
