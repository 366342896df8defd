"""Remediations of a cluster's machines, as Together's GPU Clusters API has them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request

from ebbtide.api import render
from ebbtide.api.body import check_text, parse_object, read_bytes, read_json
from ebbtide.api.clusters import replay_of
from ebbtide.api.context import Asking, Context, Ctx, as_cluster_id
from ebbtide.api.openapi import body_of
from ebbtide.api.responses import FastJSON
from ebbtide.api.wire_answers import CONFLICT, ERRORS
from ebbtide.api.wire_remediations import (
    MODE_PREFIX,
    TRIGGER_PREFIX,
    ApproveRemediation,
    CreateRemediation,
    RejectRemediation,
    Remediation,
    RemediationList,
)
from ebbtide.core.remediations import Mode, Review, State, Trigger
from ebbtide.errors import BadInput
from ebbtide.services.details import Caller
from ebbtide.services.remediations import Asked

W = TypeVar("W", bound=StrEnum)

router = APIRouter(
    prefix="/v1/compute/clusters/{cluster_id}/instances/{instance_id}/remediations", tags=["remediations"]
)
ONE = {200: {"model": Remediation}, **ERRORS}
REVIEWED = {**ONE, **CONFLICT}
Words = Annotated[str | None, Query(max_length=1000, description="Comma-separated; any of them.")]


@router.post("", response_class=FastJSON, responses=REVIEWED, openapi_extra=body_of(CreateRemediation))
async def create_remediation(
    context: Ctx, caller: Asking, cluster_id: str, instance_id: str, request: Request
) -> FastJSON:
    """Ask for a remediation of one machine. One that is not over yet excludes another."""
    sent = await read_json(request, context.max_body_bytes)
    body = CreateRemediation.read(sent.values)
    made = await context.services.remediations.create(
        caller,
        as_cluster_id(cluster_id),
        check_text(instance_id, "instance_id"),
        _mode(body.mode),
        body.reason,
        replay_of(request, sent),
    )
    return FastJSON(render.remediation(made))


@router.get("", response_class=FastJSON, responses={200: {"model": RemediationList}, **ERRORS})
async def list_remediations(
    context: Ctx,
    caller: Asking,
    cluster_id: str,
    instance_id: str,
    mode: Words = None,
    state: Words = None,
    trigger: Words = None,
    page_size: Annotated[int, Query(ge=1, le=1000)] = 100,
    page_token: Annotated[str, Query(max_length=1000)] = "",
    order_by: Annotated[str, Query(max_length=100, description="Such as `update_time desc`.")] = "",
) -> FastJSON:
    """Remediations of one machine, or with `-` of the whole cluster, the newest first."""
    asked = Asked(
        _each(Mode, mode, "mode", MODE_PREFIX),
        _each(State, state, "state", ""),
        _each(Trigger, trigger, "trigger", TRIGGER_PREFIX),
        check_text(order_by, "order_by"),
        page_size,
        check_text(page_token, "page_token"),
    )
    page = await context.services.remediations.list(
        caller, as_cluster_id(cluster_id), check_text(instance_id, "instance_id"), asked
    )
    return FastJSON(
        {
            "remediations": [render.remediation(each) for each in page.items],
            "has_next": page.next_page_token != "",
            "next_page_token": page.next_page_token,
        }
    )


@router.get("/{remediation_id}", response_class=FastJSON, responses=ONE)
async def retrieve_remediation(
    context: Ctx, caller: Asking, cluster_id: str, instance_id: str, remediation_id: str
) -> FastJSON:
    """One remediation."""
    found = await context.services.remediations.retrieve(
        caller, as_cluster_id(cluster_id), instance_id, remediation_id
    )
    return FastJSON(render.remediation(found))


@router.post(
    "/{remediation_id}/approve",
    response_class=FastJSON,
    responses=REVIEWED,
    openapi_extra=body_of(ApproveRemediation, required=False),
)
async def approve_remediation(
    context: Ctx, caller: Asking, cluster_id: str, instance_id: str, remediation_id: str, request: Request
) -> FastJSON:
    """Let a remediation that waits for approval begin, in another mode if that is wanted."""
    body = ApproveRemediation.read(await _read_if_any(request, context.max_body_bytes))
    which = (cluster_id, instance_id, remediation_id)
    mode = _mode(body.mode) if body.mode else None
    return await _review(context, caller, which, Review.APPROVE, comment=body.comment, mode=mode)


@router.post(
    "/{remediation_id}/reject",
    response_class=FastJSON,
    responses=REVIEWED,
    openapi_extra=body_of(RejectRemediation, required=False),
)
async def reject_remediation(
    context: Ctx, caller: Asking, cluster_id: str, instance_id: str, remediation_id: str, request: Request
) -> FastJSON:
    """Refuse a remediation that waits for approval."""
    body = RejectRemediation.read(await _read_if_any(request, context.max_body_bytes))
    which = (cluster_id, instance_id, remediation_id)
    return await _review(context, caller, which, Review.REJECT, comment=body.comment)


@router.post("/{remediation_id}/cancel", response_class=FastJSON, responses=REVIEWED)
async def cancel_remediation(
    context: Ctx, caller: Asking, cluster_id: str, instance_id: str, remediation_id: str
) -> FastJSON:
    """Take a remediation back that has not begun. A body is not read."""
    return await _review(context, caller, (cluster_id, instance_id, remediation_id), Review.CANCEL)


async def _review(
    context: Context,
    caller: Caller,
    which: tuple[str, str, str],
    review: Review,
    *,
    comment: str | None = None,
    mode: Mode | None = None,
) -> FastJSON:
    """which: the ids of the cluster, the instance and the remediation."""
    cluster_id, instance_id, remediation_id = which
    found = await context.services.remediations.review(
        caller, as_cluster_id(cluster_id), instance_id, remediation_id, review, comment=comment, mode=mode
    )
    return FastJSON(render.remediation(found))


async def _read_if_any(request: Request, limit: int) -> dict[str, Any]:
    """The body's object; nothing sent is nothing said."""
    raw = await read_bytes(request, limit)
    return parse_object(raw) if raw else {}


def _mode(word: str) -> Mode:
    return Mode(word.removeprefix(MODE_PREFIX))


def _each(kind: type[W], words: str | None, param: str, prefix: str) -> tuple[W, ...]:
    """Members of `kind` from a comma-separated list. BadInput for a word that is none."""
    found = []
    for word in filter(None, (part.strip() for part in (words or "").split(","))):
        name = word.removeprefix(prefix)
        if name not in kind.__members__:
            known = ", ".join(f"{prefix}{each}" for each in kind)
            raise BadInput(f"{param} is a list of {known}; got {word[:60]!r}", param=param)
        found.append(kind(name))
    return tuple(found)
