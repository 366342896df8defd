"""Lifecycle events, numbered per cluster without gaps.

The number comes from updating the cluster's row in the event's own transaction: events of one cluster become
visible in the order of their numbers, so a reader that remembers the last one never misses any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.events import Event
from ebbtide.store import webhooks
from ebbtide.store.db import Tx
from ebbtide.store.tables import lifecycle_events


@dataclass(frozen=True, slots=True)
class NewEvent:
    cluster_id: str
    node_uid: str
    node_name: str
    event: Event
    ref: str = ""  # of what happens to one node more than once, which time this is


async def append(tx: Tx, new: Sequence[NewEvent]) -> None:
    """Write events, each once per (node, reason, ref); one that is there already is left alone."""
    if not new:
        return
    there = await _existing(tx, [one.node_uid for one in new])
    fresh = [one for one in new if (one.node_uid, one.event.reason.value, one.ref) not in there]
    last: dict[str, int] = {}
    # Sorted, so that two transactions which write to the same clusters lock them in one order.
    for cluster_id, count in sorted(Counter(one.cluster_id for one in fresh).items()):
        result = await tx.conn.execute(
            sa.text(
                "UPDATE clusters SET event_number = event_number + :n WHERE id = :id RETURNING event_number"
            ),
            {"n": count, "id": cluster_id},
        )
        last[cluster_id] = result.scalar_one() - count
    rows: list[dict[str, object]] = []
    told: list[tuple[str, int, str]] = []
    for one in fresh:
        last[one.cluster_id] += 1
        number = last[one.cluster_id]
        told.append((one.cluster_id, number, one.event.reason.value))
        rows.append(
            {
                "cluster_id": one.cluster_id,
                "number": number,
                "node_uid": one.node_uid,
                "node_name": one.node_name,
                "reason": one.event.reason,
                "message": one.event.message,
                "at": one.event.at,
                "ref": one.ref,
            }
        )
    if rows:
        await tx.conn.execute(sa.insert(lifecycle_events), rows)
        await webhooks.enqueue(tx, told)


async def _existing(tx: Tx, uids: Sequence[str]) -> set[tuple[str, str, str]]:
    rows = await tx.conn.execute(
        sa.text("SELECT node_uid, reason, ref FROM lifecycle_events WHERE node_uid = ANY(:uids)"),
        {"uids": list(uids)},
    )
    return {(row.node_uid, row.reason, row.ref) for row in rows}


@dataclass(frozen=True, slots=True)
class EventRow:
    cluster_id: str
    number: int
    node_uid: str
    node_name: str
    reason: str
    message: str
    at: datetime
    ref: str


async def after(tx: Tx, cluster_id: str, number: int, limit: int) -> list[EventRow]:
    """The cluster's events behind a number, in order."""
    rows = await tx.conn.execute(
        sa.select(lifecycle_events)
        .where(lifecycle_events.c.cluster_id == cluster_id, lifecycle_events.c.number > number)
        .order_by(lifecycle_events.c.number)
        .limit(limit)
    )
    return [EventRow(**row._mapping) for row in rows]


async def since(tx: Tx, cluster_ids: Sequence[str], at: datetime) -> list[EventRow]:
    """Events of several clusters from an instant on, in order."""
    rows = await tx.conn.execute(
        sa.text(
            "SELECT * FROM lifecycle_events WHERE cluster_id = ANY(:ids) AND at >= :at ORDER BY "
            "cluster_id, number"
        ),
        {"ids": list(cluster_ids), "at": at},
    )
    return [EventRow(**row._mapping) for row in rows]
