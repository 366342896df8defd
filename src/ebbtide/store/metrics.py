"""Numbers for whoever watches over the fleet, counted when asked."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from ebbtide.store.db import Tx

FAILING_FROM = 3


async def nodes_ended(tx: Tx) -> list[tuple[str, str, int]]:
    """(compute class, end reason, nodes) of every node whose end was decided.

    Rows of nodes are kept for good.
    """
    rows = await tx.conn.execute(
        sa.text("""
        SELECT compute_class, end_reason, count(*) AS n FROM nodes WHERE end_reason IS NOT NULL
        GROUP BY 1, 2 ORDER BY 1, 2
        """)
    )
    return [(row.compute_class, row.end_reason, row.n) for row in rows]


async def worker_runs(tx: Tx) -> list[tuple[str, int]]:
    """(how they ended, lives), as far back as they are kept."""
    rows = await tx.conn.execute(
        sa.text(
            "SELECT COALESCE(ended_how, 'alive') AS how, count(*) AS n FROM worker_runs GROUP BY 1 ORDER BY 1"
        )
    )
    return [(row.how, row.n) for row in rows]


@dataclass(frozen=True, slots=True)
class LoopState:
    """overdue_s: how late the latest visit is that nobody works on; failing: rows that failed repeatedly."""

    loop: str
    overdue_s: float
    failing: int


async def loops(tx: Tx) -> list[LoopState]:
    rows = await tx.conn.execute(
        sa.text("""
        SELECT loop, count(*) FILTER (WHERE failures >= :failing AND due_at IS NOT NULL) AS failing,
               CAST(extract(epoch FROM max(CAST(:now AS timestamptz) - GREATEST(due_at, lease_until))
                            FILTER (WHERE due_at IS NOT NULL)) AS float8) AS overdue_s
        FROM visits GROUP BY loop ORDER BY loop
        """),
        {"now": tx.now, "failing": FAILING_FROM},
    )
    return [LoopState(row.loop, max(0.0, row.overdue_s or 0.0), row.failing) for row in rows]


async def oldest_removals(tx: Tx) -> dict[str, float]:
    """Per pool, for how many seconds the oldest REMOVING node has been so."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT pool, CAST(extract(epoch FROM CAST(:now AS timestamptz) - min(phase_since)) AS float8) AS age_s
        FROM nodes WHERE phase = 'REMOVING' AND phase <> 'REMOVED' GROUP BY pool
        """),
        {"now": tx.now},
    )
    return {row.pool: max(0.0, row.age_s) for row in rows}


async def drains_overdue(tx: Tx) -> int:
    """Nodes that are DRAINING past the end of their drain."""
    number: int = (
        await tx.conn.execute(
            sa.text("""
            SELECT count(*) FROM nodes WHERE phase = 'DRAINING' AND phase <> 'REMOVED' AND ends_at < :now
            """),
            {"now": tx.now},
        )
    ).scalar_one()
    return number


async def unsealed_s(tx: Tx) -> float:
    """For how long the cluster that was seen last of all those with time to bill was not seen."""
    age_s: float | None = (
        await tx.conn.execute(
            sa.text("""
            SELECT max(CAST(extract(epoch FROM CAST(:now AS timestamptz) - c.observed_until) AS float8))
            FROM clusters c WHERE c.phase <> 'DELETED' AND EXISTS (
                SELECT 1 FROM nodes n
                WHERE n.cluster_id = c.id AND n.phase IN ('RUNNING', 'DRAINING') AND n.phase <> 'REMOVED')
            """),
            {"now": tx.now},
        )
    ).scalar_one()
    return max(0.0, age_s or 0.0)
