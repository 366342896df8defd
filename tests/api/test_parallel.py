"""Many requests at once, over sockets, against a whole Ebbtide: exactly what there is, and each wish once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from .conftest import error_of
from .living import living
from .stories import CLUSTERS, CREATE


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    with living(database_url) as server:
        headers = {"authorization": f"Bearer {server.member}"}
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(
            base_url=server.url, headers=headers, limits=limits, timeout=60
        ) as opened:
            yield opened


async def test_parallel_creates_are_granted_exactly_what_there_is(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(client.post(CLUSTERS, json={**CREATE, "cluster_name": f"c{number}"}) for number in range(40))
    )
    assert Counter(answer.status_code for answer in answers) == {200: 4, 409: 36}
    for refusal in (answer for answer in answers if answer.status_code == 409):
        assert refusal.headers["x-should-retry"] == "false"
        assert "0 free" in str(error_of(refusal)["message"])
    listed = (await client.get(CLUSTERS)).json()["clusters"]
    granted = {answer.json()["cluster_id"] for answer in answers if answer.status_code == 200}
    assert {each["cluster_id"] for each in listed} == granted


async def test_one_create_sent_ten_times_at_once_is_one_cluster(client: httpx.AsyncClient) -> None:
    """L1: the same token, or the same body marked as a retry."""
    for headers in ({"idempotency-key": "k"}, {"x-stainless-retry-count": "1"}):
        body = {**CREATE, "cluster_name": "-".join(headers)}
        answers = await asyncio.gather(
            *(client.post(CLUSTERS, json=body, headers=headers) for _ in range(10))
        )
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["cluster_id"] for answer in answers}) == 1


async def test_one_update_sent_ten_times_at_once_is_one_change(client: httpx.AsyncClient) -> None:
    """L1: of four hosts two more are asked for; a second helping would not fit."""
    made = (await client.post(CLUSTERS, json=CREATE)).json()
    path = f"{CLUSTERS}/{made['cluster_id']}"
    answers = await asyncio.gather(*(client.put(path, json={"num_gpus": 24}) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    seen = (await client.get(path)).json()
    assert (seen["num_gpus"], len(seen["gpu_worker_nodes"])) == (24, 3)
