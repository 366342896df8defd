"""Who wiped which host when, and whose data those carry that nobody wiped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.core.wipes import WipePolicy, carried_after
from ebbtide.store.db import Tx
from ebbtide.store.tables import hosts
from ebbtide.store.tables_instances import host_wipes


@dataclass(frozen=True, slots=True)
class HostTerms:
    """policy: of the host's pool. unwiped_project: whose data the host carries; None: nobody's."""

    policy: WipePolicy
    unwiped_project: str | None


@dataclass(frozen=True, slots=True)
class WipeRow:
    """moment: after the node left the host, or before it started there."""

    no: int
    host_name: str
    pool: str
    node_uid: str
    node_name: str
    project_id: str | None
    moment: str
    wiped_by: str
    at: datetime


async def terms(tx: Tx, host_id: str) -> HostTerms:
    """On what terms the host gets its next node."""
    row = (
        await tx.conn.execute(
            sa.text("""
            SELECT p.wipe, h.unwiped_project FROM hosts h JOIN pools p ON p.name = h.pool WHERE h.id = :id
            """),
            {"id": host_id},
        )
    ).one()
    return HostTerms(WipePolicy(row.wipe), row.unwiped_project)


async def wiped(tx: Tx, host_id: str, node_uid: str, moment: str, wiped_by: str) -> None:
    """The host carries nobody's data any more; written once for each node and moment."""
    await tx.conn.execute(
        upsert(host_wipes)
        .values(host_id=host_id, node_uid=node_uid, moment=moment, wiped_by=wiped_by, at=tx.now)
        .on_conflict_do_nothing(index_elements=["node_uid", "moment"])
    )
    await tx.conn.execute(sa.update(hosts).where(hosts.c.id == host_id).values(unwiped_project=None))


async def left_unwiped(tx: Tx, host_id: str, project_id: str) -> None:
    """A node of the project left the host, and nothing wiped it."""
    before = (
        await tx.conn.execute(
            sa.select(hosts.c.unwiped_project).where(hosts.c.id == host_id).with_for_update()
        )
    ).scalar_one()
    after = carried_after(before, project_id)
    await tx.conn.execute(sa.update(hosts).where(hosts.c.id == host_id).values(unwiped_project=after))


async def read(
    tx: Tx, *, host: str | None = None, node: str | None = None, limit: int = 100
) -> list[WipeRow]:
    """Wipes, the newest first; of one host by name, or of one node's stay by its name or uid."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT w.no, h.name AS host_name, h.pool, w.node_uid, n.name AS node_name, n.project_id, w.moment,
               w.wiped_by, w.at
        FROM host_wipes w JOIN hosts h ON h.id = w.host_id JOIN nodes n ON n.uid = w.node_uid
        WHERE (CAST(:host AS text) IS NULL OR h.name = :host)
          AND (CAST(:node AS text) IS NULL OR n.name = :node OR n.uid = :node)
        ORDER BY w.no DESC LIMIT :limit
        """),
        {"host": host, "node": node, "limit": limit},
    )
    return [WipeRow(**row._mapping) for row in rows]


async def carried(tx: Tx, host: str | None = None) -> dict[str, str]:
    """Hosts that carry somebody's data, by name: the project's id, or `several`."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT name, unwiped_project FROM hosts
        WHERE unwiped_project IS NOT NULL AND state <> 'retired'
          AND (CAST(:host AS text) IS NULL OR name = :host) ORDER BY name
        """),
        {"host": host},
    )
    return {row.name: row.unwiped_project for row in rows}
