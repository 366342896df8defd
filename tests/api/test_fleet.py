"""Our own endpoints: claims, fleet, usage, events, playground, whoami, and who may call them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from ebbtide.api.app import create_app
from ebbtide.api.wire_access import IssuedKey, ProjectList
from ebbtide.api.wire_answers import EventPage, Whoami
from ebbtide.api.wire_fleet_answers import ClaimList, FleetNodeList, HostList, PoolList, UsageReport
from ebbtide.settings import Settings

from .conftest import CREATE, error_of
from .doubles import Doubles, World, an_event
from .stories import client_of

CLAIMS = "/v1/fleet/claims"
A_CLAIM = {"pool": "h100", "hosts": 2, "ref": "job/17", "for": "team blue"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CLAIMS),
        ("GET", CLAIMS),
        ("GET", f"{CLAIMS}/x"),
        ("DELETE", f"{CLAIMS}/x"),
        ("GET", "/v1/fleet/pools"),
        ("GET", "/v1/fleet/hosts"),
        ("GET", "/v1/fleet/nodes"),
        ("POST", "/v1/fleet/hosts/x/cordon"),
        ("POST", "/v1/fleet/hosts/x/uncordon"),
        ("POST", "/v1/projects"),
        ("POST", "/v1/fleet/reclaims"),
        ("POST", "/v1/fleet/file"),
        ("GET", "/v1/fleet/ownership"),
        ("GET", "/v1/playground/clusters/x/pods"),
        ("POST", "/v1/playground/clusters/x/pods"),
        ("POST", "/v1/playground/clusters/x/nodes/y/delete"),
        ("POST", "/v1/playground/hosts/x/vanish"),
        ("POST", "/v1/playground/hosts/x/restore"),
    ],
)
async def test_a_tenants_key_is_refused_where_the_operator_works(
    member: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await member.request(method, path)
    assert answer.status_code == 403
    assert error_of(answer)["code"] == "operator_only"


async def test_whoami(member: httpx.AsyncClient) -> None:
    answer = await member.get("/v3/whoami")
    Whoami.model_validate_json(answer.content)
    assert answer.json() == {
        "type": "project_api_key",
        "api_key": {"id": "key-member-proj-1"},
        "organization": {"id": "org-1", "name": "Local"},
        "project": {"id": "proj-1", "name": "Default", "slug": "default"},
        "role": "member",
    }


async def test_a_claim_from_first_to_last(operator: httpx.AsyncClient) -> None:
    made = (await operator.post(CLAIMS, json=A_CLAIM)).json()
    assert made == {
        "id": "c-1",
        "kind": "external",
        "pool": "h100",
        "hosts": 2,
        "ref": "job/17",
        "for": "team blue",
        "state": "open",
        "given": ["host-1"],
        "draining": [{"host": "host-2", "deadline": "2026-01-02T03:05:00Z"}],
        "waiting": 1,
        "created_at": "2026-01-02T03:00:00Z",
        "served_at": None,
        "ended_at": None,
    }
    assert (await operator.post(CLAIMS, json=A_CLAIM)).json() == made
    assert (await operator.get(f"{CLAIMS}/job%2F17")).json() == made
    assert (await operator.get(f"{CLAIMS}/job/17")).json() == made
    listed = await operator.get(CLAIMS, params={"pool": "h100", "ref": "job/17"})
    ClaimList.model_validate_json(listed.content)
    assert listed.json() == {"claims": [made]}
    assert (await operator.get(CLAIMS, params={"ref": "other"})).json() == {"claims": []}
    some = await operator.delete(f"{CLAIMS}/job%2F17", params={"hosts": "host-9, host-8"})
    assert some.json()["given"] == ["host-1"]
    every = await operator.delete(f"{CLAIMS}/job%2F17")
    assert (every.json()["given"], every.json()["state"]) == ([], "ended")


async def test_a_used_ref_with_other_values_is_409_with_what_differs(operator: httpx.AsyncClient) -> None:
    """L2."""
    await operator.post(CLAIMS, json=A_CLAIM)
    answer = await operator.post(CLAIMS, json={**A_CLAIM, "hosts": 3})
    assert answer.status_code == 409
    error = error_of(answer)
    assert error["code"] == "ref_reused"
    assert "aaaa" in str(error["message"])
    assert "bbbb" in str(error["message"])
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"hosts": 0}, "hosts"),
        ({"hosts": True}, "hosts"),
        ({"hosts": 10**30}, "hosts"),
        ({"hosts": None}, "hosts"),
        ({"pool": ""}, "pool"),
        ({"ref": "a\0"}, "ref"),
        ({"ref": 5}, "ref"),
        ({"for": "x" * 256}, "for"),
    ],
)
async def test_a_bad_claim_is_400(operator: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    answer = await operator.post(CLAIMS, json={**A_CLAIM, **fields})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


async def test_a_claim_is_refused_whole_and_its_absence_told(operator: httpx.AsyncClient) -> None:
    assert (await operator.post(CLAIMS, json={**A_CLAIM, "hosts": 5})).status_code == 409
    assert (await operator.post(CLAIMS, json={**A_CLAIM, "pool": "none"})).status_code == 404
    assert (await operator.get(f"{CLAIMS}/none")).status_code == 404
    assert (await operator.get(f"{CLAIMS}/%00")).status_code == 400
    assert (await operator.delete(f"{CLAIMS}/none", params={"hosts": " , "})).status_code == 400
    without_for = {name: value for name, value in A_CLAIM.items() if name != "for"}
    assert (await operator.post(CLAIMS, json=without_for)).json()["for"] == "job/17"


async def test_pools_hosts_nodes_and_a_reclaim_on_demand(operator: httpx.AsyncClient) -> None:
    pools = await operator.get("/v1/fleet/pools")
    assert PoolList.model_validate_json(pools.content).pools[0].counts == {"free": 3, "standard": 1}
    hosts = await operator.get("/v1/fleet/hosts", params={"pool": "h100"})
    assert HostList.model_validate_json(hosts.content).hosts[0].name == "host-1"
    assert (await operator.get("/v1/fleet/hosts", params={"pool": "x"})).json() == {"hosts": []}
    nodes = await operator.get("/v1/fleet/nodes")
    assert FleetNodeList.model_validate_json(nodes.content).nodes[0].host == "rack-7-host-3"
    assert (await operator.get("/v1/fleet/nodes", params={"cluster_id": "x"})).status_code == 404
    body = {"pool": "h100", "hosts": 2, "reason": "firmware"}
    noticed = (await operator.post("/v1/fleet/reclaims", json=body)).json()["nodes"]
    assert [(each["phase"], each["why"], each["deadline"]) for each in noticed] == [
        ("DRAINING", "firmware", "2026-01-02T03:15:00Z")
    ] * 2
    assert (
        error_of(await operator.post("/v1/fleet/reclaims", json={"pool": "h100", "hosts": 1}))["param"]
        == "reason"
    )


async def test_a_host_is_cordoned_and_back(operator: httpx.AsyncClient) -> None:
    cordoned = await operator.post("/v1/fleet/hosts/host-1/cordon", json={"reason": "fans"})
    assert (cordoned.json()["state"], cordoned.json()["state_reason"]) == ("cordoned", "fans")
    back = await operator.post("/v1/fleet/hosts/host-1/uncordon")
    assert (back.json()["state"], back.json()["state_reason"]) == ("available", None)
    assert (await operator.post("/v1/fleet/hosts/none/cordon", json={})).status_code == 404
    assert (await operator.post("/v1/fleet/hosts/%00/uncordon")).status_code == 400


async def test_projects_and_keys(member: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
    listed = await member.get("/v1/projects", params={"limit": 10})
    assert ProjectList.model_validate_json(listed.content).data[0].slug == "default"
    made = (await operator.post("/v1/projects", json={"name": "Team Blue!"})).json()
    assert (made["slug"], made["name"], made["weight"]) == ("team-blue", "Team Blue!", 1)
    assert (await operator.post("/v1/projects", json={"name": "!"})).status_code == 400
    assert error_of(await operator.post("/v1/projects", json={"slug": "a", "weight": 0}))["param"] == "weight"
    issued = await member.post("/v1/keys", json={"role": "admin"})
    assert IssuedKey.model_validate_json(issued.content).key == "ebb_secret-wxyz"
    assert (issued.json()["project_id"], issued.json()["role"]) == ("proj-1", "admin")
    assert error_of(await member.post("/v1/keys", json={"role": "root"}))["param"] == "role"
    assert "ebb_secret" not in (await member.get("/v1/keys")).text
    assert (await member.delete("/v1/keys/key-1")).json() == {"id": "key-1", "revoked": True}
    assert (await member.delete("/v1/keys/none")).status_code == 404


async def test_a_fleet_file_is_applied_as_text(operator: httpx.AsyncClient, services: Doubles) -> None:
    text = "pools:\n  # Öl\n"
    applied = await operator.post("/v1/fleet/file", content=text.encode())
    assert applied.json() == {"pools_added": ["h100"], "hosts_added": 4}
    assert services.fleet.applied == [text]
    for bad in (b"hosts: []", b"\xff\xfe", b"pools: \0"):
        answer = await operator.post("/v1/fleet/file", content=bad)
        assert answer.status_code == 400
        error_of(answer)
    assert (await operator.get("/v1/fleet/ownership")).json() == {"pools.headroom_hosts": "file"}


async def test_usage_defaults_to_this_month_and_counts_what_has_no_price(
    member: httpx.AsyncClient, services: Doubles
) -> None:
    report = await member.get("/v1/usage")
    UsageReport.model_validate_json(report.content)
    body = report.json()
    assert (body["from"], body["to"]) == ("2026-01-01T00:00:00Z", "2026-01-02T03:00:00Z")
    assert (body["total_gpu_seconds"], body["total_microdollars"], body["unpriced_lines"]) == (
        11520,
        1_600_000,
        1,
    )
    assert (body["total_saved_microdollars"], body["total_credit_microdollars"]) == (1_600_000, 100)
    assert body["lines"][1]["microdollars"] is None
    query = {"from": "2026-01-01T01:00:00+01:00", "to": "2026-01-01T12:00:00Z", "by": "node"}
    assert (await member.get("/v1/usage", params=query)).status_code == 200
    unescaped = "/v1/usage?from=2026-01-01T01:00:00+01:00&to=2026-01-01T12:00:00Z&by=node"
    assert (await member.get(unescaped)).status_code == 200
    whole = (await member.get("/v1/usage", params={"to": "2026-01-01T00:00:00Z"})).json()
    assert (whole["from"], whole["to"]) == ("2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z")
    span = (datetime(2026, 1, 1, 0, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC), None, "node")
    assert services.usage.asked[1:3] == [span, span]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-01-01T00:00:00"}, "to"),
        ({"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "from"),
        ({"from": "2026-02-01T00:00:00Z", "to": "2026-02-01T00:00:00Z"}, "from"),
        ({"from": "2016-02-01T00:00:00Z"}, "from"),
        ({"to": "0001-01-01T00:00:00Z"}, "to"),
        ({"from": "0001-01-01T00:00:00+14:00"}, "from"),
        ({"to": "9999-12-31T23:59:59-14:00"}, "to"),
        ({"by": "month"}, "by"),
        ({"from": "9" * 100}, "from"),
    ],
)
async def test_bad_usage_queries_are_400(
    member: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    answer = await member.get("/v1/usage", params=query)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


async def test_events_are_read_from_a_cursor(member: httpx.AsyncClient, services: Doubles) -> None:
    made = (await member.post("/v1/compute/clusters", json=CREATE)).json()["cluster_id"]
    services.clusters.stream[made] = [an_event(number, "node-a") for number in range(1, 6)]
    path = f"/v1/clusters/{made}/events"
    first = await member.get(path, params={"limit": 2})
    EventPage.model_validate_json(first.content)
    assert ([each["number"] for each in first.json()["events"]], first.json()["next_after"]) == ([1, 2], 2)
    rest = (await member.get(path, params={"after": 2})).json()
    assert ([each["number"] for each in rest["events"]], rest["next_after"]) == ([3, 4, 5], 5)
    assert (await member.get(path, params={"after": 5})).json() == {"events": [], "next_after": 5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("after", "x"),
        ("after", "-1"),
        ("after", str(2**63)),
        ("after", "9" * 5000),
        ("limit", "0"),
        ("limit", "1001"),
    ],
)
async def test_a_bad_cursor_is_400(member: httpx.AsyncClient, name: str, value: str) -> None:
    made = (await member.post("/v1/compute/clusters", json=CREATE)).json()["cluster_id"]
    answer = await member.get(f"/v1/clusters/{made}/events", params={name: value})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == name


async def test_the_playground_has_levers_for_the_operator(operator: httpx.AsyncClient, world: World) -> None:
    cluster = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"
    spec = {"count": 2, "behaviour": "deaf"}
    added = await operator.post(f"/v1/playground/clusters/{cluster}/pods", json=spec)
    assert added.json() == {"pods": [{"name": "pod-1"}]}
    assert (await operator.get(f"/v1/playground/clusters/{cluster}/pods")).json() == {
        "pods": [{"name": "pod-1"}]
    }
    assert (await operator.post("/v1/playground/hosts/host-1/vanish")).json() == {
        "host": "host-1",
        "vanished": True,
    }
    assert (await operator.post("/v1/playground/hosts/host-1/restore")).json() == {"host": "host-1"}
    assert (await operator.post(f"/v1/playground/clusters/{cluster}/nodes/n-1/delete")).json() == {
        "node": "n-1"
    }
    asked = [(cluster, spec), ("vanish", "host-1"), ("restore", "host-1"), (cluster, "n-1")]
    assert world.asked == asked


async def test_without_a_simulated_fleet_there_is_no_playground(services: Doubles) -> None:
    async with client_of(create_app(services, Settings()), "operator-key") as operator:
        answer = await operator.post("/v1/playground/hosts/host-1/vanish")
    assert answer.status_code == 404
    error_of(answer)
