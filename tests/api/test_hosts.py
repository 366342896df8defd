"""The operator's day over HTTP: hosts are added, cordoned, drained, looked at, returned and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ebbtide.api.wire_fleet_answers import Host
from ebbtide.api.wire_hosts import HostReport
from ebbtide.api.wire_nodes import FleetRegionList, NodeReport

from .conftest import error_of
from .stories import Story, tell

HOSTS = "/v1/fleet/hosts"
FLEET = """
regions:
  local-1: {driver_versions: [{cuda_version: "12.8", nvidia_driver_version: "570"}]}
pools:
  h100: {region: local-1, gpu_type: H100_SXM, boot_s: 10, turn_over_s: 5, hosts: [h100-01, h100-02]}
"""


@pytest.fixture
async def day(database_url: str) -> AsyncIterator[Story]:
    async with tell(database_url, FLEET) as story:
        yield story


def report_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    HostReport.model_validate_json(answer.content)
    body: dict[str, Any] = answer.json()
    return body


async def test_the_operators_day(day: Story) -> None:
    operator = day.operator
    added = await operator.post(HOSTS, json={"name": "h100-03", "pool": "h100", "fabric_block": "b9"})
    assert Host.model_validate_json(added.content).source == "api"
    cordoned = await operator.post(f"{HOSTS}/h100-02/cordon", json={"reason": "it smells"})
    assert cordoned.json()["state"] == "cordoned"
    cluster = await day.create(num_preemptible_gpus=8, project_id=day.project)
    await day.simulated.run_for(60)
    held = {host["name"]: host for host in (await operator.get(HOSTS)).json()["hosts"]}
    (lent,) = [name for name, host in held.items() if host["bucket"] == "preemptible"]

    wish = {"reason": "new fans", "until": "2999-01-01T00:00:00Z"}
    would = report_of(await operator.post(f"{HOSTS}/{lent}/drain", json={**wish, "dry_run": True}))
    assert (would["dry_run"], len(would["maintenance"]["disturbed"])) == (True, 1)
    drained = report_of(await operator.post(f"{HOSTS}/{lent}/drain", json=wish))
    assert drained["maintenance"]["state"] == "draining"
    await day.simulated.run_for(60)
    seen = report_of(await operator.get(f"{HOSTS}/{lent}"))
    assert (seen["maintenance"]["state"], seen["host"]["bucket"]) == ("held", "cordoned")
    (disturbed,) = seen["maintenance"]["disturbed"]
    assert (disturbed["cluster_name"], disturbed["end_reason"]) == (cluster["cluster_name"], "preempted")
    assert "new fans" in disturbed["why"]
    back = report_of(await operator.post(f"{HOSTS}/{lent}/return"))
    assert back["maintenance"]["ended_how"] == "returned"
    await day.simulated.run_for(60)
    now = report_of(await operator.get(f"{HOSTS}/{lent}"))
    assert now["host"]["bucket"] == "preemptible"


async def test_a_node_is_told_whole_by_name_and_by_uid(day: Story) -> None:
    cluster = await day.create(num_preemptible_gpus=8, project_id=day.project)
    await day.simulated.run_for(60)
    nodes = (await day.operator.get("/v1/fleet/nodes")).json()["nodes"]
    (lent,) = [node for node in nodes if node["compute_class"] == "preemptible"]
    for ref in (lent["name"], lent["uid"]):
        answer = await day.operator.get(f"/v1/fleet/nodes/{ref}")
        NodeReport.model_validate_json(answer.content)
        told = answer.json()
        assert (told["stay"]["name"], told["stay"]["cluster_id"]) == (lent["name"], cluster["cluster_id"])
        assert [one["phase"] for one in told["timeline"]][-1] == "RUNNING"
        assert [one["reason"] for one in told["events"]] == ["TogetherScaledUp"]
        assert told["why"]["sentences"]
        assert told["machine"] is None
    assert (await day.operator.get("/v1/fleet/nodes/nobodys")).status_code == 404


async def test_regions_hold_their_pools_and_driver_versions(day: Story) -> None:
    answer = await day.operator.get("/v1/fleet/regions")
    (region,) = FleetRegionList.model_validate_json(answer.content).regions
    assert (region.name, [pool.name for pool in region.pools]) == ("local-1", ["h100"])
    assert [one.cuda_version for one in region.driver_versions] == ["12.8"]


async def test_what_was_added_is_removed_and_what_the_file_lists_is_not(day: Story) -> None:
    operator, wish = day.operator, {"name": "spare-1", "pool": "h100"}
    for _ in range(2):
        assert (await operator.post(HOSTS, json=wish)).status_code == 200
    other = await operator.post(HOSTS, json={**wish, "fabric_block": "b2"})
    assert error_of(other)["code"] == "host_exists"
    gone = await operator.delete(f"{HOSTS}/spare-1")
    assert gone.json()["state"] == "retired"
    assert (await operator.get(f"{HOSTS}/spare-1")).status_code == 404
    listed = await operator.delete(f"{HOSTS}/h100-01")
    assert (listed.status_code, error_of(listed)["code"]) == (409, "host_in_file")


async def test_a_lent_host_is_removed_only_after_it_was_drained(day: Story) -> None:
    operator = day.operator
    for name in ("h100-01", "h100-02"):
        await operator.post(f"{HOSTS}/{name}/cordon", json={})
    await operator.post(HOSTS, json={"name": "spare-1", "pool": "h100"})
    await day.create()
    refused = await operator.delete(f"{HOSTS}/spare-1")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "host_lent")
    assert "ebbtide fleet hosts drain spare-1" in error_of(refused)["message"]
    stuck = await operator.post(f"{HOSTS}/spare-1/drain", json={"reason": "old"})
    assert (stuck.status_code, error_of(stuck)["code"]) == (409, "no_replacement")
    await operator.post(f"{HOSTS}/h100-01/uncordon")
    assert (await operator.post(f"{HOSTS}/spare-1/drain", json={"reason": "old"})).status_code == 200
    assert error_of(await operator.delete(f"{HOSTS}/spare-1"))["code"] == "host_draining"
    await day.simulated.run_for(60)
    assert (await operator.delete(f"{HOSTS}/spare-1")).status_code == 200
    await day.simulated.run_for(60)
    assert [host["name"] for host in (await operator.get(HOSTS)).json()["hosts"]] == ["h100-01", "h100-02"]
    back = await operator.post(HOSTS, json={"name": "spare-1", "pool": "h100"})
    assert (back.json()["state"], back.json()["state_reason"]) == ("cordoned", "maintenance: old")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", HOSTS, {"name": "No Name", "pool": "h100"}, 400, "name"),
        ("POST", HOSTS, {"name": "x", "pool": "h100", "fabric_block": "B!"}, 400, "fabric_block"),
        ("POST", HOSTS, {"name": "x", "pool": "nowhere"}, 404, "pool"),
        ("POST", HOSTS, {"name": "x"}, 400, "pool"),
        ("POST", f"{HOSTS}/h100-01/drain", {}, 400, "reason"),
        ("POST", f"{HOSTS}/h100-01/drain", {"reason": "x", "until": "soon"}, 400, "until"),
        ("POST", f"{HOSTS}/h100-01/drain", {"reason": "x", "until": "2001-01-01T00:00:00Z"}, 400, "until"),
        ("POST", f"{HOSTS}/nobodys/drain", {"reason": "x"}, 404, "host"),
        ("POST", f"{HOSTS}/nobodys/return", None, 404, "host"),
        ("DELETE", f"{HOSTS}/nobodys", None, 404, "host"),
        ("GET", f"{HOSTS}/nobodys", None, 404, "host"),
    ],
)
async def test_what_is_wrong_is_said(
    day: Story, method: str, path: str, body: dict[str, str] | None, status: int, param: str
) -> None:
    answer = await day.operator.request(method, path, json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (status, param), answer.text
