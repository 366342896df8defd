"""Storage volumes are not offered. The paths answer all the same: the CLI's interactive create lists them."""

from __future__ import annotations

from fastapi import APIRouter

from ebbtide.api.context import Asking
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS, VolumeList
from ebbtide.errors import BadInput, NotFound

router = APIRouter(prefix="/v1/compute/clusters/storage/volumes", tags=["clusters"])


@router.get("", response_class=FastJSON, responses={200: {"model": VolumeList}, **ERRORS})
async def list_volumes(caller: Asking) -> FastJSON:
    """No volumes."""
    return FastJSON({"volumes": []})


@router.post("", response_class=FastJSON, responses=ERRORS)
@router.put("", response_class=FastJSON, responses=ERRORS, name="update_volume")
async def create_volume(caller: Asking) -> FastJSON:
    """Refused."""
    raise BadInput("storage volumes are not offered here; use your own storage from inside the cluster")


@router.get("/{volume_id}", response_class=FastJSON, responses=ERRORS)
@router.delete("/{volume_id}", response_class=FastJSON, responses=ERRORS, name="delete_volume")
async def retrieve_volume(caller: Asking, volume_id: str) -> FastJSON:
    """Not found."""
    raise NotFound("volume not found; storage volumes are not offered here")
