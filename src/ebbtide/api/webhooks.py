"""Webhooks: have a project's cluster events sent to a URL, signed, until they were taken."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import render_webhooks
from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Asking, Ctx
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_webhooks import CreateWebhook, DeletedWebhook, DeliveryList, IssuedWebhook, WebhookList

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.get("", response_class=FastJSON, responses={200: {"model": WebhookList}, **ERRORS})
async def list_webhooks(context: Ctx, caller: Asking) -> FastJSON:
    """The project's webhooks, oldest first, without their secrets."""
    found = await context.services.webhooks.list(caller)
    return FastJSON({"webhooks": [render_webhooks.webhook(each) for each in found]})


@router.post(
    "",
    response_class=FastJSON,
    responses={200: {"model": IssuedWebhook}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(CreateWebhook),
)
async def create_webhook(context: Ctx, caller: Asking, request: Request) -> FastJSON:
    """Subscribe a URL. `secret` is in this answer and never again; requests are signed with it."""
    body = CreateWebhook.read((await read_json(request, context.max_body_bytes)).values)
    made = await context.services.webhooks.create(caller, body.url, body.reasons)
    return FastJSON({"secret": made.secret, **render_webhooks.webhook(made.details)})


@router.delete("/{webhook_id}", response_class=FastJSON, responses={200: {"model": DeletedWebhook}, **ERRORS})
async def delete_webhook(context: Ctx, caller: Asking, webhook_id: str) -> FastJSON:
    """End a subscription. What was not delivered yet is given up."""
    await context.services.webhooks.delete(caller, check_text(webhook_id, "webhook_id"))
    return FastJSON({"id": webhook_id, "deleted": True})


@router.get(
    "/{webhook_id}/deliveries", response_class=FastJSON, responses={200: {"model": DeliveryList}, **ERRORS}
)
async def list_deliveries(
    context: Ctx, caller: Asking, webhook_id: str, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> FastJSON:
    """What became of the latest events, the newest first."""
    found = await context.services.webhooks.deliveries(caller, check_text(webhook_id, "webhook_id"), limit)
    return FastJSON({"deliveries": [render_webhooks.delivery(each) for each in found]})
