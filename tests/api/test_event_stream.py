"""Events as they happen, over a real socket: none missed after a break, and none of another tenant."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest

from ebbtide.api import event_stream

from .living import living
from .stories import CREATE


def _read(answer: httpx.Response, count: int) -> list[dict[str, Any]]:
    """The next `count` events of a stream."""
    found: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            event = json.loads(fields["data"])
            assert (int(fields["id"]), fields["event"]) == (event["number"], event["reason"])
            found.append(event)
            fields = {}
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} events")


def test_a_stream_goes_on_where_it_broke_off(database_url: str) -> None:
    with living(database_url) as server:
        tenant = httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.member}"}, timeout=30
        )
        body = {**CREATE, "num_preemptible_gpus": 16, "project_id": server.project_id}
        cluster_id = tenant.post("/v1/compute/clusters", json=body).json()["cluster_id"]
        path = f"/v1/clusters/{cluster_id}/events/stream"
        with tenant.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            first = _read(answer, 2)
        assert [event["number"] for event in first] == [1, 2]
        with tenant.stream("GET", path, headers={"Last-Event-ID": "2"}) as answer:
            (third,) = _read(answer, 1)
        assert (third["number"], third["reason"]) == (3, "TogetherScaledUp")
        tenant.put(f"/v1/compute/clusters/{cluster_id}", json={"num_preemptible_gpus": 8})
        with tenant.stream("GET", path, params={"after": 3}) as answer:
            (fourth,) = _read(answer, 1)
        assert fourth["reason"] == "TogetherScaledDown"
        stranger = httpx.get(server.url + path, headers={"Authorization": f"Bearer {server.other}"})
        assert stranger.status_code == 404


def test_a_stream_ends_when_its_key_is_revoked(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOK_EVERY_S": 0.05, "CHECK_EVERY": 3, "QUIET_AFTER": 2}.items():
        monkeypatch.setattr(event_stream, name, value)
    with living(database_url) as server:
        tenant, operator = (
            httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
            for key in (server.member, server.operator)
        )
        body = {**CREATE, "project_id": server.project_id}
        cluster_id = tenant.post("/v1/compute/clusters", json=body).json()["cluster_id"]
        key_id = tenant.get("/v3/whoami").json()["api_key"]["id"]
        with tenant.stream("GET", f"/v1/clusters/{cluster_id}/events/stream") as answer:
            lines = answer.iter_lines()
            assert sum(line == ": nothing new" for line in itertools.islice(lines, 100)) > 10, "it goes on"
            assert operator.delete(f"/v1/keys/{key_id}").status_code == 200
            assert len(list(itertools.islice(lines, 100))) < 100
        assert tenant.get("/v3/whoami").status_code == 401


@pytest.mark.parametrize("last", ["abc", "-1", "9" * 40, ""])
async def test_an_odd_last_event_id_is_passed_over(member: httpx.AsyncClient, last: str) -> None:
    answer = await member.get(
        "/v1/clusters/00000000-0000-4000-8000-000000000000/events/stream", headers={"Last-Event-ID": last}
    )
    assert answer.status_code == 404
