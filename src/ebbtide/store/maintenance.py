"""Hosts in maintenance: one row for each time, and what has been on a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.nodes import Phase
from ebbtide.store.db import Tx
from ebbtide.store.tables_operator import maintenances


@dataclass(frozen=True, slots=True)
class MaintenanceRow:
    """disturbed: uids of the nodes that had to go for it. held_at: since when the host is empty and held."""

    id: str
    host_id: str
    claim_id: str
    node_uid: str
    node_phase: Phase
    disturbed: Sequence[str]
    reason: str
    until: datetime | None
    began_by: str | None
    created_at: datetime
    held_at: datetime | None
    ended_at: datetime | None
    ended_how: str | None


_READ = """
SELECT m.id, m.host_id, m.claim_id, m.node_uid, n.phase AS node_phase, m.disturbed, m.reason, m.until,
       m.began_by, m.created_at, n.running_at AS held_at, m.ended_at, m.ended_how
FROM maintenances m JOIN nodes n ON n.uid = m.node_uid
"""


async def insert(tx: Tx, **values: object) -> None:
    await tx.conn.execute(sa.insert(maintenances).values(created_at=tx.now, **values))


async def latest(tx: Tx, host_id: str) -> MaintenanceRow | None:
    """A host's maintenance: the one that goes on, else the last one."""
    rows = await tx.conn.execute(
        sa.text(_READ + " WHERE m.host_id = :host ORDER BY m.no DESC LIMIT 1"), {"host": host_id}
    )
    row = rows.first()
    return MaintenanceRow(**{**row._mapping, "node_phase": Phase(row.node_phase)}) if row else None


async def open_of(tx: Tx, host_id: str) -> MaintenanceRow | None:
    """The maintenance that a host is in, or is being emptied for."""
    row = await latest(tx, host_id)
    return row if row and row.ended_at is None else None


async def set_fields(tx: Tx, maintenance_id: str, **fields: object) -> None:
    await tx.conn.execute(sa.update(maintenances).where(maintenances.c.id == maintenance_id).values(**fields))


async def end(tx: Tx, maintenance_id: str, how: str) -> None:
    """End one. how: `returned` or `removed`."""
    await set_fields(tx, maintenance_id, ended_at=tx.now, ended_how=how)


@dataclass(frozen=True, slots=True)
class Emptied:
    """A host that came free, and the node that waited for it."""

    node_uid: str
    host_id: str


async def emptied(tx: Tx, pool: str) -> list[Emptied]:
    """Hosts of a pool that are to be worked on and have no occupant any more."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT m.node_uid, m.host_id FROM maintenances m JOIN hosts h ON h.id = m.host_id
        JOIN nodes n ON n.uid = m.node_uid
        WHERE m.ended_at IS NULL AND n.phase = 'PENDING' AND n.pool = :pool AND h.node_uid IS NULL
        ORDER BY m.no
        """),
        {"pool": pool},
    )
    return [Emptied(row.node_uid, row.host_id) for row in rows]


@dataclass(frozen=True, slots=True)
class Stay:
    """One node's stay on a host, as an operator reads it afterwards."""

    uid: str
    name: str
    compute_class: str
    phase: str
    host: str | None
    cluster_id: str | None
    cluster_name: str | None
    project: str | None
    placed_at: datetime | None
    running_at: datetime | None
    draining_at: datetime | None
    deadline: datetime | None
    left_at: datetime | None
    removed_at: datetime | None
    end_reason: str | None
    why: str | None
    outcome: str | None


_STAYS = """
SELECT n.uid, n.name, n.compute_class, n.phase, h.name AS host, n.cluster_id, c.name AS cluster_name,
       p.slug AS project, n.placed_at, n.running_at, n.draining_at, n.deadline, n.left_at, n.removed_at,
       n.end_reason, n.why, v.outcome
FROM nodes n LEFT JOIN hosts h ON h.id = n.host_id LEFT JOIN clusters c ON c.id = n.cluster_id
LEFT JOIN projects p ON p.id = n.project_id
LEFT JOIN visits v ON v.loop = 'lifecycle' AND v.key = n.uid
"""


async def stays(tx: Tx, host_id: str, limit: int) -> list[Stay]:
    """Who was on a host, the latest first."""
    rows = await tx.conn.execute(
        sa.text(_STAYS + " WHERE n.host_id = :host ORDER BY n.no DESC LIMIT :limit"),
        {"host": host_id, "limit": limit},
    )
    return [Stay(**row._mapping) for row in rows]


async def stays_of(tx: Tx, uids: Sequence[str]) -> list[Stay]:
    """Those nodes, in the order of their making."""
    rows = await tx.conn.execute(
        sa.text(_STAYS + " WHERE n.uid = ANY(:uids) ORDER BY n.no"), {"uids": list(uids)}
    )
    return [Stay(**row._mapping) for row in rows]
