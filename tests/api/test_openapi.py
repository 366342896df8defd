"""The OpenAPI document tells the truth: bodies, refusals, and nothing that never happens."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx


async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


async def test_every_reference_leads_somewhere_and_422_is_never_promised(stranger: httpx.AsyncClient) -> None:
    told = await document(stranger)
    text = json.dumps(told)
    for name in re.findall(r"#/components/schemas/([A-Za-z0-9_]+)", text):
        assert name in told["components"]["schemas"], name
    assert '"422"' not in text


async def test_bodies_and_refusals_are_documented(stranger: httpx.AsyncClient) -> None:
    paths = (await document(stranger))["paths"]
    create = paths["/v1/compute/clusters"]["post"]
    schema = create["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/CreateCluster"}
    assert {"200", "400", "401", "403", "404", "409", "413", "429", "503"} == set(create["responses"])
    answer = create["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/Cluster"}
    assert create["security"] == [{"HTTPBearer": []}]
    assert "requestBody" not in paths["/v1/compute/clusters/{cluster_id}"]["delete"]
    assert "security" not in paths["/healthz"]["get"]


async def test_every_operation_says_what_it_does_under_a_name_of_its_own(stranger: httpx.AsyncClient) -> None:
    operations = [op for path in (await document(stranger))["paths"].values() for op in path.values()]
    assert all(operation["description"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))


async def test_the_page_for_people_is_there(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/docs")
    assert answer.status_code == 200
    assert "openapi.json" in answer.text
