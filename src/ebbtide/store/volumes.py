"""Volumes: the wish (its size, whose it is), the fact (how much is provisioned), and which cluster has it.

Locks come after those of clusters, before those of visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.core.volumes import ATTACHABLE, VolumeStatus, check_move, outlives_cluster, provisioned_status
from ebbtide.errors import Conflict
from ebbtide.store import visits
from ebbtide.store.db import Tx
from ebbtide.store.tables_more import volumes
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class VolumeRow:
    id: str
    project_id: str
    region: str
    name: str
    size_tib: int
    provisioned_tib: int
    status: VolumeStatus
    cluster_id: str | None
    made_with_cluster: bool
    is_lifecycle_independent: bool
    handle: str | None
    shown_tib: int | None
    why: str | None
    created_at: datetime
    deleted_at: datetime | None


def _row(row: sa.Row[tuple[object, ...]]) -> VolumeRow:
    values = dict(row._mapping)
    return VolumeRow(**{**values, "status": VolumeStatus(values["status"])})


_COLUMNS = [volumes.c[name] for name in VolumeRow.__slots__]


async def insert(tx: Tx, **values: object) -> None:
    """Write a new volume and make its first visit due.

    Raises Conflict when its name is in use in the project.
    """
    made = await tx.conn.execute(
        upsert(volumes)
        .values(status=VolumeStatus.SCHEDULED, created_at=tx.now, **values)
        .on_conflict_do_nothing(
            index_elements=["project_id", "name"], index_where=volumes.c.deleted_at.is_(None)
        )
        .returning(volumes.c.id)
    )
    if made.first() is None:
        raise Conflict(
            f"the project has a volume named {values['name']!r} already",
            param="volume_name",
            code="name_taken",
        )
    await visits.hint(tx, Loop.VOLUMES, [str(values["id"])])


async def load(tx: Tx, volume_id: str, *, for_update: bool = False) -> VolumeRow | None:
    """One volume, gone ones included. Locks the row if asked."""
    query = sa.select(*_COLUMNS).where(volumes.c.id == volume_id)
    row = (await tx.conn.execute(query.with_for_update() if for_update else query)).first()
    return _row(row) if row else None


async def live(tx: Tx, *, project_id: str | None) -> list[VolumeRow]:
    """Volumes that are not gone, of one project or of all, oldest first."""
    query = sa.select(*_COLUMNS).where(volumes.c.deleted_at.is_(None))
    if project_id is not None:
        query = query.where(volumes.c.project_id == project_id)
    rows = await tx.conn.execute(query.order_by(volumes.c.created_at, volumes.c.id))
    return [_row(row) for row in rows]


async def of_clusters(tx: Tx, cluster_ids: Sequence[str]) -> list[VolumeRow]:
    """Volumes attached to any of the clusters, oldest first."""
    rows = await tx.conn.execute(
        sa.select(*_COLUMNS)
        .where(volumes.c.cluster_id.in_(list(cluster_ids)), volumes.c.deleted_at.is_(None))
        .order_by(volumes.c.created_at, volumes.c.id)
    )
    return [_row(row) for row in rows]


async def set_fields(tx: Tx, volume_id: str, **fields: object) -> None:
    """Write fields other than the status."""
    if "status" in fields:
        raise AssertionError("statuses go through move")
    await tx.conn.execute(sa.update(volumes).where(volumes.c.id == volume_id).values(**fields))


async def move(tx: Tx, volume_id: str, before: VolumeStatus, after: VolumeStatus, **fields: object) -> bool:
    """Change a volume's status through the table; False when somebody else was faster."""
    check_move(before, after)
    result = await tx.conn.execute(
        sa.update(volumes)
        .where(volumes.c.id == volume_id, volumes.c.status == before)
        .values(status=after, **fields)
    )
    return bool(result.rowcount)


async def attach(tx: Tx, row: VolumeRow, cluster_id: str) -> bool:
    """Give a free volume to a cluster; False when it is not free any more. One statement decides."""
    bound = row.status is VolumeStatus.AVAILABLE
    result = await tx.conn.execute(
        sa.update(volumes)
        .where(
            volumes.c.id == row.id,
            volumes.c.status == row.status,
            volumes.c.status.in_(list(ATTACHABLE)),
            volumes.c.cluster_id.is_(None),
        )
        .values(cluster_id=cluster_id, shown_tib=None, **({"status": VolumeStatus.BOUND} if bound else {}))
    )
    await visits.hint(tx, Loop.VOLUMES, [row.id])
    return bool(result.rowcount)


async def release(tx: Tx, cluster_id: str) -> None:
    """A cluster is gone: volumes made for it go too, the others are free again."""
    rows = await tx.conn.execute(
        sa.select(*_COLUMNS)
        .where(volumes.c.cluster_id == cluster_id, volumes.c.deleted_at.is_(None))
        .order_by(volumes.c.id)
        .with_for_update()
    )
    for row in map(_row, rows.all()):
        stays = outlives_cluster(
            made_with_cluster=row.made_with_cluster, is_lifecycle_independent=row.is_lifecycle_independent
        )
        after = row.status
        if not stays:
            after = VolumeStatus.DELETING
        elif row.status is VolumeStatus.BOUND:
            after = provisioned_status(attached=False)
        if after is not row.status:
            check_move(row.status, after)
        await tx.conn.execute(
            sa.update(volumes)
            .where(volumes.c.id == row.id)
            .values(status=after, cluster_id=None, shown_tib=None)
        )
        await visits.hint(tx, Loop.VOLUMES, [row.id])


async def mark_shown(tx: Tx, volume_id: str, cluster_id: str, size_tib: int) -> None:
    """The cluster shows the volume with that size, if it still has it."""
    await tx.conn.execute(
        sa.update(volumes)
        .where(volumes.c.id == volume_id, volumes.c.cluster_id == cluster_id)
        .values(shown_tib=size_tib)
    )


async def wake(tx: Tx, cluster_id: str) -> None:
    """Make due the visits of a cluster's volumes: something about the cluster changed that they wait for."""
    await visits.hint(tx, Loop.VOLUMES, [row.id for row in await of_clusters(tx, [cluster_id])])


async def all_shown(tx: Tx, cluster_id: str) -> bool:
    """Whether every volume of the cluster is there and stands in it as a PersistentVolume."""
    rows = await of_clusters(tx, [cluster_id])
    return all(row.status is VolumeStatus.BOUND and row.shown_tib is not None for row in rows)
