"""The operator's why-questions."""

from __future__ import annotations

from fastapi import APIRouter

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text
from ebbtide.api.context import Ctx, Operator, as_cluster_id
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS
from ebbtide.api.wire_why import WhyNode, WhyTarget

router = APIRouter(prefix="/v1/fleet/why", tags=["fleet"])


@router.get("/node/{node}", response_class=FastJSON, responses={200: {"model": WhyNode}, **ERRORS})
async def why_node(context: Ctx, caller: Operator, node: str) -> FastJSON:
    """Why a node (by name or uid) was placed, chosen or taken, for which claim, and what comes next."""
    return FastJSON(render_fleet.plain(await context.services.why.node(caller, check_text(node, "node"))))


@router.get("/target/{cluster_id}", response_class=FastJSON, responses={200: {"model": WhyTarget}, **ERRORS})
async def why_target(context: Ctx, caller: Operator, cluster_id: str) -> FastJSON:
    """Why a cluster's preemptible target is not met, since when, the last and next try, what the pool has."""
    found = await context.services.why.target(caller, as_cluster_id(cluster_id))
    return FastJSON(render_fleet.plain(found))
