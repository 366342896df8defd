"""Regions, the GPU types offered there, and their driver catalogue."""

from __future__ import annotations

from fastapi import APIRouter

from ebbtide.api import render
from ebbtide.api.context import Asking, Ctx
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS, RegionList

router = APIRouter(tags=["clusters"])


@router.get("/v1/compute/regions", response_class=FastJSON, responses={200: {"model": RegionList}, **ERRORS})
async def list_regions(context: Ctx, caller: Asking) -> FastJSON:
    """Every region. A listed GPU type may still be out of stock: that is decided on create."""
    regions = await context.services.clusters.regions()
    return FastJSON({"regions": [render.region(each) for each in regions]})
