"""A cluster's events as they happen (server-sent events), to be resumed from the last number seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from ebbtide.api import render
from ebbtide.api.context import Asking, Context, Ctx, as_cluster_id
from ebbtide.api.wire_answers import ERRORS
from ebbtide.errors import EbbtideError
from ebbtide.services.details import Caller, EventDetails

router = APIRouter(tags=["events"])
_LARGEST = 2**63 - 1
LOOK_EVERY_S = 1.0
CHECK_EVERY = 10  # looks between two whether the key is good still
QUIET_AFTER = 15  # looks without news until a comment is sent, so that proxies keep the connection


@router.get(
    "/v1/clusters/{cluster_id}/events/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events without end."}, **ERRORS},
)
async def stream_events(
    context: Ctx,
    caller: Asking,
    request: Request,
    cluster_id: str,
    after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Events with a number above `after` (or above `Last-Event-ID`, as browsers send it), then new ones as
    they come.

    Each has its number as `id`, its reason as `event` and the event as JSON in `data`.
    """
    cluster_id = as_cluster_id(cluster_id)
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 19:
        after = max(after, int(last_event_id))
    first = await context.services.clusters.events(
        caller, cluster_id, after, 500
    )  # 404 before the stream begins
    closing: asyncio.Event = request.app.state.closing
    key: str = request.state.key
    events = _events(context, caller, key, cluster_id, after, first, closing)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _events(
    context: Context,
    caller: Caller,
    key: str,
    cluster_id: str,
    after: int,
    batch: tuple[EventDetails, ...],
    closing: asyncio.Event,
) -> AsyncIterator[bytes]:
    quiet = looks = 0
    yield b"retry: 2000\n\n"
    while True:
        for event in batch:
            after = event.number
            yield _encoded(event)
        quiet = 0 if batch else quiet + 1
        if quiet >= QUIET_AFTER:
            quiet = 0
            yield b": nothing new\n\n"
        if not batch and await _closes_within(closing, LOOK_EVERY_S):
            return
        looks += 1
        try:
            if looks % CHECK_EVERY == 0:
                caller = await context.services.access.authenticate(key)
            batch = await context.services.clusters.events(caller, cluster_id, after, 500)
        except EbbtideError:
            # The key is good no more, the cluster is gone or the database away: the client asks again and is
            # told.
            return


def _encoded(event: EventDetails) -> bytes:
    data = json.dumps(render.stream((event,))[0], separators=(",", ":"))
    return f"id: {event.number}\nevent: {event.reason}\ndata: {data}\n\n".encode()


async def _closes_within(closing: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(closing.wait(), seconds)
    except TimeoutError:
        return False
    return True
