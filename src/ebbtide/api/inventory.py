"""Inventory from the operator's own source, and who wiped which host."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text, read_text
from ebbtide.api.context import Ctx, Operator
from ebbtide.api.fleet import FILE_LIMIT_BYTES
from ebbtide.api.openapi import text_body
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS

router = APIRouter(prefix="/v1/fleet", tags=["fleet"])


class SyncReport(BaseModel):
    done: list[str] = Field(description="What was done; with `dry_run` what would be.")
    kept: list[str] = Field(description="What waits until a host is free.")
    dry_run: bool


class Wipe(BaseModel):
    host: str
    pool: str
    node: str
    node_uid: str
    project_id: str | None
    moment: str = Field(description="`after` the node left the host, or `before` it started there.")
    wiped_by: str = Field(description="In its provider's words.")
    at: datetime


class Carrying(BaseModel):
    host: str
    project_id: str = Field(description="Whose data it carries; `several`: not one project's only.")


class Wipes(BaseModel):
    wipes: list[Wipe]
    carrying: list[Carrying] = Field(description="Hosts that nothing has wiped since their last node.")


@router.post(
    "/sync",
    response_class=FastJSON,
    responses={200: {"model": SyncReport}, **ERRORS, **CONFLICT},
    openapi_extra=text_body("YAML"),
)
async def sync_inventory(
    context: Ctx,
    caller: Operator,
    request: Request,
    pool: Annotated[str | None, Query(max_length=255)] = None,
    dry_run: bool = False,
    most_removed_percent: Annotated[int, Query(ge=0, le=100)] = 20,
) -> FastJSON:
    """Apply an inventory: a fleet file (YAML or JSON), or with `pool` that pool's hosts.

    When more of a pool's hosts would leave at once than `most_removed_percent`, nothing is changed; nor
    (unless it is 100) when one pool's inventory names hosts of another pool or another list.
    """
    text = await read_text(request, FILE_LIMIT_BYTES)
    report = await context.services.sync.inventory(
        caller,
        text,
        pool=check_text(pool, "pool") if pool else None,
        dry_run=dry_run,
        most_removed_percent=most_removed_percent,
    )
    return FastJSON(render_fleet.plain(report))


@router.get("/wipes", response_class=FastJSON, responses={200: {"model": Wipes}, **ERRORS})
async def list_wipes(
    context: Ctx,
    caller: Operator,
    host: Annotated[str | None, Query(max_length=255)] = None,
    node: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> FastJSON:
    """Who wiped which host, the newest first, and hosts that carry somebody's data."""
    found = await context.services.wipes.list(
        caller,
        host=check_text(host, "host") if host else None,
        node=check_text(node, "node") if node else None,
        limit=limit,
    )
    return FastJSON(render_fleet.plain(found))
