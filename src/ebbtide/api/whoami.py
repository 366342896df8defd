"""Who the key belongs to. The official CLI asks before every command."""

from __future__ import annotations

from fastapi import APIRouter

from ebbtide.api import render
from ebbtide.api.context import Asking
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS, Whoami

router = APIRouter(tags=["who"])


@router.get("/v3/whoami", response_class=FastJSON, responses={200: {"model": Whoami}, **ERRORS})
async def whoami(caller: Asking) -> FastJSON:
    """The key's id, organization and project."""
    return FastJSON(render.whoami(caller))
