"""Clusters: create, list, retrieve, update, delete, as Together's GPU Clusters API has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import orders, render
from ebbtide.api.body import JSONBody, check_text, read_json
from ebbtide.api.context import Asking, Context, Ctx, as_cluster_id
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS, Cluster, ClusterList, DeletedCluster
from ebbtide.api.wire_clusters import CreateCluster, UpdateCluster
from ebbtide.errors import BadInput
from ebbtide.services.details import ClusterDetails, Replay

router = APIRouter(prefix="/v1/compute/clusters", tags=["clusters"])
ONE = {200: {"model": Cluster}, **ERRORS}


@router.post("", response_class=FastJSON, responses={**ONE, **CONFLICT}, openapi_extra=body_of(CreateCluster))
async def create_cluster(context: Ctx, caller: Asking, request: Request) -> FastJSON:
    """Order a cluster. Its standard GPUs are promised in the answer, or refused with 409.

    A repeated `Idempotency-Key`, or a client's own retry of the same body, answers with the first cluster.
    """
    sent = await read_json(request, context.max_body_bytes)
    order = orders.order(CreateCluster.read(sent.values), caller)
    details = await context.services.clusters.create(caller, order, replay_of(request, sent))
    return _answer(context, details)


@router.get("", response_class=FastJSON, responses={200: {"model": ClusterList}, **ERRORS})
async def list_clusters(
    context: Ctx,
    caller: Asking,
    project: Annotated[str | None, Query(alias="projectId", max_length=255)] = None,
    project_id: Annotated[
        str | None, Query(max_length=255, description="Another name of `projectId`.")
    ] = None,
) -> FastJSON:
    """Every cluster that the key may see, without kubeconfigs (those are credentials; retrieve has them)."""
    wanted = check_text(project or project_id or "", "projectId") or None
    clusters = await context.services.clusters.list(caller, wanted)
    aliases = context.aliases
    rows = [render.cluster(each, aliases=aliases, with_kubeconfig=False) for each in clusters]
    return FastJSON({"clusters": rows})


@router.get("/{cluster_id}", response_class=FastJSON, responses=ONE)
async def retrieve_cluster(context: Ctx, caller: Asking, cluster_id: str) -> FastJSON:
    """One cluster, with its kubeconfig (base64) as soon as there is one."""
    return _answer(context, await context.services.clusters.retrieve(caller, as_cluster_id(cluster_id)))


@router.put(
    "/{cluster_id}",
    response_class=FastJSON,
    responses={**ONE, **CONFLICT},
    openapi_extra=body_of(UpdateCluster),
)
async def update_cluster(context: Ctx, caller: Asking, cluster_id: str, request: Request) -> FastJSON:
    """Change the standard count, the preemptible target, add-ons (by name) or the cluster's configuration.

    A merge: what is absent or null stays as it is. What is set at creation only may be sent back unchanged.
    """
    wanted = as_cluster_id(cluster_id)
    body = UpdateCluster.read((await read_json(request, context.max_body_bytes)).values)
    change = orders.change(body)
    return _answer(context, await context.services.clusters.update(caller, wanted, change))


@router.delete(
    "/{cluster_id}", response_class=FastJSON, responses={200: {"model": DeletedCluster}, **ERRORS, **CONFLICT}
)
async def delete_cluster(context: Ctx, caller: Asking, cluster_id: str) -> FastJSON:
    """Delete a cluster. Its nodes drain; until they are gone its status is Deleting. A body is not read."""
    wanted = as_cluster_id(cluster_id)
    await context.services.clusters.delete(caller, wanted)
    return FastJSON({"cluster_id": wanted})


def replay_of(request: Request, sent: JSONBody) -> Replay:
    """What tells the service that this create was sent before."""
    token = request.headers.get("idempotency-key")
    if token is not None and not (0 < len(token) <= 255 and token.isprintable()):
        raise BadInput(
            "the Idempotency-Key header must be 1 to 255 printable characters", param="Idempotency-Key"
        )
    count = request.headers.get("x-stainless-retry-count", "0")
    is_retry = count.isascii() and count.isdigit() and count.strip("0") != ""
    return Replay(body_hash=sent.sha256, token=token, is_retry=is_retry)


def _answer(context: Context, details: ClusterDetails) -> FastJSON:
    return FastJSON(render.cluster(details, aliases=context.aliases))
