"""Storage volumes: create, list, retrieve, grow, delete, as Together's GPU Clusters API has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import render
from ebbtide.api.body import check_text, read_json
from ebbtide.api.clusters import replay_of
from ebbtide.api.context import Asking, Ctx
from ebbtide.api.openapi import body_of
from ebbtide.api.orders import volume_order
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS, DeletedVolume, Volume, VolumeList
from ebbtide.api.wire_volumes import CreateVolume, UpdateVolume
from ebbtide.errors import NotFound
from ebbtide.ids import is_uuid4
from ebbtide.services.details import VolumeChange

router = APIRouter(prefix="/v1/compute/clusters/storage/volumes", tags=["storage"])
ONE = {200: {"model": Volume}, **ERRORS}
_IMMUTABLE = ("volume_name", "region", "project_id", "is_lifecycle_independent")


@router.post("", response_class=FastJSON, responses={**ONE, **CONFLICT}, openapi_extra=body_of(CreateVolume))
async def create_volume(context: Ctx, caller: Asking, request: Request) -> FastJSON:
    """Order a volume. It is `available` as soon as the storage system has made it.

    A repeated `Idempotency-Key`, or a client's own retry of the same body, answers with the first volume.
    """
    sent = await read_json(request, context.max_body_bytes)
    order = volume_order(CreateVolume.read(sent.values))
    details = await context.services.volumes.create(caller, order, replay_of(request, sent))
    return FastJSON(render.volume(details))


@router.get("", response_class=FastJSON, responses={200: {"model": VolumeList}, **ERRORS})
async def list_volumes(
    context: Ctx,
    caller: Asking,
    project: Annotated[str | None, Query(alias="projectId", max_length=255)] = None,
    project_id: Annotated[
        str | None, Query(max_length=255, description="Another name of `projectId`.")
    ] = None,
) -> FastJSON:
    """Every volume that the key may see."""
    wanted = check_text(project or project_id or "", "projectId") or None
    found = await context.services.volumes.list(caller, wanted)
    return FastJSON({"volumes": [render.volume(each) for each in found]})


@router.put("", response_class=FastJSON, responses={**ONE, **CONFLICT}, openapi_extra=body_of(UpdateVolume))
async def update_volume(context: Ctx, caller: Asking, request: Request) -> FastJSON:
    """Grow a volume; the id is in the body. A smaller size is refused with 400."""
    body = UpdateVolume.read((await read_json(request, context.max_body_bytes)).values)
    sent = body.given()
    change = VolumeChange(body.size_tib, {name: sent[name] for name in _IMMUTABLE if name in sent})
    details = await context.services.volumes.update(caller, _as_volume_id(body.volume_id), change)
    return FastJSON(render.volume(details))


@router.get("/{volume_id}", response_class=FastJSON, responses=ONE)
async def retrieve_volume(context: Ctx, caller: Asking, volume_id: str) -> FastJSON:
    """One volume."""
    return FastJSON(render.volume(await context.services.volumes.retrieve(caller, _as_volume_id(volume_id))))


@router.delete(
    "/{volume_id}", response_class=FastJSON, responses={200: {"model": DeletedVolume}, **ERRORS, **CONFLICT}
)
async def delete_volume(context: Ctx, caller: Asking, volume_id: str) -> FastJSON:
    """Delete a volume and its data; refused with 409 while a cluster has it. A body is not read."""
    await context.services.volumes.delete(caller, _as_volume_id(volume_id))
    return FastJSON({"success": True})


def _as_volume_id(given: str) -> str:
    """`given`, if it can be a volume's id at all; anything else is answered without asking the database."""
    if not is_uuid4(given):
        raise NotFound(
            "volume not found; GET /v1/compute/clusters/storage/volumes lists yours", param="volume_id"
        )
    return given
