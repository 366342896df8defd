"""Which rows are due for a visit of which loop: leases with fencing, hints that cannot be lost while a visit
runs.

One row per (loop, key). `due_at` null means settled. A visit is leased to one worker at a time; the lease's
`fence` grows with
each claim, and `finish` refuses a fence that is not the latest, so a worker that was thought dead cannot
write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa

from ebbtide.errors import LeaseLost
from ebbtide.store.db import Tx


class Loop(StrEnum):
    LIFECYCLE = "lifecycle"  # key: node uid
    CLUSTER = "cluster"  # key: cluster id
    OBSERVATION = "observation"  # key: cluster id
    FULFILLMENT = "fulfillment"  # key: pool
    METERING = "metering"  # key: "all"
    LEAKS = "leaks"  # key: pool
    RETENTION = "retention"  # key: "all"


@dataclass(frozen=True, slots=True)
class Visit:
    """A claimed visit. `hints` is what the counter said at the claim."""

    loop: Loop
    key: str
    fence: int
    hints: int
    failures: int
    lease_until: datetime

    def check(self, now: datetime) -> None:
        """Before each outside call.

        Raise LeaseLost when the lease is over and somebody else may have the row.
        """
        if now >= self.lease_until:
            raise LeaseLost(f"the lease on {self.loop} {self.key} ended at {self.lease_until}")


@dataclass(frozen=True, slots=True)
class Finish:
    """How a visit ended: its sentence, and when to come back (None: settled)."""

    visit: Visit
    outcome: str
    again_at: datetime | None
    failed: bool = False
    urgent: bool | None = None


_HINT = sa.text("""
INSERT INTO visits AS v (loop, key, cluster_id, urgent, due_at, hints)
SELECT :loop, k, c, u, d, 1
FROM unnest(CAST(:keys AS text[]), CAST(:clusters AS text[]), CAST(:urgent AS bool[]), CAST(:due AS
timestamptz[]))
     AS h(k, c, u, d)
ORDER BY k
ON CONFLICT (loop, key) DO UPDATE
SET due_at = LEAST(COALESCE(v.due_at, excluded.due_at), excluded.due_at),
    hints = v.hints + 1,
    urgent = v.urgent OR excluded.urgent,
    failures = CASE WHEN excluded.urgent AND NOT v.urgent THEN 0 ELSE v.failures END
""")


async def hint(
    tx: Tx,
    loop: Loop,
    keys: Iterable[str],
    *,
    due_at: datetime | None = None,
    clusters: Sequence[str | None] | None = None,
    urgent: bool = False,
) -> None:
    """Make visits due at `due_at` (now by default) or earlier. A visit that runs meanwhile is made again."""
    listed = list(keys)
    if not listed:
        return
    due = due_at or tx.now
    await tx.conn.execute(
        _HINT,
        {
            "loop": loop,
            "keys": listed,
            "clusters": list(clusters) if clusters else [None] * len(listed),
            "urgent": [urgent] * len(listed),
            "due": [due] * len(listed),
        },
    )
    if due <= tx.now:
        tx.wake(loop)


async def wake_existing(tx: Tx, loop: Loop, keys: Sequence[str]) -> None:
    """Make due now those of the visits that there are; unlike a hint it makes none."""
    result = await tx.conn.execute(
        sa.text("""
        UPDATE visits SET due_at = LEAST(COALESCE(due_at, :now), :now), hints = hints + 1
        WHERE (loop, key) IN (SELECT loop, key FROM visits WHERE loop = :loop AND key = ANY(:keys) ORDER BY
        key FOR UPDATE)
        """),
        {"loop": loop, "keys": list(keys), "now": tx.now},
    )
    if result.rowcount:
        tx.wake(loop)


# The cap counts within one batch: one sick cluster with many due nodes leaves room for the others in every
# claim.
_CLAIM = sa.text("""
WITH due AS (
    SELECT loop, key, urgent, due_at,
           row_number() OVER (PARTITION BY COALESCE(cluster_id, key) ORDER BY urgent DESC, due_at) AS place
    FROM visits
    WHERE loop = :loop AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)
), picked AS (
    SELECT v.loop, v.key FROM visits v JOIN due USING (loop, key)
    WHERE due.place <= :cap
    ORDER BY due.urgent DESC, due.due_at, v.key
    LIMIT :limit
    FOR UPDATE OF v SKIP LOCKED
)
UPDATE visits v SET lease_owner = :owner, lease_until = :lease_until, fence = v.fence + 1
FROM picked p
WHERE v.loop = p.loop AND v.key = p.key AND (v.lease_until IS NULL OR v.lease_until <= :now) AND v.due_at <=
:now
RETURNING v.loop, v.key, v.fence, v.hints, v.failures, v.urgent, v.due_at
""")


async def claim(
    tx: Tx, loop: Loop, owner: str, *, limit: int, lease_s: int, cap_per_cluster: int = 1_000_000
) -> list[Visit]:
    """Lease up to `limit` due visits of one loop, urgent ones first, at most `cap_per_cluster` of one
    cluster.
    """
    until = tx.now + timedelta(seconds=lease_s)
    rows = await tx.conn.execute(
        _CLAIM,
        {
            "loop": loop,
            "now": tx.now,
            "cap": cap_per_cluster,
            "limit": limit,
            "owner": owner,
            "lease_until": until,
        },
    )
    ordered = sorted(rows.all(), key=lambda row: (not row.urgent, row.due_at, row.key))
    return [Visit(Loop(row.loop), row.key, row.fence, row.hints, row.failures, until) for row in ordered]


_FINISH = sa.text("""
UPDATE visits v
SET due_at = CASE WHEN v.hints <> f.hints THEN LEAST(v.due_at, :now) ELSE f.again_at END,
    outcome = f.outcome, outcome_at = :now, lease_owner = NULL, lease_until = NULL,
    failures = CASE WHEN f.failed THEN v.failures + 1 ELSE 0 END,
    urgent = COALESCE(f.urgent, v.urgent)
FROM unnest(CAST(:loops AS text[]), CAST(:keys AS text[]), CAST(:fences AS bigint[]), CAST(:hints AS
bigint[]),
            CAST(:outcomes AS text[]), CAST(:agains AS timestamptz[]), CAST(:failed AS bool[]), CAST(:urgent
            AS bool[]))
     AS f(loop, key, fence, hints, outcome, again_at, failed, urgent)
WHERE v.loop = f.loop AND v.key = f.key AND v.fence = f.fence AND v.lease_until IS NOT NULL
RETURNING v.loop, v.due_at
""")


async def finish(tx: Tx, finishes: Sequence[Finish]) -> None:
    """End visits and say when they are due again.

    Raises LeaseLost (nothing may then be committed) if one was taken over.
    """
    if not finishes:
        return
    rows = (
        await tx.conn.execute(
            _FINISH,
            {
                "now": tx.now,
                "loops": [f.visit.loop for f in finishes],
                "keys": [f.visit.key for f in finishes],
                "fences": [f.visit.fence for f in finishes],
                "hints": [f.visit.hints for f in finishes],
                "outcomes": [f.outcome for f in finishes],
                "agains": [f.again_at for f in finishes],
                "failed": [f.failed for f in finishes],
                "urgent": [f.urgent for f in finishes],
            },
        )
    ).all()
    if len(rows) != len(finishes):
        raise LeaseLost(
            f"{len(finishes) - len(rows)} of {len(finishes)} visits were taken over by another worker"
        )
    for row in rows:
        if row.due_at is not None and row.due_at <= tx.now:
            tx.wake(row.loop)


async def next_due(tx: Tx, loops: Sequence[Loop] | None = None) -> tuple[datetime, Loop] | None:
    """When the earliest visit may be claimed, and of which loop.

    A leased one counts from the end of its lease.
    """
    row = (
        await tx.conn.execute(
            sa.text("""
            SELECT GREATEST(due_at, COALESCE(lease_until, due_at)) AS at, loop FROM visits
            WHERE due_at IS NOT NULL AND loop = ANY(:loops) ORDER BY at, loop LIMIT 1
            """),
            {"loops": list(loops or Loop)},
        )
    ).first()
    return (row.at, Loop(row.loop)) if row else None


async def drop(tx: Tx, loop: Loop, keys: Sequence[str]) -> None:
    """Forget visits of rows that are gone."""
    await tx.conn.execute(
        sa.text("DELETE FROM visits WHERE loop = :loop AND key = ANY(:keys)"),
        {"loop": loop, "keys": list(keys)},
    )


async def free_leases(tx: Tx, owner: str) -> int:
    """End every lease of a worker that is known to be dead. Its visits may be claimed at once."""
    result = await tx.conn.execute(
        sa.text(
            "UPDATE visits SET lease_owner = NULL, lease_until = NULL, fence = fence + 1 WHERE "
            "lease_owner = :owner"
        ),
        {"owner": owner},
    )
    return result.rowcount


async def drop_of_removed_nodes(tx: Tx, removed_before: datetime) -> int:
    """Forget the settled lifecycle visits of nodes that were removed before the instant."""
    result = await tx.conn.execute(
        sa.text("""
        DELETE FROM visits v USING nodes n
        WHERE v.loop = 'lifecycle' AND v.due_at IS NULL AND n.uid = v.key AND n.removed_at < :limit
        """),
        {"limit": removed_before},
    )
    return result.rowcount
