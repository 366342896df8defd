"""Levers of the simulated world, only there with a simulated fleet: run pods, make a host vanish."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Context, Ctx, Operator, as_cluster_id
from ebbtide.api.openapi import object_body
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.errors import NotFound
from ebbtide.playground.levers import Levers

router = APIRouter(prefix="/v1/playground", tags=["playground"])


@router.get("/clusters/{cluster_id}/pods", response_class=FastJSON, responses=ERRORS)
async def list_pods(context: Ctx, caller: Operator, cluster_id: str) -> FastJSON:
    """The pods that the simulated cluster runs."""
    pods = await _world(context).pods(as_cluster_id(cluster_id))
    return FastJSON({"pods": [dict(each) for each in pods]})


@router.post(
    "/clusters/{cluster_id}/pods",
    response_class=FastJSON,
    responses={**ERRORS, **CONFLICT},
    openapi_extra=object_body("A pod."),
)
async def add_pods(context: Ctx, caller: Operator, cluster_id: str, request: Request) -> FastJSON:
    """Start pods in a simulated cluster: obedient, dawdling, or deaf to SIGTERM."""
    spec = (await read_json(request, context.max_body_bytes)).values
    pods = await _world(context).add_pods(as_cluster_id(cluster_id), spec)
    return FastJSON({"pods": [dict(each) for each in pods]})


@router.get("/clusters/{cluster_id}/volumes", response_class=FastJSON, responses=ERRORS)
async def list_volumes(context: Ctx, caller: Operator, cluster_id: str) -> FastJSON:
    """The PersistentVolumes that the simulated cluster shows, as manifests."""
    volumes = await _world(context).volumes(as_cluster_id(cluster_id))
    return FastJSON({"volumes": [dict(each) for each in volumes]})


@router.post(
    "/clusters/{cluster_id}/nodes/{name}/delete", response_class=FastJSON, responses={**ERRORS, **CONFLICT}
)
async def delete_node(context: Ctx, caller: Operator, cluster_id: str, name: str) -> FastJSON:
    """What `kubectl delete node` does: a preemptible node is given back, a standard one is lost."""
    answer = await _world(context).delete_node(as_cluster_id(cluster_id), check_text(name, "name"))
    return FastJSON(dict(answer))


@router.post("/hosts/{name}/vanish", response_class=FastJSON, responses={**ERRORS, **CONFLICT})
async def vanish(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """Let a simulated host vanish without notice, as if its power supply had failed."""
    return FastJSON(dict(await _world(context).vanish(check_text(name, "name"))))


@router.post("/hosts/{name}/restore", response_class=FastJSON, responses={**ERRORS, **CONFLICT})
async def restore(context: Ctx, caller: Operator, name: str) -> FastJSON:
    """Let a vanished host be there again."""
    return FastJSON(dict(await _world(context).restore(check_text(name, "name"))))


def _world(context: Context) -> Levers:
    if context.playground is None:
        raise NotFound("there is no playground here; it comes with the simulated provider only")
    return context.playground
