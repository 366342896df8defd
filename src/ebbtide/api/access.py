"""Projects and keys: who may use the server. A key is shown once, when it is issued."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request

from ebbtide.api import render_access
from ebbtide.api.body import check_text, read_json
from ebbtide.api.context import Asking, Ctx, Operator
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_access import (
    AuditPage,
    CreateKey,
    CreateProject,
    IssuedKey,
    KeyList,
    Project,
    ProjectList,
    RevokedKey,
    RotateKey,
    SetProject,
)
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.services.details import Role

router = APIRouter(prefix="/v1", tags=["access"])
_NOT_IN_SLUGS = re.compile(r"[^a-z0-9]+")


@router.get("/projects", response_class=FastJSON, responses={200: {"model": ProjectList}, **ERRORS})
async def list_projects(context: Ctx, caller: Asking) -> FastJSON:
    """The projects that the key may see. They come in one page."""
    projects = await context.services.access.projects(caller)
    return FastJSON({"data": [render_access.project(each) for each in projects], "next_cursor": None})


@router.post(
    "/projects",
    response_class=FastJSON,
    responses={200: {"model": Project}, **ERRORS, **CONFLICT},
    openapi_extra=body_of(CreateProject),
)
async def create_project(context: Ctx, caller: Operator, request: Request) -> FastJSON:
    """Make a project in the organization named, or else in the caller's."""
    body = CreateProject.read((await read_json(request, context.max_body_bytes)).values)
    slug = body.slug or _NOT_IN_SLUGS.sub("-", (body.name or "").lower()).strip("-")[:63].strip("-")
    made = await context.services.access.create_project(
        caller, slug, body.name, body.weight or 1, body.organization
    )
    return FastJSON(render_access.project(made))


@router.patch(
    "/fleet/projects/{project}",
    response_class=FastJSON,
    responses={200: {"model": Project}, **ERRORS},
    openapi_extra=body_of(SetProject),
)
async def set_project(context: Ctx, caller: Operator, project: str, request: Request) -> FastJSON:
    """Set a project's weight and quotas; the project is named by id or slug."""
    body = SetProject.read((await read_json(request, context.max_body_bytes)).values)
    changes = {name: None if value < 0 else value for name, value in body.given().items()}
    changed = await context.services.access.set_project(caller, check_text(project, "project"), changes)
    return FastJSON(render_access.project(changed))


@router.get("/audit", response_class=FastJSON, responses={200: {"model": AuditPage}, **ERRORS})
async def read_audit(
    context: Ctx,
    caller: Asking,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> FastJSON:
    """Changes made with the project's keys or to its things (operators: all), the newest first."""
    entries = await context.services.audit.read(caller, before, limit)
    more = entries[-1].number if len(entries) == limit else None
    return FastJSON({"entries": [render_access.audit_entry(each) for each in entries], "next_before": more})


@router.get("/keys", response_class=FastJSON, responses={200: {"model": KeyList}, **ERRORS})
async def list_keys(context: Ctx, caller: Asking) -> FastJSON:
    """Keys of the caller's project, for an operator all. Secrets are not stored and not shown."""
    return FastJSON(
        {"keys": [render_access.key(each) for each in await context.services.access.keys(caller)]}
    )


@router.post(
    "/keys",
    response_class=FastJSON,
    responses={200: {"model": IssuedKey}, **ERRORS},
    openapi_extra=body_of(CreateKey),
)
async def issue_key(context: Ctx, caller: Asking, request: Request) -> FastJSON:
    """Issue a key for a project, named by id or slug. `key` is in this answer and never again."""
    body = CreateKey.read((await read_json(request, context.max_body_bytes)).values)
    role = Role(body.role or Role.MEMBER)
    issued = await context.services.access.issue_key(
        caller, body.project or caller.project_id, role, name=body.name, expires_in_days=body.expires_in_days
    )
    return FastJSON({"key": issued.secret, **render_access.key(issued.details)})


@router.post(
    "/keys/{key_id}/rotate",
    response_class=FastJSON,
    responses={200: {"model": IssuedKey}, **ERRORS},
    openapi_extra=body_of(RotateKey),
)
async def rotate_key(context: Ctx, caller: Asking, key_id: str, request: Request) -> FastJSON:
    """Issue a key in place of another, which works on for `overlap_s`, so that nobody is cut off."""
    body = RotateKey.read((await read_json(request, context.max_body_bytes)).values)
    overlap_s = 3_600 if body.overlap_s is None else body.overlap_s
    issued = await context.services.access.rotate_key(caller, check_text(key_id, "key_id"), overlap_s)
    return FastJSON({"key": issued.secret, **render_access.key(issued.details)})


@router.delete("/keys/{key_id}", response_class=FastJSON, responses={200: {"model": RevokedKey}, **ERRORS})
async def revoke_key(context: Ctx, caller: Asking, key_id: str) -> FastJSON:
    """End a key at once."""
    await context.services.access.revoke_key(caller, check_text(key_id, "key_id"))
    return FastJSON({"id": key_id, "revoked": True})
