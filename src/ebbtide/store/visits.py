"""Which rows are due for a visit of which loop: leases with fencing, hints that cannot be lost while a visit
runs.

One row per (loop, key). `due_at` null means settled. A visit is leased to one worker at a time; the lease's
`fence` grows with each claim, and `finish` refuses a fence that is not the latest, so a worker that was
thought dead cannot write.
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
    VOLUMES = "volumes"  # key: volume id
    REMEDIATION = "remediation"  # key: remediation id
    NOTIFY = "notify"  # key: webhook id


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
SELECT l, k, c, u, d, 1
FROM unnest(CAST(:loops AS text[]), CAST(:keys AS text[]), CAST(:clusters AS text[]), CAST(:urgent AS bool[]),
            CAST(:due AS timestamptz[])) AS h(l, k, c, u, d)
ORDER BY l, k
ON CONFLICT (loop, key) DO UPDATE
SET due_at = LEAST(COALESCE(v.due_at, excluded.due_at), excluded.due_at),
    hints = v.hints + 1,
    urgent = v.urgent OR excluded.urgent,
    failures = CASE WHEN excluded.urgent AND NOT v.urgent THEN 0 ELSE v.failures END
""")


@dataclass(frozen=True, slots=True)
class _Hint:
    due_at: datetime
    cluster_id: str | None
    urgent: bool

    def merged(self, other: _Hint) -> _Hint:
        return _Hint(
            min(self.due_at, other.due_at), self.cluster_id or other.cluster_id, self.urgent or other.urgent
        )


class _Pending:
    """Hints, wakes and finishes of one transaction, written at its end.

    Rows are locked in one order then, so that no two transactions wait for each other in a circle.
    """

    def __init__(self) -> None:
        self.hints: dict[tuple[str, str], _Hint] = {}
        self.wakes: dict[tuple[str, str], datetime] = {}
        self.finishes: list[Finish] = []

    async def __call__(self, tx: Tx) -> None:
        finished = ((one.visit.loop.value, one.visit.key) for one in self.finishes)
        keys = sorted({*self.hints, *self.wakes, *finished})
        if (self.finishes or self.wakes) and len(keys) > 1:
            await tx.conn.execute(
                _LOCK, {"loops": [loop for loop, _ in keys], "keys": [key for _, key in keys]}
            )
        await finish(tx, self.finishes)
        await self._write_wakes(tx)
        await self._write_hints(tx)

    async def _write_wakes(self, tx: Tx) -> None:
        if not self.wakes:
            return
        wakes = sorted(self.wakes.items())
        rows = await tx.conn.execute(
            _WAKE,
            {
                "loops": [loop for (loop, _), _ in wakes],
                "keys": [key for (_, key), _ in wakes],
                "due": [due_at for _, due_at in wakes],
            },
        )
        for row in rows:
            if row.due_at <= tx.now:
                tx.wake(row.loop)

    async def _write_hints(self, tx: Tx) -> None:
        if not self.hints:
            return
        hints = sorted(self.hints.items())
        await tx.conn.execute(
            _HINT,
            {
                "loops": [loop for (loop, _), _ in hints],
                "keys": [key for (_, key), _ in hints],
                "clusters": [one.cluster_id for _, one in hints],
                "urgent": [one.urgent for _, one in hints],
                "due": [one.due_at for _, one in hints],
            },
        )
        for (loop, _), one in hints:
            if one.due_at <= tx.now:
                tx.wake(loop)


_WAKE = sa.text("""
UPDATE visits v SET due_at = LEAST(COALESCE(v.due_at, w.due_at), w.due_at), hints = v.hints + 1
FROM unnest(CAST(:loops AS text[]), CAST(:keys AS text[]), CAST(:due AS timestamptz[]))
     AS w(loop, key, due_at)
WHERE v.loop = w.loop AND v.key = w.key
RETURNING v.loop, w.due_at
""")

_LOCK = sa.text("""
SELECT 1 FROM visits
WHERE (loop, key) IN (SELECT * FROM unnest(CAST(:loops AS text[]), CAST(:keys AS text[])))
ORDER BY loop, key FOR UPDATE
""")


def _pending(tx: Tx) -> _Pending:
    pending = tx.before_commit.setdefault("visits", _Pending())
    assert isinstance(pending, _Pending)
    return pending


async def hint(
    tx: Tx,
    loop: Loop,
    keys: Iterable[str],
    *,
    due_at: datetime | None = None,
    clusters: Sequence[str | None] | None = None,
    urgent: bool = False,
) -> None:
    """Make visits due at `due_at` (now by default) or earlier, when the transaction commits.

    A visit that runs meanwhile is made again.
    """
    listed = list(keys)
    if not listed:
        return
    pending = _pending(tx)
    for key, cluster_id in zip(listed, clusters or [None] * len(listed), strict=True):
        new = _Hint(due_at or tx.now, cluster_id, urgent)
        known = pending.hints.get((loop.value, key))
        pending.hints[loop.value, key] = new.merged(known) if known else new


def finish_at_commit(tx: Tx, one: Finish) -> None:
    """End a visit with the transaction.

    A lost lease then undoes it whole: the block raises LeaseLost at its end.
    """
    _pending(tx).finishes.append(one)


async def wake_existing(tx: Tx, loop: Loop, keys: Sequence[str], *, due_at: datetime | None = None) -> None:
    """Make due those of the visits that there are, now or at that instant, when the transaction commits;
    unlike a hint it makes none.
    """
    wakes = _pending(tx).wakes
    for key in keys:
        due = due_at or tx.now
        wakes[loop.value, key] = min(due, wakes.get((loop.value, key), due))


# The cap counts what is under way as well, in any process: a sick cluster with many due nodes, each of which
# hangs for a while, leaves room for the others.
_CLAIM = sa.text("""
WITH under_way AS (
    SELECT COALESCE(cluster_id, key) AS cluster, count(*) AS visits FROM visits
    WHERE loop = :loop AND due_at <= :now AND lease_until > :now GROUP BY 1
), due AS (
    SELECT loop, key, urgent, due_at, COALESCE(cluster_id, key) AS cluster,
           row_number() OVER (PARTITION BY COALESCE(cluster_id, key) ORDER BY urgent DESC, due_at) AS place
    FROM visits
    WHERE loop = :loop AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)
), picked AS (
    SELECT v.loop, v.key FROM visits v JOIN due USING (loop, key) LEFT JOIN under_way USING (cluster)
    WHERE due.place + COALESCE(under_way.visits, 0) <= :cap
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
    """Lease up to `limit` due visits of one loop, urgent ones first, so that at most `cap_per_cluster` of one
    cluster are leased at once.
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
