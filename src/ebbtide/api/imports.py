"""Clusters that exist: taking one in, and renewing our way into it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from ebbtide.api import render
from ebbtide.api.body import read_json
from ebbtide.api.clusters import replay_of
from ebbtide.api.context import Ctx, Operator, as_cluster_id
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS, Cluster
from ebbtide.api.wire_base import GpuCount, Name, Wire
from ebbtide.services.details import ImportChange, ImportOrder

router = APIRouter(prefix="/v1/clusters", tags=["imported clusters"])
ONE = {200: {"model": Cluster}, **ERRORS, **CONFLICT}
Kubeconfig = Annotated[str, Field(min_length=1, max_length=262_144, description="YAML, credentials within.")]


class ImportCluster(Wire):
    """standard_selector: a label selector that the cluster's own nodes match."""

    cluster_name: Name
    region: Name
    gpu_type: Name
    kubeconfig: Kubeconfig
    standard_selector: Name
    num_preemptible_gpus: GpuCount | None = None
    project_id: Name | None = None
    placement: Literal["open", "explicit"] | None = None
    volume_id: Name | None = None


class RenewImport(Wire):
    """What is left out stays. force: another server also while nodes of ours are in the cluster."""

    kubeconfig: Kubeconfig | None = None
    standard_selector: Name | None = None
    force: bool = False


@router.post("/import", response_class=FastJSON, responses=ONE, openapi_extra=body_of(ImportCluster))
async def import_cluster(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Take in a cluster that exists. Its own nodes count as standard and are never touched.

    It is looked at afterwards: `imported.problem` says what keeps it from being Ready. DELETE detaches it.
    """
    sent = await read_json(request, context.max_body_bytes)
    body = ImportCluster.read(sent.values)
    order = ImportOrder(
        cluster_name=body.cluster_name,
        region=body.region,
        gpu_type=body.gpu_type,
        kubeconfig=body.kubeconfig,
        standard_selector=body.standard_selector,
        num_preemptible_gpus=body.num_preemptible_gpus or 0,
        project_id=body.project_id,
        placement=body.placement or "open",
        volume_id=body.volume_id,
    )
    made = await context.services.imports.create(caller, order, replay_of(request, sent))
    return FastJSON(render.cluster(made, aliases=context.aliases))


@router.put(
    "/{cluster_id}/import", response_class=FastJSON, responses=ONE, openapi_extra=body_of(RenewImport)
)
async def renew_import(context: Ctx, caller: Operator, cluster_id: str, request: Request) -> FastJSON:
    """Another kubeconfig for an imported cluster (its token ends, say), or another selector."""
    wanted = as_cluster_id(cluster_id)
    body = RenewImport.read((await read_json(request, context.max_body_bytes)).values)
    change = ImportChange(body.kubeconfig, body.standard_selector, body.force)
    renewed = await context.services.imports.renew(caller, wanted, change)
    return FastJSON(render.cluster(renewed, aliases=context.aliases))
