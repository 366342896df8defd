"""Demand from other systems: claims on whole hosts, idempotent by their reference."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Ctx, Operator
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_fleet import CreateClaim
from ebbtide.api.wire_fleet_answers import Claim, ClaimList
from ebbtide.errors import BadInput

router = APIRouter(prefix="/v1/fleet/claims", tags=["fleet"])
ONE = {200: {"model": Claim}, **ERRORS}


@router.post("", response_class=FastJSON, responses={**ONE, **CONFLICT}, openapi_extra=body_of(CreateClaim))
async def create_claim(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Claim hosts: given at once, or draining with their deadlines, or refused with 409. Never half.

    The same `ref` again answers with the same claim; the same `ref` with other values is a conflict.
    """
    body = CreateClaim.read((await read_json(request, context.max_body_bytes)).values)
    details = await context.services.claims.create(
        caller, body.pool, body.hosts, body.ref, body.for_whom or body.ref
    )
    return FastJSON(render_fleet.claim(details))


@router.get("", response_class=FastJSON, responses={200: {"model": ClaimList}, **ERRORS})
async def list_claims(
    context: Ctx,
    caller: Operator,
    pool: Annotated[str | None, Query(max_length=255)] = None,
    ref: Annotated[str | None, Query(max_length=255)] = None,
) -> FastJSON:
    """Claims, of one pool or one reference if wanted."""
    claims = await context.services.claims.list(caller, check_text(pool, "pool") if pool else None)
    return FastJSON({"claims": [render_fleet.claim(each) for each in claims if ref in (None, each.ref)]})


@router.get("/{ref:path}", response_class=FastJSON, responses=ONE)
async def retrieve_claim(context: Ctx, caller: Operator, ref: str) -> FastJSON:
    """One claim by its reference. A reference may contain slashes."""
    return FastJSON(
        render_fleet.claim(await context.services.claims.retrieve(caller, check_text(ref, "ref")))
    )


@router.delete("/{ref:path}", response_class=FastJSON, responses={**ONE, **CONFLICT})
async def give_back(
    context: Ctx,
    caller: Operator,
    ref: str,
    hosts: Annotated[
        str | None, Query(max_length=16_000, description="Host names, comma-separated; all when left out.")
    ] = None,
) -> FastJSON:
    """Give hosts back, all of them or those named. Giving all back ends the claim."""
    names = None if hosts is None else tuple(name.strip() for name in hosts.split(",") if name.strip())
    if names == ():
        raise BadInput("hosts names no host; leave it out to give all back", param="hosts")
    for name in names or ():
        check_text(name, "hosts")
    details = await context.services.claims.give_back(caller, check_text(ref, "ref"), names)
    return FastJSON(render_fleet.claim(details))
