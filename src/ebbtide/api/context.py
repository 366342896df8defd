"""What a route needs: the services, the settings, and who is asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ebbtide.api.rate_limit import RateLimit
from ebbtide.clock import Clock
from ebbtide.errors import Forbidden, NotFound, Unauthenticated
from ebbtide.ids import is_uuid4
from ebbtide.playground.levers import Levers
from ebbtide.services import Services
from ebbtide.services.details import Caller

_KEY_LIMIT = 512


@dataclass(frozen=True, slots=True)
class Context:
    """aliases: whether lifecycle events also appear under the documentation's older reasons.
    max_body_bytes: of a JSON body
    playground: the simulated fleet's levers, where the fleet is simulated
    rate_limit: what each key may still send
    """

    services: Services
    clock: Clock
    aliases: bool
    max_body_bytes: int
    playground: Levers | None
    rate_limit: RateLimit


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


Ctx = Annotated[Context, Depends(_context)]
_bearer = HTTPBearer(auto_error=False, description="A key of a project, as `Authorization: Bearer KEY`.")


async def _caller(
    context: Ctx,
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Who asks. Runs before the body is read, so that a stranger learns nothing about it."""
    key = credentials.credentials.strip() if credentials else ""
    if len(key) > _KEY_LIMIT:
        raise Unauthenticated(
            "this key is not known; check Authorization: Bearer KEY", code="invalid_api_key"
        )
    caller = await context.services.access.authenticate(key or None)
    request.state.key = key
    left = context.rate_limit.spend(caller.key_id)
    if left is not None:
        request.state.rate_limit = (context.rate_limit.burst, left)
    return caller


Asking = Annotated[Caller, Depends(_caller)]


def _operator(caller: Asking) -> Caller:
    if not caller.is_operator:
        raise Forbidden(
            "this is for the fleet's operator; use a key with the role operator", code="operator_only"
        )
    return caller


Operator = Annotated[Caller, Depends(_operator)]


def as_cluster_id(given: str) -> str:
    """`given`, if it can be a cluster's id at all; anything else is answered without asking the database."""
    if not is_uuid4(given):
        raise NotFound("cluster not found; GET /v1/compute/clusters lists yours", param="cluster_id")
    return given
