"""The FastAPI app: Together's GPU Clusters API, and our own fleet, usage and event endpoints."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from ebbtide import __version__
from ebbtide.api import (
    access,
    claims,
    cluster_settings,
    clusters,
    event_stream,
    events,
    fleet,
    health,
    hosts,
    http_metrics,
    imports,
    inventory,
    organizations,
    problems,
    receipts,
    regions,
    remediations,
    supply,
    usage,
    volumes,
    webhooks,
    whoami,
    why,
)
from ebbtide.api import playground as playground_routes
from ebbtide.api import settings as settings_routes
from ebbtide.api.context import Context
from ebbtide.api.middleware import Envelope
from ebbtide.api.openapi import OpenAPI
from ebbtide.api.rate_limit import RateLimit
from ebbtide.clock import AnchoredClock, Clock, monotonic
from ebbtide.ids import Ids, SystemIds
from ebbtide.playground.levers import Levers
from ebbtide.services import Services
from ebbtide.settings import Settings

_DESCRIPTION = """\
Lends a GPU fleet's unused hosts to Kubernetes clusters as preemptible nodes. The cluster endpoints are
those of Together's GPU Clusters API; the official clients work against them with only their base URL changed.
"""


def create_app(
    services: Services,
    settings: Settings,
    *,
    playground: Levers | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> FastAPI:
    """The whole HTTP API over `services`. `playground`: the simulated fleet's levers, where there is one."""
    app = FastAPI(
        title="Ebbtide",
        version=__version__,
        description=_DESCRIPTION,
        redirect_slashes=False,  # the envelope strips trailing slashes; a redirect would cost a round trip
        redoc_url=None,
    )
    app.state.context = Context(
        services=services,
        clock=clock or AnchoredClock(),
        aliases=settings.event_aliases,
        max_body_bytes=settings.max_body_bytes,
        playground=playground,
        rate_limit=RateLimit(lambda: (settings.rate_limit_per_s, settings.rate_limit_burst), monotonic),
    )
    app.state.closing = asyncio.Event()  # set when the server stops: endless answers end
    problems.install(app)
    # `volumes` before `clusters`: the word `storage` stands where a cluster's id would.
    for room in (
        whoami,
        access,
        organizations,
        regions,
        volumes,
        clusters,
        remediations,
        imports,
        cluster_settings,
        receipts,
        supply,
        events,
        event_stream,
        claims,
        fleet,
        hosts,
        settings_routes,
        inventory,
        why,
        usage,
        webhooks,
        health,
    ):
        app.include_router(room.router)
    if playground is not None:
        app.include_router(playground_routes.router)
    app.openapi = OpenAPI(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    app.add_middleware(Envelope, new_id=(ids or SystemIds()).uuid4, observe=http_metrics.observe)
    return app
