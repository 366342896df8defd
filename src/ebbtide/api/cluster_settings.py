"""A cluster's settings beside the contract."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import read_json
from ebbtide.api.context import Asking, Ctx, as_cluster_id
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_tenant import ClusterSettings, SetClusterSettings

router = APIRouter(prefix="/v1/clusters/{cluster_id}/settings", tags=["clusters"])
ONE = {200: {"model": ClusterSettings}, **ERRORS}


@router.get("", response_class=FastJSON, responses=ONE)
async def read_settings(context: Ctx, caller: Asking, cluster_id: str) -> FastJSON:
    """A cluster's warning before SIGTERM, and where its pods may be placed."""
    found = await context.services.cluster_settings.read(caller, as_cluster_id(cluster_id))
    return FastJSON(render_fleet.plain(found))


@router.patch(
    "", response_class=FastJSON, responses={**ONE, **CONFLICT}, openapi_extra=body_of(SetClusterSettings)
)
async def set_settings(context: Ctx, caller: Asking, cluster_id: str, request: Request) -> FastJSON:
    """Change what is given, for drains and nodes that begin from now on."""
    wanted = as_cluster_id(cluster_id)
    body = SetClusterSettings.read((await read_json(request, context.max_body_bytes)).values)
    found = await context.services.cluster_settings.update(
        caller, wanted, warn_first_s=body.warn_first_s, placement=body.placement
    )
    return FastJSON(render_fleet.plain(found))
