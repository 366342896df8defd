"""Webhooks as plain dicts."""

from __future__ import annotations

from typing import Any

from ebbtide.api.render import at, at_or_none
from ebbtide.services.webhooks import DeliveryDetails, WebhookDetails


def webhook(details: WebhookDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "url": details.url,
        "reasons": None if details.reasons is None else list(details.reasons),
        "created_at": at(details.created_at),
    }


def delivery(details: DeliveryDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "cluster_id": details.cluster_id,
        "number": details.number,
        "reason": details.reason,
        "tries": details.tries,
        "last_answer": details.last_answer,
        "next_try_at": at_or_none(details.next_try_at),
        "created_at": at(details.created_at),
        "delivered_at": at_or_none(details.delivered_at),
    }
