"""A cluster's events as a stream to read from a cursor: numbers without gaps, none ever lost."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ebbtide.api import render
from ebbtide.api.context import Asking, Ctx, as_cluster_id
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS, EventPage

router = APIRouter(tags=["events"])
_LARGEST = 2**63 - 1


@router.get(
    "/v1/clusters/{cluster_id}/events",
    response_class=FastJSON,
    responses={200: {"model": EventPage}, **ERRORS},
)
async def list_events(
    context: Ctx,
    caller: Asking,
    cluster_id: str,
    after: Annotated[
        int, Query(ge=0, le=_LARGEST, description="The last number already seen; 0 for all.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> FastJSON:
    """Events with a number above `after`, oldest first. Ask again with `after` set to `next_after`."""
    events = await context.services.clusters.events(caller, as_cluster_id(cluster_id), after, limit)
    next_after = events[-1].number if events else after
    return FastJSON({"events": render.stream(events), "next_after": next_after})
