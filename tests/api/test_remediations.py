"""Remediations over HTTP, by the official client in strict mode, and by its command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import together
from together.types.clusters import Remediation, RemediationListResponse

from ebbtide.playground.behaviours import Dawdles
from ebbtide.settings import Settings

from .conftest import error_of
from .living import Living, living
from .stories import Story
from .test_storage import until
from .test_tg import DRIVER, NAMED, Run, refused, tg, told

__all__ = ["tg"]

NOBODYS = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"
MODE = "REMEDIATION_MODE_"


@pytest.fixture(scope="module")
def server(postgres_server: Any, _database_template: str) -> Iterator[Living]:
    """One Ebbtide for all tests of this page, whose operator wants to see power cuts first."""
    from tests.conftest import _administer, _with_database

    _administer(postgres_server, f"CREATE DATABASE remedy_tests TEMPLATE {_database_template}")
    settings = replace(
        Settings(),
        drain_window_s=5,
        kill_margin_s=1,
        observe_every_s=1,
        remediation_approval="HOST_POWER_CYCLE",
    )
    with living(_with_database(postgres_server.url, "remedy_tests"), settings) as running:
        yield running
    _administer(postgres_server, "DROP DATABASE remedy_tests WITH (FORCE)")


def strictly(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    Remediation.model_validate_json(answer.content, strict=True)
    body: dict[str, Any] = answer.json()
    return body


async def ready(story: Story, **fields: Any) -> tuple[dict[str, Any], str, str]:
    """A cluster, the instance of one of its nodes, and where its remediations are."""
    cluster = await story.create(**fields)
    await story.simulated.run_for(60)
    seen = await story.see(cluster)
    (node, *_) = seen["gpu_worker_nodes"]
    assert node["auto_remediation_enabled"] is False
    assert "latest_remediation" not in node
    base = f"/v1/compute/clusters/{cluster['cluster_id']}/instances"
    return seen, node["instance_id"], f"{base}/{node['instance_id']}/remediations"


async def test_from_the_request_to_its_end(story: Story) -> None:
    cluster, instance, path = await ready(story)
    name = cluster["gpu_worker_nodes"][0]["node_id"]
    story.simulated.world.run_pods(cluster["cluster_id"], name, grace_s=20, behaviour=Dawdles(15))
    made = strictly(await story.tenant.post(path, json={"mode": f"{MODE}VM_ONLY", "reason": "Xid 79"}))
    assert (made["state"], made["trigger"]) == ("PENDING", "REMEDIATION_TRIGGER_MANUAL")
    assert (made["instance_id"], made["reason"]) == (instance, "Xid 79")
    again = await story.tenant.post(path, json={"mode": f"{MODE}VM_ONLY"})
    assert (again.status_code, again.headers["x-should-retry"]) == (409, "false")
    assert error_of(again)["code"] == "remediation_open"
    await story.simulated.run_for(3)
    (node, _) = (await story.see(cluster))["gpu_worker_nodes"]
    assert (node["latest_remediation"]["id"], node["marked_for_deletion"]) == (made["id"], True)
    late = await story.tenant.post(f"{path}/{made['id']}/cancel")
    assert (late.status_code, error_of(late)["code"]) == (409, "wrong_state")
    assert late.headers["x-should-retry"] == "false"
    await story.simulated.run_for(120)
    done = strictly(await story.tenant.get(f"{path}/{made['id']}"))
    assert (done["state"], "end_time" in done) == ("SUCCEEDED", True)
    wildcard = path.replace(instance, "-")
    listed = await story.tenant.get(wildcard)
    RemediationListResponse.model_validate_json(listed.content, strict=True)
    assert (listed.json()["has_next"], listed.json()["next_page_token"]) == (False, "")
    assert [each["id"] for each in listed.json()["remediations"]] == [made["id"]]
    for other in (story.other,):
        assert (await other.get(wildcard)).status_code == 404
        assert (await other.get(f"{path}/{made['id']}")).status_code == 404
        assert (await other.post(f"{path}/{made['id']}/cancel")).status_code == 404


async def test_pages_and_filters(story: Story) -> None:
    _, instance, path = await ready(story)
    made = []
    for mode in ("VM_ONLY", "HOST_AWARE", "REBOOT_VM"):
        made.append(strictly(await story.tenant.post(path, json={"mode": MODE + mode}))["id"])
        strictly(await story.tenant.post(f"{path}/{made[-1]}/cancel"))
    wildcard = path.replace(instance, "-")

    async def ids(**query: Any) -> list[str]:
        answer = await story.tenant.get(wildcard, params=query)
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["remediations"]]

    assert await ids() == made[::-1]
    assert await ids(mode=f"{MODE}VM_ONLY,{MODE}REBOOT_VM") == [made[2], made[0]]
    assert await ids(state="CANCELLED", trigger="REMEDIATION_TRIGGER_MANUAL", order_by="create_time") == made
    assert await ids(state="PENDING,RUNNING") == []
    first = (await story.tenant.get(wildcard, params={"page_size": 2})).json()
    assert first["has_next"] is True
    rest = await ids(page_size=2, page_token=first["next_page_token"])
    assert rest == [made[0]]
    for wrong in (
        {"mode": "SHOUT"},
        {"state": "a\0"},
        {"trigger": "MANUALLY"},
        {"page_size": 0},
        {"page_size": 10**9},
        {"page_size": "x"},
        {"page_token": "x"},
        {"page_token": "\0"},
        {"order_by": "price"},
        {"order_by": "\0"},
    ):
        answer = await story.tenant.get(wildcard, params=wrong)
        assert (answer.status_code, error_of(answer)["param"]) == (400, next(iter(wrong))), wrong


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "mode"),
        ({"mode": "VM_ONLY"}, "mode"),
        ({"mode": None}, "mode"),
        ({"mode": 7}, "mode"),
        ({"mode": f"{MODE}VM_ONLY", "reason": 7}, "reason"),
        ({"mode": f"{MODE}VM_ONLY", "reason": "a\0b"}, "reason"),
        ({"mode": f"{MODE}VM_ONLY", "reason": "x" * 100_000}, "reason"),
    ],
)
async def test_bad_requests_are_400_with_the_field(story: Story, body: dict[str, Any], param: str) -> None:
    cluster = await story.create()
    path = f"/v1/compute/clusters/{cluster['cluster_id']}/instances/i-1/remediations"
    answer = await story.tenant.post(path, json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


async def test_unknown_ones_are_404(story: Story) -> None:
    cluster, _, path = await ready(story)
    base = f"/v1/compute/clusters/{cluster['cluster_id']}/instances"
    good = {"mode": f"{MODE}VM_ONLY"}
    assert (await story.tenant.post(f"{base}/nope/remediations", json=good)).status_code == 404
    assert (await story.tenant.post(f"{base}/-/remediations", json=good)).status_code == 404
    assert (await story.tenant.post(f"{base}/a%00b/remediations", json=good)).status_code == 400
    nowhere = path.replace(cluster["cluster_id"], NOBODYS)
    assert (await story.tenant.post(nowhere, json=good)).status_code == 404
    assert (await story.tenant.get(f"{base}/nope/remediations")).status_code == 404
    for name in (NOBODYS, "nope", "a%00b"):
        assert (await story.tenant.get(f"{path}/{name}")).status_code == 404
        for verb in ("approve", "reject", "cancel"):
            assert (await story.tenant.post(f"{path}/{name}/{verb}")).status_code == 404


async def test_the_last_standard_node_stays(story: Story) -> None:
    _, _, path = await ready(story)
    answer = await story.tenant.post(path, json={"mode": f"{MODE}EVICT_WITHOUT_REPLACEMENT"})
    assert (answer.status_code, error_of(answer)["code"]) == (409, "last_standard_node")


def test_the_official_client_in_strict_mode(server: Living) -> None:
    options: dict[str, Any] = {"base_url": server.url, "_strict_response_validation": True, "timeout": 20}
    with (
        together.Together(api_key=server.member, **options) as client,
        together.Together(api_key=server.operator, **options) as operator,
    ):
        made = client.clusters.create(
            billing_type="ON_DEMAND",
            cluster_name="sick",
            gpu_type="H100_SXM",
            region="local-1",
            nvidia_version_id="local-1-570-128",
            num_gpus=8,
        )
        cluster = made.cluster_id
        seen = until(lambda: client.clusters.retrieve(cluster), lambda each: each.status == "Ready")
        instance = seen.gpu_worker_nodes[0].instance_id
        remedies = client.clusters.remediations
        where = {"cluster_id": cluster, "instance_id": instance}
        reboot = remedies.create(**where, mode="REMEDIATION_MODE_REBOOT_VM", reason="slow")
        assert (reboot.state, reboot.trigger) == ("PENDING", "REMEDIATION_TRIGGER_MANUAL")
        done = until(lambda: remedies.retrieve(reboot.id, **where), lambda each: each.state == "SUCCEEDED")
        assert done.end_time is not None
        held = remedies.create(**where, mode="REMEDIATION_MODE_HOST_POWER_CYCLE")
        assert held.state == "PENDING_APPROVAL"
        with pytest.raises(together.PermissionDeniedError):
            remedies.approve(held.id, **where)
        rejected = operator.clusters.remediations.reject(held.id, **where, comment="not now")
        assert (rejected.state, rejected.review_comment) == ("CANCELLED", "not now")
        second = remedies.create(**where, mode="REMEDIATION_MODE_HOST_POWER_CYCLE")
        with pytest.raises(together.BadRequestError, match="HOST_POWER_CYCLE"):
            operator.clusters.remediations.approve(
                second.id, **where, mode="REMEDIATION_MODE_HOST_POWER_CYCLE"
            )
        approved = operator.clusters.remediations.approve(
            second.id, **where, comment="as you like", mode="REMEDIATION_MODE_VM_ONLY"
        )
        assert (approved.state, approved.mode) == ("PENDING", "REMEDIATION_MODE_VM_ONLY")
        until(lambda: remedies.retrieve(second.id, **where), lambda each: each.state == "SUCCEEDED")
        with pytest.raises(together.ConflictError, match="is SUCCEEDED"):
            remedies.cancel(second.id, **where)
        page = remedies.list("-", cluster_id=cluster, page_size=2)
        assert (len(page.remediations), page.has_next) == (2, True)
        last = remedies.list("-", cluster_id=cluster, page_size=2, page_token=page.next_page_token)
        assert ([each.id for each in last.remediations], last.next_page_token) == ([reboot.id], "")
        some = remedies.list(
            instance,
            cluster_id=cluster,
            mode=["REMEDIATION_MODE_REBOOT_VM", "REMEDIATION_MODE_HOST_AWARE"],
            state=["SUCCEEDED"],
            trigger=["REMEDIATION_TRIGGER_MANUAL"],
        )
        assert [each.id for each in some.remediations] == [reboot.id]
        gone = until(
            lambda: client.clusters.retrieve(cluster), lambda each: bool(each.deleted_gpu_worker_nodes)
        ).deleted_gpu_worker_nodes[0]
        assert gone.latest_remediation.id == second.id
        client.clusters.delete(cluster)


def test_tg_remediations_in_json_and_in_text(tg: Run, server: Living) -> None:
    with together.Together(base_url=server.url, api_key=server.member) as client:
        cluster = str(told(tg("create", *NAMED, *DRIVER, "--num-gpus", "8", "--json"))["cluster_id"])
        seen = until(lambda: client.clusters.retrieve(cluster), lambda each: each.status == "Ready")
        instance = str(seen.gpu_worker_nodes[0].instance_id)
        ask = ["remediations", "create", cluster, instance, "--mode"]
        held = told(tg(*ask, "HOST_POWER_CYCLE", "--reason", "it hangs", "--json"))
        one = str(held["id"])
        assert (held["state"], held["reason"]) == ("PENDING_APPROVAL", "it hangs")
        refused(tg(*ask, "VM_ONLY", "--json"), "not over yet")
        text = tg("remediations", "list", cluster, "--non-interactive", COLUMNS="400")
        assert text.returncode == 0, text.stdout + text.stderr
        assert one in text.stdout
        refused(tg("remediations", "approve", one, "--non-interactive"), "operator")
        operator = {"TOGETHER_API_KEY": server.operator}
        rejected = told(tg("remediations", "reject", one, "--comment", "no", "--json", **operator))
        assert (rejected["state"], rejected["review_comment"]) == ("CANCELLED", "no")
        refused(tg("remediations", "cancel", one, "--non-interactive"), "is CANCELLED")
        asked = tg(*ask, "REBOOT_VM", "--non-interactive")
        assert asked.returncode == 0, asked.stdout + asked.stderr
        until(
            lambda: client.clusters.remediations.list("-", cluster_id=cluster).remediations[0],
            lambda each: each.state == "SUCCEEDED",
        )
        listed = told(tg("remediations", "list", cluster, "--mode", "REBOOT_VM", "--json"))
        assert [each["mode"] for each in listed["remediations"]] == ["REMEDIATION_MODE_REBOOT_VM"]  # type: ignore[attr-defined]  # the CLI's JSON
        refused(tg("remediations", "create", cluster, "nope", "--mode", "VM_ONLY", "--json"), "no instance")
        refused(tg("remediations", "retrieve", NOBODYS, "--json"), "not found")
        client.clusters.delete(cluster)
