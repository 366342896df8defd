"""Nodes as people and clients read them.

With host, machine size, last outcome. Many clusters in one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.store.db import Tx


@dataclass(frozen=True, slots=True)
class NodeReading:
    uid: str
    name: str
    cluster_id: str | None
    compute_class: str
    phase: str
    gpus: int
    host_name: str | None
    instance_id: str | None
    address: str | None
    memory_gib: int
    cpu_cores: int
    created_at: datetime
    running_at: datetime | None
    draining_at: datetime | None
    deadline: datetime | None
    left_at: datetime | None
    removed_at: datetime | None
    drain_kind: str | None
    end_reason: str | None
    why: str | None
    outcome: str | None


_READ = """
SELECT n.uid, n.name, n.cluster_id, n.compute_class, n.phase, n.gpus, h.name AS host_name, n.instance_id,
n.address,
       p.memory_gib, p.cpu_cores, n.created_at, n.running_at, n.draining_at, n.deadline, n.left_at,
       n.removed_at,
       n.drain_kind, n.end_reason, n.why, v.outcome
FROM nodes n JOIN pools p ON p.name = n.pool LEFT JOIN hosts h ON h.id = n.host_id
LEFT JOIN visits v ON v.loop = 'lifecycle' AND v.key = n.uid
"""


async def of_clusters(tx: Tx, cluster_ids: Sequence[str], gone_since: datetime) -> list[NodeReading]:
    """Nodes of clusters.

    All that are there, and those that left since the instant given. In order of placement.
    """
    rows = await tx.conn.execute(
        sa.text(
            _READ
            + """
            WHERE n.cluster_id = ANY(:ids) AND (n.phase <> 'REMOVED' OR n.removed_at >= :since) ORDER BY n.no
            """
        ),
        {"ids": list(cluster_ids), "since": gone_since},
    )
    return [NodeReading(*row) for row in rows]


async def live(tx: Tx, cluster_id: str | None = None) -> list[NodeReading]:
    """Every node that is not REMOVED, of one cluster or of the fleet."""
    rows = await tx.conn.execute(
        sa.text(
            _READ
            + """
            WHERE n.phase <> 'REMOVED' AND (CAST(:id AS text) IS NULL OR n.cluster_id = :id) ORDER BY n.no
            """
        ),
        {"id": cluster_id},
    )
    return [NodeReading(*row) for row in rows]


async def by_uids(tx: Tx, uids: Sequence[str]) -> list[NodeReading]:
    rows = await tx.conn.execute(
        sa.text(_READ + " WHERE n.uid = ANY(:uids) ORDER BY n.no"), {"uids": list(uids)}
    )
    return [NodeReading(*row) for row in rows]


async def failed_joins(tx: Tx, cluster_id: str) -> int:
    """How many preemptible nodes of a cluster failed to join since one ran, whatever their hosts."""
    found: int = (
        await tx.conn.execute(
            sa.text("""
            SELECT count(*) FROM nodes
            WHERE cluster_id = :id AND compute_class = 'preemptible'
              AND end_reason = 'failed' AND running_at IS NULL
              AND no > COALESCE((
                  SELECT max(no) FROM nodes
                  WHERE cluster_id = :id AND compute_class = 'preemptible' AND running_at IS NOT NULL), 0)
            """),
            {"id": cluster_id},
        )
    ).scalar_one()
    return found


async def came_up_since(tx: Tx, pool: str, since: datetime) -> bool:
    """Whether some machine of the pool, placed since then, came up."""
    found: bool = (
        await tx.conn.execute(
            sa.text("""
            SELECT EXISTS (
                SELECT 1 FROM nodes WHERE pool = :pool AND placed_at >= :since AND cluster_id IS NOT NULL
                  AND (phase IN ('BOOTSTRAPPING', 'RUNNING', 'DRAINING') OR running_at IS NOT NULL))
            """),
            {"pool": pool, "since": since},
        )
    ).scalar_one()
    return found
