"""Claims: counts promised in a pool, and how far they are served."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.claims import ClaimKind, ClaimState
from ebbtide.store.db import Tx
from ebbtide.store.tables import claims


@dataclass(frozen=True, slots=True)
class ClaimRow:
    id: str
    no: int
    kind: ClaimKind
    pool: str
    cluster_id: str | None
    ref: str | None
    for_whom: str
    args_hash: str | None
    hosts: int
    state: ClaimState
    created_at: datetime
    served_at: datetime | None
    ended_at: datetime | None


def _row(row: sa.Row[tuple[object, ...]]) -> ClaimRow:
    values = dict(row._mapping)
    return ClaimRow(**{**values, "kind": ClaimKind(values["kind"]), "state": ClaimState(values["state"])})


async def insert(tx: Tx, **values: object) -> None:
    await tx.conn.execute(sa.insert(claims).values(state=ClaimState.OPEN, created_at=tx.now, **values))


async def lock_ref(tx: Tx, ref: str) -> None:
    """Let requests for one reference wait for one another until the transaction ends, in whatever pools."""
    await tx.conn.execute(
        sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:text, 0))"), {"text": f"claim/{ref}"}
    )


async def by_ref(tx: Tx, ref: str) -> ClaimRow | None:
    """The claim in force under a reference, or the last ended one."""
    row = (
        await tx.conn.execute(
            sa.select(claims)
            .where(claims.c.ref == ref)
            .order_by(claims.c.ended_at.desc().nulls_first(), claims.c.no.desc())
        )
    ).first()
    return _row(row) if row else None


async def load(tx: Tx, claim_id: str) -> ClaimRow | None:
    row = (await tx.conn.execute(sa.select(claims).where(claims.c.id == claim_id))).first()
    return _row(row) if row else None


async def in_force(tx: Tx, pool: str | None = None) -> list[ClaimRow]:
    """Claims that have not ended, oldest first."""
    query = sa.select(claims).where(claims.c.ended_at.is_(None))
    if pool is not None:
        query = query.where(claims.c.pool == pool)
    return [_row(row) for row in await tx.conn.execute(query.order_by(claims.c.no))]


async def settle(tx: Tx, pool: str) -> None:
    """Bring the states of a pool's claims in line with their nodes.

    SERVED when none waits, ENDED when none is left.
    """
    await tx.conn.execute(
        sa.text("""
        UPDATE claims c SET
          state = CASE WHEN s.live = 0 THEN 'ended' WHEN s.waiting = 0 THEN 'served' ELSE c.state END,
          served_at = CASE WHEN s.live > 0 AND s.waiting = 0 THEN COALESCE(c.served_at, :now) ELSE c.served_at
          END,
          ended_at = CASE WHEN s.live = 0 THEN COALESCE(c.ended_at, :now) ELSE c.ended_at END
        FROM (
          SELECT c2.id, count(n.uid) FILTER (WHERE n.phase = 'PENDING') AS waiting,
                 count(n.uid) FILTER (WHERE n.phase NOT IN ('REMOVING', 'REMOVED')) AS live
          FROM claims c2 LEFT JOIN nodes n ON n.claim_id = c2.id
          WHERE c2.pool = :pool AND c2.state = 'open' OR c2.pool = :pool AND c2.ended_at IS NULL AND c2.kind
          <> 'standard'
          GROUP BY c2.id
        ) s
        WHERE c.id = s.id AND (s.live = 0 OR s.waiting = 0) AND c.ended_at IS NULL
        """),
        {"pool": pool, "now": tx.now},
    )


async def end_empty(tx: Tx) -> int:
    """End claims that were served and whose last node has gone (replaced, scaled down); answer how many."""
    result = await tx.conn.execute(
        sa.text("""
        UPDATE claims c SET state = 'ended', ended_at = :now
        WHERE c.ended_at IS NULL AND c.state = 'served' AND NOT EXISTS (
            SELECT 1 FROM nodes n WHERE n.claim_id = c.id AND n.phase NOT IN ('REMOVING', 'REMOVED'))
        """),
        {"now": tx.now},
    )
    return result.rowcount


async def end_of_cluster(tx: Tx, cluster_id: str) -> None:
    """End every claim of a cluster that goes away."""
    await tx.conn.execute(
        sa.update(claims)
        .where(claims.c.cluster_id == cluster_id, claims.c.ended_at.is_(None))
        .values(state=ClaimState.ENDED, ended_at=tx.now)
    )
