"""What is free now, and how long targets took and nodes lived so far."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text
from ebbtide.api.context import Asking, Ctx, as_cluster_id
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS
from ebbtide.api.wire_tenant import Observed, ObservedList, Supply
from ebbtide.core.history import Figures
from ebbtide.services.supply import Observed as ObservedDetails

router = APIRouter(tags=["capacity"])
Region = Annotated[str | None, Query(max_length=255, description="Only this one; all without it.")]
GpuType = Annotated[str | None, Query(max_length=255, description="Only this model; all without it.")]


@router.get("/v1/capacity", response_class=FastJSON, responses={200: {"model": Supply}, **ERRORS})
async def read_capacity(
    context: Ctx, caller: Asking, region: Region = None, gpu_type: GpuType = None
) -> FastJSON:
    """What one cluster could get now, by region and GPU model. No promise: the next order may be faster."""
    wanted = _words(region, gpu_type)
    found = await context.services.supply.now(caller, *wanted)
    answer = {
        "at": found.at,
        "offers": found.offers,
        "quota_left": found.quota,
    }
    return FastJSON(render_fleet.plain(answer))


@router.get(
    "/v1/capacity/history", response_class=FastJSON, responses={200: {"model": ObservedList}, **ERRORS}
)
async def read_history(
    context: Ctx, caller: Asking, region: Region = None, gpu_type: GpuType = None
) -> FastJSON:
    """Fill time and node life as observed, by region and GPU model, over all clusters there."""
    found = await context.services.supply.history(caller, *_words(region, gpu_type))
    return FastJSON({"history": [_observed(one) for one in found]})


@router.get(
    "/v1/clusters/{cluster_id}/history",
    response_class=FastJSON,
    responses={200: {"model": Observed}, **ERRORS},
)
async def read_cluster_history(context: Ctx, caller: Asking, cluster_id: str) -> FastJSON:
    """The same of one cluster."""
    found = await context.services.supply.cluster_history(caller, as_cluster_id(cluster_id))
    return FastJSON(_observed(found))


def _words(region: str | None, gpu_type: str | None) -> tuple[str | None, str | None]:
    return (
        check_text(region, "region") if region else None,
        check_text(gpu_type, "gpu_type") if gpu_type else None,
    )


def _observed(found: ObservedDetails) -> dict[str, Any]:
    shown: dict[str, Any] = render_fleet.plain(found)
    for name, figures in (("fill", found.fill), ("life", found.life)):
        shown[name]["note"] = _note(figures)
    return shown


def _note(figures: Figures) -> str | None:
    if not figures.enough:
        return "not enough history"
    if figures.p90_s is None:
        return "too few have ended for every figure"
    return None
