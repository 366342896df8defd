"""Imported clusters on the wire: they look like any other, to the strict official client as well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.api.stories import CLUSTERS, Story, strictly, tell

FLEET = "regions: {local-1: {}}\npools:\n  h100: {region: local-1, gpu_type: H100_SXM, blocks: {b1: 4}}\n"
IMPORT = "/v1/clusters/import"
KUBECONFIG = "clusters:\n- cluster: {}\n  server: https://reef.playground.invalid\n"
BODY: dict[str, Any] = {
    "cluster_name": "reef",
    "region": "local-1",
    "gpu_type": "H100_SXM",
    "kubeconfig": KUBECONFIG,
    "standard_selector": "pool=gpu",
    "num_preemptible_gpus": 16,
}


@pytest.fixture
async def story(database_url: str) -> AsyncIterator[Story]:
    async with tell(database_url, FLEET) as one:
        yield one


async def imported(story: Story) -> dict[str, Any]:
    made = strictly(await story.operator.post(IMPORT, json={**BODY, "project_id": story.project}))
    story.simulated.world.stand_up(made["cluster_id"], {"own-a": 8, "own-b": 8})
    await story.simulated.run_until(story.simulated.now + timedelta(seconds=120))
    return made


async def test_it_looks_like_any_other(story: Story) -> None:
    made = await imported(story)
    assert (made["status"], made["kube_config"], made["num_gpus"]) == ("WaitingForControlPlaneNodes", "", 0)
    seen = await story.see(made)
    assert (seen["status"], seen["num_gpus"], seen["kube_config"]) == ("Ready", 16, "")
    assert (seen["desired_preemptible_gpus"], seen["allocated_preemptible_gpus"]) == (16, 16)
    assert seen["control_plane_ready"] is True
    assert seen["imported"] == {"standard_selector": "pool=gpu", "problem": None}
    names = [node["node_id"] for node in seen["gpu_worker_nodes"]]
    assert names[:2] == ["own-a", "own-b"]
    assert all(name.startswith("gpu-preemptible-dp-") for name in names[2:])
    assert "instance_id" not in seen["gpu_worker_nodes"][0]
    listed = (await story.tenant.get(CLUSTERS)).json()["clusters"]
    assert [each["cluster_id"] for each in listed] == [made["cluster_id"]]
    assert KUBECONFIG not in str(listed) + str(seen) + str(made)


async def test_its_size_is_not_ours_to_change(story: Story) -> None:
    made = await imported(story)
    path = f"{CLUSTERS}/{made['cluster_id']}"
    refused = await story.tenant.put(path, json={"num_gpus": 24})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "num_gpus"
    assert "what stands in it" in refused.json()["error"]["message"]
    changed = strictly(await story.tenant.put(path, json={"num_gpus": 16, "num_preemptible_gpus": 8}))
    assert changed["desired_preemptible_gpus"] == 8


async def test_renewed_and_detached(story: Story) -> None:
    made = await imported(story)
    path = f"/v1/clusters/{made['cluster_id']}/import"
    renewed = strictly(await story.operator.put(path, json={"standard_selector": "pool=b"}))
    assert renewed["imported"]["standard_selector"] == "pool=b"
    assert (await story.tenant.put(path, json={})).status_code == 403
    answer = await story.tenant.delete(f"{CLUSTERS}/{made['cluster_id']}")
    assert answer.json() == {"cluster_id": made["cluster_id"]}
    assert (await story.see(made))["status"] == "Deleting"
    assert (await story.operator.put(path, json={"standard_selector": "x"})).status_code == 409
    await story.simulated.run_until(story.simulated.now + timedelta(seconds=400))
    assert (await story.tenant.get(f"{CLUSTERS}/{made['cluster_id']}")).status_code == 404


async def test_another_server_is_not_taken_by_mistake_while_nodes_are_held(story: Story) -> None:
    made = await imported(story)
    path = f"/v1/clusters/{made['cluster_id']}/import"
    same = await story.operator.put(path, json={"kubeconfig": f"{KUBECONFIG}# another token\n"})
    assert same.status_code == 200
    moved = {"kubeconfig": KUBECONFIG.replace("reef", "moved")}
    refused = await story.operator.put(path, json=moved)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nodes_held")
    strictly(await story.operator.put(path, json={**moved, "force": True}))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kubeconfig": "server: https://real.example"}, "kubeconfig"),
        ({"kubeconfig": None}, "kubeconfig"),
        ({"standard_selector": "a b"}, "standard_selector"),
        ({"region": "nowhere"}, "region"),
        ({"gpu_type": "B200_SXM"}, "gpu_type"),
        ({"num_preemptible_gpus": 12}, "num_preemptible_gpus"),
        ({"placement": "none"}, "placement"),
    ],
)
async def test_what_cannot_be_is_refused(story: Story, change: dict[str, Any], param: str) -> None:
    answer = await story.operator.post(IMPORT, json={**BODY, **change})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_project_that_is_not_there(story: Story) -> None:
    answer = await story.operator.post(IMPORT, json={**BODY, "project_id": "nobody"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "project_id")
