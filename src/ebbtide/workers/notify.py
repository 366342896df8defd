"""Delivering events to webhooks.

Signed, in order as far as they are due, tried again until it works or a day is over.
"""

from __future__ import annotations

import json
from datetime import timedelta

from ebbtide.core.events import rfc3339
from ebbtide.core.metering import epoch_s
from ebbtide.settings import Settings
from ebbtide.store import webhooks
from ebbtide.store.db import Database
from ebbtide.store.visits import Loop, Visit
from ebbtide.store.webhooks import DeliveryRow, WebhookRow
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.single import SingleVisits
from ebbtide.workers.webhook_sender import DELIVERY, SIGNATURE, NotDelivered, Sender, signature

A_VISIT = 20  # deliveries of one subscription in one visit
FIRST_WAIT_S = 5
LONGEST_WAIT_S = 3_600


class Notify(SingleVisits):
    loop = Loop.NOTIFY

    def __init__(self, db: Database, settings: Settings, sender: Sender) -> None:
        super().__init__(db, settings)
        self._sender = sender

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.read() as tx:
            webhook = await webhooks.load(tx, visit.key)
            waiting = (
                await webhooks.waiting(tx, visit.key, A_VISIT) if webhook and not webhook.deleted_at else []
            )
        delivered = 0
        for delivery in waiting:
            assert webhook is not None
            now = self._db.clock.now()
            visit.check(now)
            # In order: what comes behind an event that is not taken waits for it.
            if (delivery.next_try_at and delivery.next_try_at > now) or not await self._try(
                webhook, delivery
            ):
                break
            delivered += 1
        async with self._db.transaction() as tx:
            # A try or an event that met the deletion may have left a delivery open: nothing comes of it.
            over = webhook is None or webhook.deleted_at is not None
            again = None if over else await webhooks.next_try(tx, visit.key)
            return await finish(tx, visit, Outcome(f"{delivered} of {len(waiting)} events delivered", again))

    async def _try(self, webhook: WebhookRow, delivery: DeliveryRow) -> bool:
        body = _body(delivery)
        now = self._db.clock.now()
        secret = self._db.sealer.open(webhook.secret)
        headers = {SIGNATURE: signature(secret, epoch_s(now), body), DELIVERY: delivery.id}
        try:
            answer, delivered = f"answered {await self._sender.post(webhook.url, body, headers)}", True
        except NotDelivered as refusal:
            answer, delivered = refusal.message, False
        async with self._db.transaction() as tx:
            wait = timedelta(seconds=min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(delivery.tries, 16)))
            give_up = tx.now - delivery.created_at >= timedelta(seconds=self._settings.webhook_give_up_s)
            next_try_at = None if delivered or give_up else tx.now + wait
            await webhooks.record(
                tx, delivery.id, answer=answer, delivered=delivered, next_try_at=next_try_at
            )
        return delivered


def _body(delivery: DeliveryRow) -> bytes:
    """The same bytes for every try, so that receivers can tell them apart by nothing but the id."""
    told = {
        "id": delivery.id,
        "type": delivery.reason,
        "timestamp": rfc3339(delivery.at),
        "cluster_id": delivery.cluster_id,
        "cluster_name": delivery.cluster_name,
        "number": delivery.number,
        "node_uid": delivery.node_uid,
        "node_id": delivery.node_name,
        "message": delivery.message,
        "deadline": rfc3339(delivery.deadline) if delivery.deadline else None,
    }
    return json.dumps(told, separators=(",", ":")).encode()
