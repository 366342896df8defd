"""The operator's hosts, one by one: add, show, drain, return, remove."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Ctx, Operator
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_fleet_answers import Host
from ebbtide.api.wire_hosts import AddHost, DrainHost, HostReport
from ebbtide.errors import BadInput

router = APIRouter(prefix="/v1/fleet/hosts", tags=["fleet"])


@router.post(
    "",
    response_class=FastJSON,
    responses={200: {"model": Host}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(AddHost),
)
async def add_host(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Add a host to a pool. It is lendable at once; one that was removed comes back as cordoned as it was."""
    body = AddHost.read((await read_json(request, context.max_body_bytes)).values)
    added = await context.services.hosts.add(caller, body.name, body.pool, body.fabric_block)
    return FastJSON(render_fleet.host(added))


@router.get("/{name}", response_class=FastJSON, responses={200: {"model": HostReport}, **ERRORS})
async def show_host(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """A host, its latest maintenance with who was disturbed, and who was on it, the latest first."""
    return FastJSON(render_fleet.plain(await context.services.hosts.show(caller, check_text(name, "name"))))


@router.post(
    "/{name}/drain",
    response_class=FastJSON,
    responses={200: {"model": HostReport}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(DrainHost),
)
async def drain_host(context: Ctx, caller: Operator, name: str, request: Request) -> FastJSON:
    """Have a host emptied, and hold it for maintenance until it is returned.

    A preemptible node gets its notice; a standard one is replaced, or the host is refused. A `dry_run` only
    says so.
    """
    body = DrainHost.read((await read_json(request, context.max_body_bytes)).values)
    until = _instant(body.until) if body.until else None
    report = await context.services.hosts.drain(
        caller, check_text(name, "name"), body.reason, until, dry_run=bool(body.dry_run)
    )
    return FastJSON(render_fleet.plain(report))


@router.post(
    "/{name}/return", response_class=FastJSON, responses={200: {"model": HostReport}, **ERRORS, **CONFLICT}
)
async def return_host(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """Put a host back into service after its maintenance, or call the draining off. A body is not read."""
    report = await context.services.hosts.give_back(caller, check_text(name, "name"))
    return FastJSON(render_fleet.plain(report))


@router.delete("/{name}", response_class=FastJSON, responses={200: {"model": Host}, **ERRORS, **CONFLICT})
async def remove_host(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """Take a free or drained host out of the inventory. Its history stays."""
    return FastJSON(render_fleet.host(await context.services.hosts.remove(caller, check_text(name, "name"))))


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text.strip())
        if instant.tzinfo is None:
            raise ValueError
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput("until must be a time with a zone, like 2026-01-02T03:04:05Z", param="until") from None
