"""Receipts of drains: what each pod of a node was promised and got."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text
from ebbtide.api.context import Asking, Ctx, as_cluster_id
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS
from ebbtide.api.wire_tenant import DrainPage, DrainReceipt
from ebbtide.services.receipts import Receipt

router = APIRouter(prefix="/v1/clusters/{cluster_id}/drains", tags=["receipts"])


@router.get("", response_class=FastJSON, responses={200: {"model": DrainPage}, **ERRORS})
async def list_drains(
    context: Ctx,
    caller: Asking,
    cluster_id: str,
    before: Annotated[
        str | None, Query(max_length=255, description="A node's name or uid: only drains of older nodes.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> FastJSON:
    """Drains of a cluster, the newest node first; also when the cluster has gone."""
    wanted = as_cluster_id(cluster_id)
    older = check_text(before, "before") if before else None
    found = await context.services.receipts.list(caller, wanted, older, limit)
    last = found[-1].node_id if len(found) == limit else None
    return FastJSON({"drains": [_rendered(one) for one in found], "next_before": last})


@router.get("/{node}", response_class=FastJSON, responses={200: {"model": DrainReceipt}, **ERRORS})
async def retrieve_drain(context: Ctx, caller: Asking, cluster_id: str, node: str) -> FastJSON:
    """The receipt of one node's drain, by the node's name (`node_id`) or uid, pod by pod."""
    wanted = as_cluster_id(cluster_id)
    found = await context.services.receipts.retrieve(caller, wanted, check_text(node, "node"))
    return FastJSON(_rendered(found))


def _rendered(receipt: Receipt) -> dict[str, Any]:
    shown: dict[str, Any] = render_fleet.plain(receipt)
    if receipt.pods is None:
        del shown["pods"]
    return shown
