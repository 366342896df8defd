"""Preemptible stays and changed targets of a window, for `core.history`. By index, and a bounded number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.history import Stay, Target
from ebbtide.store.db import Tx

MOST_STAYS = 5_000  # of a pool: where there are more, the window is shorter


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """since: where the window begins. stays, targets: by cluster, those that touch it, in order."""

    since: datetime
    stays: dict[str, list[Stay]]
    targets: dict[str, list[Target]]


async def of_pool(tx: Tx, pool: str, since: datetime, *, cluster_id: str | None = None) -> PoolHistory:
    """A pool's history since an instant, or since as far back as there are few enough nodes; of one cluster
    if it is named."""
    start = since if cluster_id else await _start(tx, pool, since)
    clusters = [cluster_id] if cluster_id else None
    return PoolHistory(
        start, await _stays(tx, pool, start, clusters), await _targets(tx, pool, start, clusters)
    )


async def _start(tx: Tx, pool: str, since: datetime) -> datetime:
    found = await tx.conn.execute(
        sa.text("""
        SELECT running_at FROM nodes
        WHERE pool = :pool AND compute_class = 'preemptible' AND running_at >= :since
        ORDER BY running_at DESC OFFSET :most LIMIT 1
        """),
        {"pool": pool, "since": since, "most": MOST_STAYS},
    )
    start: datetime | None = found.scalar_one_or_none()
    return start or since


async def _stays(tx: Tx, pool: str, start: datetime, clusters: Sequence[str] | None) -> dict[str, list[Stay]]:
    rows = await tx.conn.execute(
        sa.text("""
        SELECT cluster_id, running_at, COALESCE(draining_at, left_at) AS gone_at,
               end_reason = 'preempted' AND draining_at IS NOT NULL AS reclaimed
        FROM nodes
        WHERE pool = :pool AND compute_class = 'preemptible' AND running_at IS NOT NULL
          AND (left_at >= :start OR left_at IS NULL)
          AND (CAST(:clusters AS text[]) IS NULL OR cluster_id = ANY(:clusters))
        ORDER BY running_at, no
        """),
        {"pool": pool, "start": start, "clusters": clusters},
    )
    found: dict[str, list[Stay]] = {}
    for row in rows:
        stay = Stay(row.running_at, row.gone_at, bool(row.reclaimed))
        found.setdefault(row.cluster_id, []).append(stay)
    return found


async def _targets(
    tx: Tx, pool: str, start: datetime, clusters: Sequence[str] | None
) -> dict[str, list[Target]]:
    """Targets in order, each cluster's first one as it was when the window began. A cluster that is deleted
    wants nothing any more."""
    rows = await tx.conn.execute(
        sa.text("""
        WITH mine AS (
            SELECT id, deleting_at FROM clusters
            WHERE pool = :pool AND (deleted_at IS NULL OR deleted_at >= :start)
              AND (CAST(:clusters AS text[]) IS NULL OR id = ANY(:clusters))
        )
        SELECT mine.id, b.hosts, NULL AS at, 0 AS no FROM mine CROSS JOIN LATERAL (
            SELECT hosts FROM target_changes t
            WHERE t.cluster_id = mine.id AND t.at < :start ORDER BY t.at DESC, t.no DESC LIMIT 1) AS b
        UNION ALL
        SELECT mine.id, t.hosts, t.at, t.no FROM mine JOIN target_changes t ON t.cluster_id = mine.id
        WHERE t.at >= :start
        UNION ALL
        SELECT id, 0, deleting_at, 0 FROM mine WHERE deleting_at >= :start
        ORDER BY 3 NULLS FIRST, 4
        """),
        {"pool": pool, "start": start, "clusters": clusters},
    )
    found: dict[str, list[Target]] = {}
    for row in rows:
        found.setdefault(row.id, []).append(Target(row.hosts, row.at))
    return found
