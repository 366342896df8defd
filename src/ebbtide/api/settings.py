"""Settings: what there is, where each value comes from, and those that change while processes run."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import read_json
from ebbtide.api.context import Ctx, Operator
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import ERRORS
from ebbtide.api.wire_settings import ChangeSettings, SettingList

router = APIRouter(prefix="/v1/fleet/settings", tags=["fleet"])


@router.get("", response_class=FastJSON, responses={200: {"model": SettingList}, **ERRORS})
async def list_settings(context: Ctx, caller: Operator) -> FastJSON:
    """Every setting: its value, where that comes from, and whether it can change while processes run."""
    found = await context.services.settings.list(caller)
    return FastJSON({"settings": render_fleet.plain(found)})


@router.patch(
    "",
    response_class=FastJSON,
    responses={200: {"model": SettingList}, **ERRORS},
    openapi_extra=body_of(ChangeSettings),
)
async def change_settings(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Set some settings and reset others, for every process, within seconds. All or nothing."""
    body = ChangeSettings.read((await read_json(request, context.max_body_bytes)).values)
    changed = await context.services.settings.change(caller, body.set_ or {}, body.reset or [])
    return FastJSON({"settings": render_fleet.plain(changed)})
