"""Whatever is thrown at it, the API answers below 500 and in the standard shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.api.app import create_app
from ebbtide.api.wire_clusters import CreateCluster, UpdateCluster
from ebbtide.settings import Settings

from .conftest import CREATE
from .doubles import Clusters, Doubles
from .stories import Story, client_of

AN_ID = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"
numbers = st.one_of(st.integers(), st.sampled_from([2**31, -(2**63), 2**64, 10**30]), st.floats())
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["\0", "\ud800", "a" * 70_000, "ON_DEMAND", "KUBERNETES", "NONE", "H100_SXM"]),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def bodies(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with some fields replaced by anything at all."""
    nested = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("load_balancer", "config", "name", "issuer_url"), anything)
    )
    odd = st.dictionaries(
        st.sampled_from(names), st.one_of(anything, nested, st.lists(nested, max_size=2)), max_size=4
    )
    return odd.map(lambda fields: {**CREATE, **fields})


_services = Doubles()
_settings = replace(Settings(), rate_limit_per_s=0)  # examples come faster than any tenant may ask
_app = create_app(_services, _settings)  # one for all examples: building it takes far longer than asking it


async def sent_to_doubles(method: str, path: str, content: bytes) -> httpx.Response:
    _services.clusters = Clusters()
    async with client_of(_app) as client:
        made = await client.post("/v1/compute/clusters", json=CREATE)
        return await client.request(method, path.replace("ID", made.json()["cluster_id"]), content=content)


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    body = answer.json()
    assert isinstance(body, dict)
    if answer.status_code >= 400:
        assert isinstance(body["error"]["message"], str)
        assert body["error"]["type"]


@settings(max_examples=200)
@given(bodies(sorted(CreateCluster.model_fields)))
async def test_any_create(body: dict[str, Any]) -> None:
    check(await sent_to_doubles("POST", "/v1/compute/clusters", json.dumps(body).encode()))


@settings(max_examples=200)
@given(bodies(sorted(UpdateCluster.model_fields)))
async def test_any_update(body: dict[str, Any]) -> None:
    check(await sent_to_doubles("PUT", "/v1/compute/clusters/ID", json.dumps(body).encode()))


@settings(max_examples=100)
@given(st.binary(max_size=60), st.sampled_from(["POST /v1/compute/clusters", "PUT /v1/compute/clusters/ID"]))
async def test_any_bytes(raw: bytes, where: str) -> None:
    method, path = where.split()
    check(await sent_to_doubles(method, path, raw))


@settings(max_examples=100)
@given(st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]), st.text(max_size=30))
async def test_any_path(method: str, tail: str) -> None:
    path = "/v1/compute/clusters/" + "".join(f"%{byte:02x}" for byte in tail.encode("utf-8", "replace"))
    check(await sent_to_doubles(method, path, b"{}"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies(sorted(CreateCluster.model_fields)), bodies(sorted(UpdateCluster.model_fields)))
async def test_any_create_and_update_on_the_real_services(
    story: Story, create: dict[str, Any], update: dict[str, Any]
) -> None:
    """One database for all examples; whatever was made is taken down again."""
    driver = {"cuda_version": "12.8", "nvidia_driver_version": "570", "nvidia_version_id": None}
    wishes = {name: value for name, value in create.items() if name not in driver}
    made = await story.tenant.post("/v1/compute/clusters", content=json.dumps({**wishes, **driver}))
    check(made)
    cluster = (
        made
        if made.status_code == 200
        else await story.tenant.post("/v1/compute/clusters", json={**CREATE, **driver})
    )
    path = f"/v1/compute/clusters/{cluster.json()['cluster_id']}"
    check(await story.tenant.put(path, content=json.dumps(update)))
    check(await story.tenant.get(path))
    check(await story.tenant.get("/v1/compute/clusters"))
    assert (await story.tenant.delete(path)).status_code == 200
    await story.simulated.run_for(10)
