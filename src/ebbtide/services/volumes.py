"""What a tenant's request about storage volumes means. The storage system is asked by loops, never here."""

from __future__ import annotations

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.volumes import ATTACHABLE, VolumeStatus, check_growth, check_name, check_size
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.ids import Ids, is_uuid4
from ebbtide.services import replays
from ebbtide.services.audit import record
from ebbtide.services.details import Caller, Replay, VolumeChange, VolumeDetails, VolumeOrder
from ebbtide.settings import Settings
from ebbtide.store import access, clusters, fleet, visits, volumes
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop
from ebbtide.store.volumes import VolumeRow


class VolumeService:
    def __init__(self, db: Database, ids: Ids, settings: Settings) -> None:
        self._db = db
        self._ids = ids
        self._settings = settings

    async def create(self, caller: Caller, order: VolumeOrder, replay: Replay) -> VolumeDetails:
        """A new volume; it is provisioned afterwards. Raises BadInput, Forbidden, Conflict (name taken)."""
        replay = replays.of_kind("volume", replay)

        async def work(tx: Tx) -> str:
            found = await replays.seen(tx, caller, replay)
            if found:
                return found
            check_offered(self._settings)
            await _check_neighbour(tx, caller, order)
            project_id = await _project(tx, caller, order.project_id)
            made = self._ids.uuid4()
            await insert(tx, order, volume_id=made, project_id=project_id, settings=self._settings)
            await replays.remember(tx, caller, replay, made)
            after = {"name": order.name, "size_tib": order.size_tib}
            await record(tx, caller, "volume.create", made, after=after, of=project_id)
            return made

        return await self.retrieve(caller, await self._db.run(work))

    async def list(self, caller: Caller, project_id: str | None = None) -> tuple[VolumeDetails, ...]:
        """Volumes that the caller may see, oldest first; of another's project none, and no error."""
        if project_id is not None and not caller.is_operator and project_id != caller.project_id:
            return ()
        async with self._db.read() as tx:
            rows = await volumes.live(tx, project_id=project_id if caller.is_operator else caller.project_id)
        return tuple(map(volume_details, rows))

    async def retrieve(self, caller: Caller, volume_id: str) -> VolumeDetails:
        """One volume. Raises NotFound, for another tenant's as for none."""
        async with self._db.read() as tx:
            return volume_details(await visible(tx, caller, volume_id))

    async def update(self, caller: Caller, volume_id: str, change: VolumeChange) -> VolumeDetails:
        """Grow a volume. Raises BadInput (a smaller size, another region), NotFound, Conflict."""

        async def work(tx: Tx) -> None:
            row = await visible(tx, caller, volume_id, for_update=True)
            _check_immutable(row, change)
            if change.size_tib is None or change.size_tib == row.size_tib:
                return
            check_size(change.size_tib, self._settings.volume_limit_tib)
            check_growth(row.size_tib, change.size_tib)
            if row.status in (VolumeStatus.DELETING, VolumeStatus.FAILED):
                raise Conflict(f"the volume is {row.status}; it cannot grow", code="volume_" + row.status)
            await volumes.set_fields(tx, row.id, size_tib=change.size_tib)
            before, after = {"size_tib": row.size_tib}, {"size_tib": change.size_tib}
            await record(tx, caller, "volume.update", row.id, before=before, after=after, of=row.project_id)
            await visits.hint(tx, Loop.VOLUMES, [row.id])

        await self._db.run(work)
        return await self.retrieve(caller, volume_id)

    async def delete(self, caller: Caller, volume_id: str) -> None:
        """Begin to delete a volume and its data. Raises NotFound, and Conflict while a cluster has it."""

        async def work(tx: Tx) -> None:
            row = await visible(tx, caller, volume_id, for_update=True)
            if row.status is VolumeStatus.DELETING:
                return
            if row.cluster_id is not None:
                raise Conflict(
                    f"volume {row.name!r} is attached to cluster {row.cluster_id}; delete that cluster first",
                    code="volume_attached",
                )
            await volumes.move(tx, row.id, row.status, VolumeStatus.DELETING)
            before = {"name": row.name, "size_tib": row.size_tib}
            await record(tx, caller, "volume.delete", row.id, before=before, of=row.project_id)
            await visits.hint(tx, Loop.VOLUMES, [row.id])

        await self._db.run(work)


async def insert(
    tx: Tx,
    order: VolumeOrder,
    *,
    volume_id: str,
    project_id: str,
    settings: Settings,
    cluster_id: str | None = None,
) -> None:
    """Write a volume after looking at its name, size and region."""
    check_name(order.name)
    check_size(order.size_tib, settings.volume_limit_tib)
    await _check_region(tx, order.region)
    await volumes.insert(
        tx,
        id=volume_id,
        project_id=project_id,
        region=order.region,
        name=order.name,
        size_tib=order.size_tib,
        cluster_id=cluster_id,
        made_with_cluster=cluster_id is not None,
        is_lifecycle_independent=order.is_lifecycle_independent,
    )


async def attach(tx: Tx, *, volume_id: str, cluster_id: str, project_id: str, region: str) -> None:
    """Give an existing volume to a new cluster of the same project and region.

    Raises BadInput where there is no such volume, Conflict when it is not free.
    """
    row = await volumes.load(tx, volume_id) if is_uuid4(volume_id) else None
    if row is None or row.deleted_at is not None or row.project_id != project_id:
        raise BadInput(
            f"the cluster's project has no volume {volume_id[:80]!r}",
            param="volume_id",
            code="no_such_volume",
        )
    if row.region != region:
        raise BadInput(
            f"volume {row.name!r} does not exist in region {region}: it is in {row.region}, and a volume and "
            f"its cluster must be in the same region",
            param="volume_id",
        )
    if row.cluster_id is not None:
        raise Conflict(
            f"volume {row.name!r} is attached to cluster {row.cluster_id}",
            param="volume_id",
            code="volume_attached",
        )
    if row.status not in ATTACHABLE:
        raise Conflict(f"volume {row.name!r} is {row.status}", param="volume_id", code="volume_" + row.status)
    if not await volumes.attach(tx, row, cluster_id):
        raise Conflict(f"volume {row.name!r} was just taken", param="volume_id", code="volume_attached")


def check_inline(order: VolumeOrder, *, region: str, project_id: str) -> None:
    """Raise BadInput unless a volume ordered with a cluster is of the cluster's region and project."""
    if order.region != region:
        raise BadInput(
            f"shared_volume.region is {order.region!r} and the cluster's is {region!r}: a volume and its "
            f"cluster must be in the same region",
            param="shared_volume.region",
        )
    if order.project_id not in (None, project_id):
        raise BadInput(
            "shared_volume.project_id is not the cluster's project; leave it out",
            param="shared_volume.project_id",
        )


def check_offered(settings: Settings) -> None:
    """Raise BadInput where the operator has no storage to offer."""
    if not settings.offers_volumes:
        raise BadInput("storage volumes are not offered here; use your own storage from inside the cluster")


async def visible(tx: Tx, caller: Caller, volume_id: str, *, for_update: bool = False) -> VolumeRow:
    """A volume that the caller may see. Raises NotFound."""
    row = await volumes.load(tx, volume_id, for_update=for_update) if is_uuid4(volume_id) else None
    if (
        row is None
        or row.deleted_at is not None
        or not (caller.is_operator or row.project_id == caller.project_id)
    ):
        raise NotFound(f"there is no volume {volume_id[:80]!r}", param="volume_id", code="volume_not_found")
    return row


def volume_details(row: VolumeRow) -> VolumeDetails:
    return VolumeDetails(
        id=row.id,
        name=row.name,
        project_id=row.project_id,
        region=row.region,
        size_tib=row.size_tib,
        status=row.status,
        cluster_id=row.cluster_id,
        why=row.why,
        created_at=row.created_at,
    )


async def _check_region(tx: Tx, region: str) -> None:
    names = [row.name for row in await fleet.all_regions(tx)]
    if region not in names:
        raise BadInput(
            f"there is no region {region[:80]!r}; there are: {', '.join(names) or 'none'}", param="region"
        )


async def _check_neighbour(tx: Tx, caller: Caller, order: VolumeOrder) -> None:
    """A cluster named as the volume's neighbour is the caller's, and in the same region."""
    if order.instance_cluster_id is None:
        return
    row = await clusters.load(tx, order.instance_cluster_id) if is_uuid4(order.instance_cluster_id) else None
    if (
        row is None
        or row.phase is ClusterPhase.DELETED
        or not (caller.is_operator or row.project_id == caller.project_id)
    ):
        raise BadInput(f"there is no cluster {order.instance_cluster_id[:80]!r}", param="instance_cluster_id")
    if row.region != order.region:
        raise BadInput(
            f"cluster {row.name!r} is in region {row.region}, the volume in {order.region}; they must be in "
            f"the same region",
            param="instance_cluster_id",
        )


async def _project(tx: Tx, caller: Caller, project_id: str | None) -> str:
    if project_id is None or project_id == caller.project_id:
        return caller.project_id
    if caller.is_operator and await access.project(tx, id_=project_id):
        return project_id
    raise Forbidden("this key may not use that project", param="project_id", code="wrong_project")


def _check_immutable(row: VolumeRow, change: VolumeChange) -> None:
    """Refuse what cannot change only when it differs: Terraform sends the whole object back."""
    present = {
        "volume_name": row.name,
        "region": row.region,
        "project_id": row.project_id,
        "is_lifecycle_independent": row.is_lifecycle_independent,
    }
    for name, value in change.immutable.items():
        if name in present and value != present[name]:
            raise BadInput(f"{name} of a volume cannot be changed; it is {present[name]!r}", param=name)
