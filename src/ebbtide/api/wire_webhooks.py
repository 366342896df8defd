"""Bodies and answers about webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Name, Wire


class CreateWebhook(Wire):
    """url:     http or https, of a public address unless the server allows others
    reasons: which events, by their reason; left out: all
    """

    url: Annotated[Name, Field(max_length=2_000)]
    reasons: Annotated[list[Name], Field(min_length=1, max_length=50)] | None = None


class Webhook(BaseModel):
    id: str
    url: str
    reasons: list[str] | None
    created_at: datetime


class IssuedWebhook(Webhook):
    secret: str = Field(description="Signs every request. It is not shown again.")


class WebhookList(BaseModel):
    webhooks: list[Webhook]


class DeletedWebhook(BaseModel):
    id: str
    deleted: bool


class Delivery(BaseModel):
    id: str = Field(description="The same for every try; also in the `Ebbtide-Delivery` header.")
    cluster_id: str
    number: int
    reason: str
    tries: int
    last_answer: str | None
    next_try_at: datetime | None = Field(description="Null: delivered, or given up.")
    created_at: datetime
    delivered_at: datetime | None


class DeliveryList(BaseModel):
    deliveries: list[Delivery]
