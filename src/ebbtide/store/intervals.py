"""Billable intervals: one per node, UTC day and unchanged terms; half-open, in whole epoch seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.metering import DAY_S, Interval, epoch_s
from ebbtide.core.nodes import ComputeClass
from ebbtide.store.db import Tx


@dataclass(frozen=True, slots=True)
class Opened:
    node_uid: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Closed:
    node_uid: str
    at: datetime


async def open_(tx: Tx, opened: Sequence[Opened]) -> None:
    """Begin to bill nodes at the instants given. Starts before today are split at midnight by the meter."""
    if not opened:
        return
    await tx.conn.execute(
        sa.text("""
        INSERT INTO intervals (node_no, node_uid, cluster_id, project_id, pool, compute_class, gpus, start_s)
        SELECT n.no, n.uid, n.cluster_id, n.project_id, n.pool, n.compute_class, n.gpus, o.start_s
        FROM unnest(CAST(:uids AS text[]), CAST(:starts AS bigint[])) AS o(uid, start_s) JOIN nodes n ON n.uid
        = o.uid
        """),
        {"uids": [one.node_uid for one in opened], "starts": [epoch_s(one.at) for one in opened]},
    )


async def close(tx: Tx, closed: Sequence[Closed]) -> None:
    """Stop billing nodes at the instants given.

    What lies behind (a host that had vanished before midnight) is cut off.
    """
    if not closed:
        return
    await tx.conn.execute(
        sa.text("""
        UPDATE intervals i SET end_s = GREATEST(i.start_s, c.end_s)
        FROM unnest(CAST(:uids AS text[]), CAST(:ends AS bigint[])) AS c(uid, end_s)
        WHERE i.node_uid = c.uid AND (i.end_s IS NULL OR i.end_s > c.end_s)
        """),
        {"uids": [one.node_uid for one in closed], "ends": [epoch_s(one.at) for one in closed]},
    )


async def billed_since(tx: Tx, node_uid: str, at: datetime) -> int:
    """Billed seconds of a node that has left, from an instant on."""
    found = await tx.conn.execute(
        sa.text("""
        SELECT COALESCE(sum(GREATEST(0, end_s - GREATEST(start_s, :since))), 0) FROM intervals
        WHERE node_uid = :uid AND end_s IS NOT NULL
        """),
        {"uid": node_uid, "since": epoch_s(at)},
    )
    return int(found.scalar_one())


# Two statements, not one with a CTE: the added days must find the first one cut already, or the constraint
# that forbids overlaps refuses them.
# The nodes are locked as well: a node that leaves meanwhile waits there, before it looks for intervals to
# close. Else it would not see the day that is added here, and that day would stay open for good.
_CUT = sa.text("""
UPDATE intervals i SET end_s = (i.start_s / 86400 + 1) * 86400
FROM (
    SELECT i2.no FROM nodes n JOIN intervals i2 ON i2.node_uid = n.uid
    WHERE i2.end_s IS NULL AND i2.start_s < :today
    LIMIT :limit FOR NO KEY UPDATE OF n, i2 SKIP LOCKED
) o
WHERE i.no = o.no
RETURNING i.no
""")
_ADD = sa.text("""
INSERT INTO intervals (node_no, node_uid, cluster_id, project_id, pool, compute_class, gpus, start_s, end_s)
SELECT o.node_no, o.node_uid, o.cluster_id, o.project_id, o.pool, o.compute_class, o.gpus, day,
       CASE WHEN day < :today THEN day + 86400 END
FROM intervals o CROSS JOIN LATERAL generate_series(o.end_s, CAST(:today AS bigint), 86400) AS day
WHERE o.no = ANY(:cut)
""")


async def roll_days(tx: Tx, limit: int) -> int:
    """Close open intervals at the midnights that have passed and go on behind them.

    Answer how many were cut.
    """
    today = epoch_s(tx.now) // DAY_S * DAY_S
    cut = (await tx.conn.execute(_CUT, {"today": today, "limit": limit})).scalars().all()
    if cut:
        await tx.conn.execute(_ADD, {"today": today, "cut": list(cut)})
    return len(cut)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An interval and how far it is proven: its time is final up to `sealed_until_s`."""

    interval: Interval
    sealed_until_s: int
    node_name: str
    cluster_name: str
    gpu_type: str


# A node's time is proven by the last observation that saw it healthy, and not past its deadline; once it has
# left, by the move that closed its interval. The meter closes intervals too, at midnight, and proves nothing.
_READ = """
SELECT i.*, n.phase IN ('RUNNING', 'DRAINING') AS billed_on,
       n.name AS node_name, c.name AS cluster_name, c.gpu_type, n.healthy_until, n.deadline,
       c.observed_until
FROM intervals i JOIN nodes n ON n.uid = i.node_uid JOIN clusters c ON c.id = i.cluster_id
WHERE i.start_s < :until AND (i.end_s IS NULL OR i.end_s > :since)
  AND (CAST(:project AS text) IS NULL OR i.project_id = :project)
  AND (CAST(:cluster AS text) IS NULL OR i.cluster_id = :cluster)
ORDER BY i.node_no, i.start_s
"""


async def read(
    tx: Tx, since_s: int, until_s: int, *, project_id: str | None, cluster_id: str | None
) -> list[Sealed]:
    """Intervals that touch [since_s, until_s), each with how far it is sealed."""
    rows = await tx.conn.execute(
        sa.text(_READ), {"since": since_s, "until": until_s, "project": project_id, "cluster": cluster_id}
    )
    found = []
    for row in rows:
        interval = Interval(
            row.node_no,
            row.node_uid,
            row.cluster_id,
            row.project_id,
            row.pool,
            ComputeClass(row.compute_class),
            row.gpus,
            row.start_s,
            row.end_s,
        )
        sealed = row.end_s
        if row.end_s is None or row.billed_on:
            proven = max(row.start_s, _proven_s(row) or row.start_s)
            sealed = proven if row.end_s is None else min(row.end_s, proven)
        found.append(Sealed(interval, sealed, row.node_name, row.cluster_name, row.gpu_type))
    return found


def _proven_s(row: sa.Row[tuple[object, ...]]) -> int | None:
    """Up to which second the time of a node that is billed on is final; None when nobody looked yet."""
    seen = row.healthy_until or row.observed_until
    return epoch_s(min(seen, row.deadline or seen)) if seen else None
