"""Lives of worker processes: who is alive, who was killed, and whether anybody was there at a given time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.store.db import Tx
from ebbtide.store.tables import worker_runs

HEARTBEAT_S = 5
DEAD_AFTER_S = 20  # a heartbeat older than this means that the process is gone


@dataclass(frozen=True, slots=True)
class RunRow:
    id: str
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None
    ended_how: str | None


async def start(tx: Tx, run_id: str) -> None:
    await tx.conn.execute(sa.insert(worker_runs).values(id=run_id, started_at=tx.now, seen_at=tx.now))


async def beat(tx: Tx, run_id: str) -> None:
    """Say that the run lives, also one that another start took for dead; never one that said goodbye."""
    await tx.conn.execute(
        sa.update(worker_runs)
        .where(worker_runs.c.id == run_id, worker_runs.c.ended_how.is_distinct_from("stopped"))
        .values(seen_at=tx.now, stopped_at=None, ended_how=None)
    )


async def stop(tx: Tx, run_id: str) -> None:
    await tx.conn.execute(
        sa.update(worker_runs)
        .where(worker_runs.c.id == run_id, worker_runs.c.stopped_at.is_(None))
        .values(seen_at=tx.now, stopped_at=tx.now, ended_how="stopped")
    )


async def bury_dead(tx: Tx, *, all_others: bool, run_id: str) -> list[RunRow]:
    """Mark runs as killed that ended without saying so, and answer them.

    all_others: whoever asks knows that it is the only worker there can be (an embedded server); else only
    runs whose
    heartbeat is too old.
    """
    limit = tx.now if all_others else tx.now - timedelta(seconds=DEAD_AFTER_S)
    rows = await tx.conn.execute(
        sa.update(worker_runs)
        .where(worker_runs.c.stopped_at.is_(None), worker_runs.c.id != run_id, worker_runs.c.seen_at <= limit)
        .values(stopped_at=worker_runs.c.seen_at, ended_how="killed")
        .returning(worker_runs)
    )
    return [RunRow(**row._mapping) for row in rows]


async def was_down(tx: Tx, since: datetime) -> bool:
    """Whether no worker was alive at some time since the instant given, by more than a heartbeat's doubt."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT started_at, COALESCE(stopped_at, seen_at) AS until FROM worker_runs
        WHERE COALESCE(stopped_at, seen_at) >= :since ORDER BY started_at
        """),
        {"since": since},
    )
    covered = since
    doubt = timedelta(seconds=2 * HEARTBEAT_S)
    for row in rows:
        if row.started_at > covered + doubt:
            return True
        covered = max(covered, row.until)
    return covered + doubt < tx.now


async def forget_older(tx: Tx, limit: datetime) -> int:
    """Forget runs that ended before the instant."""
    result = await tx.conn.execute(sa.delete(worker_runs).where(worker_runs.c.stopped_at < limit))
    return result.rowcount
