"""For whatever watches over the process: alive, ready, and metrics."""

from __future__ import annotations

import structlog
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from ebbtide.api.context import Ctx
from ebbtide.api.problems import problem
from ebbtide.api.responses import FastJSON
from ebbtide.metrics import exposition

router = APIRouter(tags=["health"])
log = structlog.get_logger(__name__)


@router.get("/healthz", response_class=FastJSON)
async def healthz() -> FastJSON:
    """The process answers."""
    return FastJSON({"status": "ok"})


@router.get(
    "/readyz", response_class=FastJSON, responses={503: {"description": "The database does not answer."}}
)
async def readyz(context: Ctx) -> FastJSON:
    """The process can serve: its database answers."""
    try:
        await context.services.clusters.regions()
    except Exception as error:  # noqa: BLE001  # whatever a driver raises when its database is away
        log.warning("not ready", error=str(error))
        return problem(503, "the database does not answer; requests would fail")
    return FastJSON({"status": "ready"})


@router.get("/metrics", response_class=Response)
async def metrics(context: Ctx) -> Response:
    """Prometheus metrics: of this process, and of the fleet as the database has it now."""
    fleet = exposition(await context.services.metrics.snapshot())
    return Response(generate_latest() + fleet, media_type=CONTENT_TYPE_LATEST)
