"""What was used and what it costs: GPU-seconds and micro-dollars, whole numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from ebbtide.api import render_fleet
from ebbtide.api.context import Asking, Ctx, as_cluster_id
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS
from ebbtide.api.wire_fleet_answers import UsageReport
from ebbtide.errors import BadInput

router = APIRouter(tags=["usage"])
_LONGEST = timedelta(days=366)
_FIRST_YEAR = 2000  # nothing was billed before; it keeps arithmetic away from the calendar's edge
# The `+` of a zone offset arrives as a space when a client does not percent-encode it.
_LOST_PLUS = re.compile(r"(?<=:\d\d) (?=\d\d:?\d\d$)")


@router.get("/v1/usage", response_class=FastJSON, responses={200: {"model": UsageReport}, **ERRORS})
async def read_usage(
    context: Ctx,
    caller: Asking,
    since: Annotated[
        str | None, Query(alias="from", max_length=64, description="RFC 3339; the month's start.")
    ] = None,
    until: Annotated[str | None, Query(alias="to", max_length=64, description="RFC 3339; now.")] = None,
    cluster: Annotated[str | None, Query(alias="cluster_id", max_length=255)] = None,
    by: Literal["cluster", "node"] = "cluster",
) -> FastJSON:
    """Usage from `from` (inclusive) to `to` (exclusive), by cluster or node. Final up to `sealed_until`."""
    end = _instant(until, "to") if until else context.clock.now()
    begin = _instant(since, "from") if since else _month_of(end)
    if begin >= end:
        raise BadInput("from must be before to", param="from")
    if end - begin > _LONGEST:
        raise BadInput("at most 366 days can be asked at once; ask for less", param="from")
    wanted = as_cluster_id(cluster) if cluster else None
    usage = await context.services.usage.read(caller, begin, end, wanted, by)
    return FastJSON(render_fleet.usage(usage))


def _month_of(end: datetime) -> datetime:
    """The start of the month that ends at `end` or goes on there."""
    last = end - timedelta(microseconds=1)
    return last.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _instant(text: str, param: str) -> datetime:
    try:
        instant = datetime.fromisoformat(_LOST_PLUS.sub("+", text.strip()))
        if instant.tzinfo is None or instant.year < _FIRST_YEAR:
            raise ValueError
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{param} must be a time with a zone, like 2026-01-02T03:04:05Z", param=param
        ) from None
