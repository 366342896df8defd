"""Webhook subscriptions and their deliveries.

One per subscription and event, under one id however often it is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.store import visits
from ebbtide.store.db import Tx
from ebbtide.store.tables_more import webhooks
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A subscription. secret: sealed. reasons: None means every reason."""

    id: str
    project_id: str
    url: str
    secret: str
    reasons: list[str] | None
    created_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One event for one subscription, with what it tells."""

    id: str
    webhook_id: str
    cluster_id: str
    cluster_name: str
    number: int
    node_uid: str
    node_name: str
    reason: str
    message: str
    at: datetime
    deadline: datetime | None
    tries: int
    next_try_at: datetime | None
    last_answer: str | None
    created_at: datetime
    delivered_at: datetime | None


async def insert(tx: Tx, **values: object) -> None:
    reasons = values.pop("reasons")
    stored = sa.null() if reasons is None else reasons
    await tx.conn.execute(upsert(webhooks).values(created_at=tx.now, reasons=stored, **values))


async def load(tx: Tx, webhook_id: str) -> WebhookRow | None:
    """A subscription, deleted ones too."""
    row = (await tx.conn.execute(sa.select(webhooks).where(webhooks.c.id == webhook_id))).first()
    return WebhookRow(**row._mapping) if row else None


async def of_project(tx: Tx, project_id: str) -> list[WebhookRow]:
    """A project's subscriptions in force, oldest first."""
    rows = await tx.conn.execute(
        sa.select(webhooks)
        .where(webhooks.c.project_id == project_id, webhooks.c.deleted_at.is_(None))
        .order_by(webhooks.c.created_at, webhooks.c.id)
    )
    return [WebhookRow(**row._mapping) for row in rows]


async def delete(tx: Tx, webhook_id: str) -> None:
    """End a subscription; what was not delivered yet is given up."""
    await tx.conn.execute(
        sa.update(webhooks)
        .where(webhooks.c.id == webhook_id, webhooks.c.deleted_at.is_(None))
        .values(deleted_at=tx.now)
    )
    await tx.conn.execute(
        sa.text("UPDATE webhook_deliveries SET next_try_at = NULL WHERE webhook_id = :id"), {"id": webhook_id}
    )


# The id is a function of subscription and event: a step that is repeated writes the same row.
_ENQUEUE = sa.text("""
INSERT INTO webhook_deliveries (id, webhook_id, cluster_id, event_number, next_try_at, created_at)
SELECT md5(w.id || '/' || c.id || '/' || e.number), w.id, c.id, e.number, :now, :now
FROM unnest(CAST(:clusters AS text[]), CAST(:numbers AS bigint[]), CAST(:reasons AS text[]))
     AS e(cluster_id, number, reason)
JOIN clusters c ON c.id = e.cluster_id
JOIN webhooks w ON w.project_id = c.project_id AND w.deleted_at IS NULL
     AND (w.reasons IS NULL OR jsonb_exists(w.reasons, e.reason))
ON CONFLICT DO NOTHING
RETURNING webhook_id
""")


async def enqueue(tx: Tx, events: Sequence[tuple[str, int, str]]) -> None:
    """Have events (cluster id, number, reason) delivered to whoever subscribed, and wake the loop that does
    it.
    """
    written = await tx.conn.execute(
        _ENQUEUE,
        {
            "now": tx.now,
            "clusters": [cluster_id for cluster_id, _, _ in events],
            "numbers": [number for _, number, _ in events],
            "reasons": [reason for _, _, reason in events],
        },
    )
    await visits.hint(tx, Loop.NOTIFY, sorted(set(written.scalars())))


# What is told before a node's notice has no deadline, also when it is sent after it: every try has one body.
_DELIVERIES = """
SELECT d.id, d.webhook_id, d.cluster_id, c.name AS cluster_name, d.event_number AS number, e.node_uid,
e.node_name,
       e.reason, e.message, e.at,
       CASE WHEN e.reason NOT IN ('TogetherScaledUp', 'EbbtideNodeRestarting') THEN n.deadline END
       AS deadline,
       d.tries, d.next_try_at, d.last_answer, d.created_at,
       d.delivered_at
FROM webhook_deliveries d
JOIN lifecycle_events e ON e.cluster_id = d.cluster_id AND e.number = d.event_number
JOIN clusters c ON c.id = d.cluster_id LEFT JOIN nodes n ON n.uid = e.node_uid
WHERE d.webhook_id = :id
"""


async def waiting(tx: Tx, webhook_id: str, limit: int) -> list[DeliveryRow]:
    """Deliveries that are still open, in the order of their events, due or not."""
    rows = await tx.conn.execute(
        sa.text(_DELIVERIES + " AND d.next_try_at IS NOT NULL ORDER BY d.no LIMIT :limit"),
        {"id": webhook_id, "limit": limit},
    )
    return [DeliveryRow(**row._mapping) for row in rows]


async def latest(tx: Tx, webhook_id: str, limit: int) -> list[DeliveryRow]:
    """The newest deliveries, whatever became of them."""
    rows = await tx.conn.execute(
        sa.text(_DELIVERIES + " ORDER BY d.no DESC LIMIT :limit"), {"id": webhook_id, "limit": limit}
    )
    return [DeliveryRow(**row._mapping) for row in rows]


async def record(
    tx: Tx, delivery_id: str, *, answer: str, delivered: bool, next_try_at: datetime | None
) -> None:
    """Write what came of a try."""
    await tx.conn.execute(
        sa.text("""
        UPDATE webhook_deliveries
        SET tries = tries + 1, last_answer = :answer, next_try_at = :next,
            delivered_at = CASE WHEN :delivered THEN COALESCE(delivered_at, :now) ELSE delivered_at END
        WHERE id = :id
        """),
        {
            "id": delivery_id,
            "answer": answer,
            "next": next_try_at,
            "delivered": delivered,
            "now": tx.now,
        },
    )


async def forget_older(tx: Tx, limit: datetime) -> int:
    """Forget deliveries from before the instant that were made or given up."""
    result = await tx.conn.execute(
        sa.text("DELETE FROM webhook_deliveries WHERE next_try_at IS NULL AND created_at < :limit"),
        {"limit": limit},
    )
    return result.rowcount


async def next_try(tx: Tx, webhook_id: str) -> datetime | None:
    """When the first delivery that is still open is due; those behind it wait for it."""
    found: datetime | None = (
        await tx.conn.execute(
            sa.text("""
            SELECT next_try_at FROM webhook_deliveries
            WHERE webhook_id = :id AND next_try_at IS NOT NULL ORDER BY no LIMIT 1
            """),
            {"id": webhook_id},
        )
    ).scalar_one_or_none()
    return found
