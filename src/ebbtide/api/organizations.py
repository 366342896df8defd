"""Organisations: to which each project belongs one."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ebbtide.api import render_fleet
from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Asking, Ctx, Operator
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_access import ChangeOrganization, CreateOrganization, Organization, OrganizationList
from ebbtide.api.wire_answers import CONFLICT, ERRORS

router = APIRouter(prefix="/v1/access/organizations", tags=["access"])


@router.get("", response_class=FastJSON, responses={200: {"model": OrganizationList}, **ERRORS})
async def list_organizations(context: Ctx, caller: Asking) -> FastJSON:
    """The key's organization, for an operator all of them."""
    found = await context.services.organizations.list(caller)
    return FastJSON({"organizations": render_fleet.plain(found)})


@router.post(
    "",
    response_class=FastJSON,
    responses={200: {"model": Organization}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(CreateOrganization),
)
async def create_organization(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Make an organization. Projects are made in it by its name or id."""
    body = CreateOrganization.read((await read_json(request, context.max_body_bytes)).values)
    return FastJSON(render_fleet.plain(await context.services.organizations.create(caller, body.name)))


@router.patch(
    "/{organization}",
    response_class=FastJSON,
    responses={200: {"model": Organization}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(ChangeOrganization),
)
async def change_organization(
    context: Ctx, caller: Operator, organization: str, request: Request
) -> FastJSON:
    """Rename an organization, or disable it: its keys are refused then, and its clusters go on."""
    body = ChangeOrganization.read((await read_json(request, context.max_body_bytes)).values)
    changed = await context.services.organizations.change(
        caller, check_text(organization, "organization"), name=body.name, disabled=body.disabled
    )
    return FastJSON(render_fleet.plain(changed))
