"""Receipts, settings and capacity over HTTP, in the form that the document promises."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ebbtide.api.wire_tenant import ClusterSettings, DrainPage, DrainReceipt, Observed, ObservedList, Supply

from .conftest import error_of
from .stories import Story


async def get(client: httpx.AsyncClient, path: str, **query: object) -> dict[str, Any]:
    answer = await client.get(path, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def taken(story: Story) -> tuple[str, str]:
    """A cluster one of whose nodes was taken with a pod on it; its path, and the node's name."""
    cluster = await story.create(num_preemptible_gpus=24, project_id=story.project)
    await story.simulated.run_for(60)
    pods = {"count": 3, "gpus": 8, "behaviour": "ignores_sigterm", "grace_s": 900, "class": "preemptible"}
    await story.operator.post(f"/v1/playground/clusters/{cluster['cluster_id']}/pods", json=pods)
    await story.create(story.other, cluster_name="standard")
    seen = await story.see(cluster)
    (node,) = [one["node_id"] for one in seen["gpu_worker_nodes"] if one.get("marked_for_deletion")]
    await story.simulated.run_for(330)
    return f"/v1/clusters/{cluster['cluster_id']}", node


async def test_a_receipt_is_one_document(story: Story) -> None:
    path, node = await taken(story)
    receipt = await get(story.tenant, f"{path}/drains/{node}")
    assert DrainReceipt.model_validate(receipt).model_dump(mode="json").keys() == receipt.keys()
    (pod,) = receipt["pods"]
    assert (pod["grace_asked_s"], pod["grace_given_s"], pod["told_by"], pod["end"]) == (
        *(900, 297),
        *("signal", "exited"),
    )
    assert pod["sigterm_at"] == receipt["noticed_at"]
    assert receipt["node_id"] == node
    assert receipt["pods_by_end"] == {"there": 0, "exited": 1, "killed": 0, "unknown": 0}
    assert (receipt["unused_s"], receipt["billed_s"], receipt["state"]) == (3, 297, "host_free")
    assert await get(story.tenant, f"{path}/drains/{receipt['node_uid']}") == receipt
    assert await get(story.operator, f"{path}/drains/{node}") == receipt
    page = await get(story.tenant, f"{path}/drains")
    assert DrainPage.model_validate(page).next_before is None
    del receipt["pods"]
    assert page == {"drains": [receipt], "next_before": None}
    assert await get(story.tenant, f"{path}/drains", before=node) == {"drains": [], "next_before": None}
    assert (await get(story.tenant, f"{path}/drains", limit=1))["next_before"] == node


async def test_what_did_not_drain_has_no_receipt(story: Story) -> None:
    cluster = await story.create()
    await story.simulated.run_for(60)
    path = f"/v1/clusters/{cluster['cluster_id']}/drains"
    (node,) = (await story.see(cluster))["gpu_worker_nodes"]
    for wrong in (f"{path}/{node['node_id']}", f"{path}/nobody", f"{path}?before=nobody"):
        answer = await story.tenant.get(wrong)
        assert answer.status_code == 404
        assert error_of(answer)["code"] == "drain_not_found"
    assert (await story.other.get(path)).status_code == 404


async def test_settings_are_read_and_changed(story: Story) -> None:
    cluster = await story.create()
    path = f"/v1/clusters/{cluster['cluster_id']}/settings"
    found = await get(story.tenant, path)
    assert ClusterSettings.model_validate(found).warn_first_s == 0
    answer = await story.tenant.patch(path, json={"warn_first_s": 60, "placement": None, "unknown": 1})
    assert answer.json() == {**found, "warn_first_s": 60}
    answer = await story.tenant.patch(path, json={"placement": "explicit"})
    assert answer.json() == {**found, "warn_first_s": 60, "placement": "explicit"}
    assert await get(story.tenant, path) == answer.json()
    (entry,) = [
        one
        for one in (await get(story.tenant, "/v1/audit"))["entries"]
        if one["after"] == {"placement": "explicit"}
    ]
    assert (entry["action"], entry["before"]) == ("cluster.settings", {"placement": "open"})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"warn_first_s": 241}, "warn_first_s"),
        ({"warn_first_s": -1}, "warn_first_s"),
        ({"warn_first_s": "60"}, "warn_first_s"),
        ({"warn_first_s": True}, "warn_first_s"),
        ({"placement": "sideways"}, "placement"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    story: Story, body: dict[str, object], param: str
) -> None:
    cluster = await story.create()
    answer = await story.tenant.patch(f"/v1/clusters/{cluster['cluster_id']}/settings", json=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


async def test_capacity_and_history(story: Story) -> None:
    path, _ = await taken(story)
    supply = Supply.model_validate(await get(story.tenant, "/v1/capacity", gpu_type="H100_SXM"))
    (offer,) = supply.offers
    assert (offer.standard_gpus, offer.preemptible_gpus) == (16, 0)
    listed = ObservedList.model_validate(await get(story.tenant, "/v1/capacity/history", gpu_type="H100_SXM"))
    (whole,) = listed.history
    assert (whole.fill.samples, whole.life.samples, whole.life.ended) == (3, 3, 1)
    assert whole.fill.note == whole.life.note == "not enough history"
    alone = Observed.model_validate(await get(story.tenant, f"{path}/history"))
    assert alone.life == whole.life
    assert (await get(story.tenant, "/v1/capacity", region="nowhere"))["offers"] == []
    assert (await get(story.tenant, "/v1/capacity/history", gpu_type="none"))["history"] == []
