"""Webhook subscriptions: where a project wants to be told of its clusters' events."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from ebbtide.core.events import Reason
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids
from ebbtide.services.audit import record
from ebbtide.services.details import Caller
from ebbtide.settings import Settings
from ebbtide.store import access, webhooks
from ebbtide.store.db import Database, Tx
from ebbtide.store.webhooks import DeliveryRow, WebhookRow

MOST = 20  # subscriptions of a project
SECRET_PREFIX = "whsec_"  # noqa: S105  # what secrets begin with, none itself


@dataclass(frozen=True, slots=True)
class WebhookDetails:
    id: str
    url: str
    reasons: tuple[str, ...] | None  # None: every reason
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A new subscription with its secret, which is shown now and never again."""

    details: WebhookDetails
    secret: str


@dataclass(frozen=True, slots=True)
class DeliveryDetails:
    """What became of one event. next_try_at: None when it was delivered or given up."""

    id: str
    cluster_id: str
    number: int
    reason: str
    tries: int
    last_answer: str | None
    next_try_at: datetime | None
    created_at: datetime
    delivered_at: datetime | None


class WebhookService:
    def __init__(self, db: Database, ids: Ids, settings: Settings) -> None:
        self._db = db
        self._ids = ids
        self._settings = settings

    async def create(self, caller: Caller, url: str, reasons: Sequence[str] | None) -> NewWebhook:
        """Subscribe the caller's project. Raises BadInput, and Conflict beyond 20 subscriptions."""
        _check_url(url, private_allowed=self._settings.webhook_private)
        known = [reason.value for reason in Reason]
        for reason in reasons or ():
            if reason not in known:
                raise BadInput(
                    f"there is no reason {reason[:80]!r}; there are: {', '.join(known)}", param="reasons"
                )
        webhook_id, secret = self._ids.uuid4(), SECRET_PREFIX + self._ids.secret()

        async def work(tx: Tx) -> WebhookRow:
            await access.lock_project(tx, caller.project_id)
            if len(await webhooks.of_project(tx, caller.project_id)) >= MOST:
                raise Conflict(f"a project has {MOST} webhooks at most; delete one", code="too_many_webhooks")
            await webhooks.insert(
                tx,
                id=webhook_id,
                project_id=caller.project_id,
                url=url,
                secret=tx.sealer.seal(secret),
                reasons=None if reasons is None else sorted(set(reasons)),
            )
            await record(tx, caller, "webhook.create", webhook_id, after={"url": url})
            row = await webhooks.load(tx, webhook_id)
            assert row is not None
            return row

        return NewWebhook(_details(await self._db.run(work)), secret)

    async def list(self, caller: Caller) -> tuple[WebhookDetails, ...]:
        """The project's subscriptions, oldest first."""
        async with self._db.read() as tx:
            return tuple(_details(row) for row in await webhooks.of_project(tx, caller.project_id))

    async def delete(self, caller: Caller, webhook_id: str) -> None:
        """End a subscription. Raises NotFound."""
        async with self._db.transaction() as tx:
            row = await _visible(tx, caller, webhook_id)
            await webhooks.delete(tx, row.id)
            await record(tx, caller, "webhook.delete", row.id, before={"url": row.url})

    async def deliveries(
        self, caller: Caller, webhook_id: str, limit: int = 50
    ) -> tuple[DeliveryDetails, ...]:
        """What became of the latest events, the newest first. Raises NotFound."""
        async with self._db.read() as tx:
            row = await _visible(tx, caller, webhook_id)
            return tuple(_delivery(one) for one in await webhooks.latest(tx, row.id, limit))


def _check_url(url: str, *, private_allowed: bool) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadInput("the URL is malformed", param="url") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise BadInput("write a whole URL, like https://example.com/hooks/ebbtide", param="url")
    if parts.username or parts.password or parts.fragment:
        raise BadInput(
            "the URL may have no user name, password or fragment; requests are signed", param="url"
        )
    if not private_allowed and _is_inside(parts.hostname):
        raise BadInput(
            f"{parts.hostname[:80]} is no public address, and would never be spoken to; give one that is",
            param="url",
        )


def _is_inside(host: str) -> bool:
    """Whether the host is plainly no public address. Where names lead to is looked at with each delivery."""
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(name).is_global
    except ValueError:
        return False


async def _visible(tx: Tx, caller: Caller, webhook_id: str) -> WebhookRow:
    row = await webhooks.load(tx, webhook_id)
    if row is None or row.deleted_at or row.project_id != caller.project_id:
        raise NotFound(f"there is no webhook {webhook_id[:80]!r}", code="webhook_not_found")
    return row


def _details(row: WebhookRow) -> WebhookDetails:
    return WebhookDetails(
        row.id, row.url, None if row.reasons is None else tuple(row.reasons), row.created_at
    )


def _delivery(row: DeliveryRow) -> DeliveryDetails:
    return DeliveryDetails(
        row.id,
        row.cluster_id,
        row.number,
        row.reason,
        row.tries,
        row.last_answer,
        row.next_try_at,
        row.created_at,
        row.delivered_at,
    )
