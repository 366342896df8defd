"""The operator's fleet: pools, hosts, nodes, reclaims on demand, the fleet file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text, read_json, read_text
from ebbtide.api.context import Ctx, Operator, as_cluster_id
from ebbtide.api.openapi import body_of, text_body
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_fleet import Cordon, CreateReclaim
from ebbtide.api.wire_fleet_answers import FleetNodeList, Host, HostList, PoolList
from ebbtide.api.wire_nodes import FleetRegionList, NodeReport

router = APIRouter(prefix="/v1/fleet", tags=["fleet"])
FILE_LIMIT_BYTES = 16_777_216


@router.get("/pools", response_class=FastJSON, responses={200: {"model": PoolList}, **ERRORS})
async def list_pools(context: Ctx, caller: Operator) -> FastJSON:
    """Pools, with their hosts counted by what they are doing."""
    pools = await context.services.fleet.pools(caller)
    return FastJSON({"pools": [render_fleet.pool(each) for each in pools]})


@router.get("/regions", response_class=FastJSON, responses={200: {"model": FleetRegionList}, **ERRORS})
async def list_regions(context: Ctx, caller: Operator) -> FastJSON:
    """Regions, with their pools and driver versions."""
    regions = await context.services.fleet.regions(caller)
    return FastJSON({"regions": render_fleet.plain(regions)})


@router.get("/nodes/{node}", response_class=FastJSON, responses={200: {"model": NodeReport}, **ERRORS})
async def show_node(context: Ctx, caller: Operator, node: str) -> FastJSON:
    """A node by name or uid, removed ones too: why it is where it is, its timeline, what its machine said."""
    return FastJSON(render_fleet.plain(await context.services.nodes.show(caller, check_text(node, "node"))))


@router.get("/hosts", response_class=FastJSON, responses={200: {"model": HostList}, **ERRORS})
async def list_hosts(
    context: Ctx, caller: Operator, pool: Annotated[str | None, Query(max_length=255)] = None
) -> FastJSON:
    """Hosts, and who has each."""
    hosts = await context.services.fleet.hosts(caller, check_text(pool, "pool") if pool else None)
    return FastJSON({"hosts": [render_fleet.host(each) for each in hosts]})


@router.post(
    "/hosts/{name}/cordon",
    response_class=FastJSON,
    responses={200: {"model": Host}, **ERRORS},
    openapi_extra=body_of(Cordon),
)
async def cordon_host(context: Ctx, caller: Operator, name: str, request: Request) -> FastJSON:
    """Keep a host from new occupants. The present one stays."""
    body = Cordon.read((await read_json(request, context.max_body_bytes)).values)
    host = await context.services.fleet.set_cordon(
        caller, check_text(name, "name"), cordoned=True, reason=body.reason
    )
    return FastJSON(render_fleet.host(host))


@router.post("/hosts/{name}/uncordon", response_class=FastJSON, responses={200: {"model": Host}, **ERRORS})
async def uncordon_host(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """Let a host have occupants again; this also ends a quarantine. A body is not read."""
    host = await context.services.fleet.set_cordon(caller, check_text(name, "name"), cordoned=False)
    return FastJSON(render_fleet.host(host))


@router.get("/nodes", response_class=FastJSON, responses={200: {"model": FleetNodeList}, **ERRORS})
async def list_nodes(
    context: Ctx,
    caller: Operator,
    cluster: Annotated[str | None, Query(alias="cluster_id", max_length=255)] = None,
) -> FastJSON:
    """Nodes with their phase, deadline and the last visit's sentence."""
    nodes = await context.services.fleet.nodes(caller, as_cluster_id(cluster) if cluster else None)
    return FastJSON({"nodes": [render_fleet.node(each) for each in nodes]})


@router.post(
    "/reclaims",
    response_class=FastJSON,
    responses={200: {"model": FleetNodeList}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(CreateReclaim),
)
async def reclaim(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Take preemptible nodes back now, with the full notice. Answers with the nodes that got it."""
    body = CreateReclaim.read((await read_json(request, context.max_body_bytes)).values)
    nodes = await context.services.fleet.reclaim(caller, body.pool, body.hosts, body.reason)
    return FastJSON({"nodes": [render_fleet.node(each) for each in nodes]})


@router.post(
    "/file", response_class=FastJSON, responses={**ERRORS, **CONFLICT}, openapi_extra=text_body("YAML")
)
async def apply_file(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Apply a fleet file (YAML). It adds and changes pools and hosts; it never forgets a lent host."""
    changes = await context.services.fleet.apply(caller, await read_text(request, FILE_LIMIT_BYTES))
    return FastJSON(_object(render_fleet.plain(changes), "changes"))


@router.get("/ownership", response_class=FastJSON, responses=ERRORS)
async def ownership(context: Ctx, caller: Operator) -> FastJSON:
    """Which fields the fleet file owns and which the API."""
    return FastJSON(_object(render_fleet.plain(await context.services.fleet.ownership(caller)), "ownership"))


def _object(value: object, name: str) -> object:
    """Answers are always JSON objects: clients stumble over anything else."""
    return value if isinstance(value, dict) else {name: value}
