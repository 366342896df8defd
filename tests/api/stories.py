"""The API over the real services on a manual clock: time passes only when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from together.types import Cluster

from ebbtide.services.details import Role
from ebbtide.services.fleet_file import parse
from ebbtide.simulation import Simulation, simulation

CLUSTERS = "/v1/compute/clusters"
CREATE = {
    "billing_type": "ON_DEMAND",
    "cluster_name": "demo",
    "gpu_type": "H100_SXM",
    "num_gpus": 8,
    "region": "local-1",
    "cuda_version": "12.8",
    "nvidia_driver_version": "570",
}


def client_of(app: FastAPI, key: str | None = "member-key") -> httpx.AsyncClient:
    """A client that sees what a socket's client sees: a fault is a 500, not an exception in the test."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://ebbtide", headers=headers)


@dataclass(frozen=True)
class Story:
    """Time passes only by `simulated`. One client per key: two tenants and the operator."""

    simulated: Simulation
    tenant: httpx.AsyncClient
    project: str
    other: httpx.AsyncClient
    operator: httpx.AsyncClient

    async def create(self, client: httpx.AsyncClient | None = None, **fields: Any) -> dict[str, Any]:
        answer = await (client or self.tenant).post(CLUSTERS, json={**CREATE, **fields})
        assert answer.status_code == 200, answer.text
        return strictly(answer)

    async def see(self, cluster: dict[str, Any]) -> dict[str, Any]:
        return strictly(await self.tenant.get(f"{CLUSTERS}/{cluster['cluster_id']}"))


def strictly(answer: httpx.Response) -> dict[str, Any]:
    """The body, after the official client's strict model took it."""
    assert answer.status_code == 200, answer.text
    Cluster.model_validate_json(answer.content, strict=True)
    body: dict[str, Any] = answer.json()
    return body


@asynccontextmanager
async def tell(database_url: str, fleet: str) -> AsyncIterator[Story]:
    """A story over an empty database and a fleet."""
    async with simulation(database_url, parse(fleet, "fleet.yaml"), seed=3) as simulated:
        keys = [
            await simulated.system.first_key(role, slug, slug.title())
            for slug, role in (("acme", Role.MEMBER), ("other", Role.MEMBER), ("ops", Role.OPERATOR))
        ]
        app = simulated.system.app()
        tenant, other, operator = (client_of(app, key.secret) for key in keys)
        async with tenant, other, operator:
            yield Story(simulated, tenant, keys[0].details.project_id, other, operator)
