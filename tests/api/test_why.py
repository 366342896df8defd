"""The operator's why-questions (K10): why this node, why not this target, since when, what comes next."""

from __future__ import annotations

from typing import Any

from .conftest import error_of
from .stories import CLUSTERS, Story

WHY = "/v1/fleet/why"


async def asked(story: Story, path: str) -> dict[str, Any]:
    answer = await story.operator.get(f"{WHY}/{path}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_why_a_target_is_not_met(story: Story) -> None:
    cluster = await story.create(num_gpus=24, num_preemptible_gpus=16, project_id=story.project)
    path = f"target/{cluster['cluster_id']}"
    early = await asked(story, path)
    assert (early["wanted"], early["held"], early["missing"]) == (2, 0, 2)
    assert early["reason"] == "the control plane is not ready, so no node could join"
    await story.simulated.run_for(60)
    why = await asked(story, path)
    fill = (await story.see(cluster))["preemptible_fill"]
    assert (why["wanted"], why["held"], why["missing"]) == (2, 1, 1)
    assert why["reason"] == fill["pending_reason"]
    assert (why["since"], why["last_try"], why["next_try"]) == (
        fill["since"],
        fill["last_try"],
        fill["next_try"],
    )
    assert (why["pool"]["name"], why["pool"]["free"], why["pool"]["lendable"]) == ("h100", 0, 0)
    assert why["visit"]["outcome"]
    text = " ".join(why["sentences"])
    assert "wants 2 preemptible nodes and has 1. Not met: 1 of 2 nodes missing" in text
    assert f"since {why['since']}" in text
    assert f"again at {why['next_try']}" in text
    await story.tenant.put(f"{CLUSTERS}/{cluster['cluster_id']}", json={"num_preemptible_gpus": 8})
    await story.simulated.run_for(60)
    met = await asked(story, path)
    assert (met["reason"], met["since"], met["missing"]) == (None, None, 0)
    assert met["sentences"][1] == "The target is met."


async def test_why_a_node_was_placed_and_why_it_was_taken(story: Story) -> None:
    cluster = await story.create(num_preemptible_gpus=24, project_id=story.project)
    await story.simulated.run_for(60)
    nodes = (await story.see(cluster))["gpu_worker_nodes"]
    names = {node["node_id"].rsplit("-", 2)[0]: node["node_id"] for node in nodes}
    standard = await asked(story, f"node/{names['gpu-dp']}")
    assert standard["made_for"]["kind"] == "standard"
    assert "It was ordered on host h100-" in standard["sentences"][0]
    placed = await asked(story, f"node/{names['gpu-preemptible-dp']}")
    assert (placed["made_for"], placed["taken_for"], placed["taken_because"]) == (None, None, None)
    assert placed["cluster_id"] == cluster["cluster_id"]
    assert "because cluster 'demo' wants more preemptible nodes" in placed["sentences"][0]
    assert placed["visit"]["outcome"]
    assert await asked(story, f"node/{placed['uid']}") == placed

    body = {"pool": "h100", "hosts": 1, "ref": "train/1", "for": "the batch system"}
    assert (await story.operator.post("/v1/fleet/claims", json=body)).status_code == 200
    live = (await story.operator.get("/v1/fleet/nodes")).json()["nodes"]
    leaving = next(node for node in live if node["phase"] == "DRAINING")
    taken = await asked(story, f"node/{leaving['name']}")
    assert (taken["phase"], taken["taken_for"]["ref"], taken["deadline"]) == (
        "DRAINING",
        "train/1",
        leaving["deadline"],
    )
    assert taken["taken_because"] == leaving["why"]
    text = " ".join(taken["sentences"])
    assert f"It was chosen to leave: {leaving['why']}." in text
    assert "Its host goes to the external claim 'train/1' of 1 host for the batch system" in text
    await story.simulated.run_for(600)
    gone = await asked(story, f"node/{leaving['name']}")
    assert (gone["phase"], gone["end_reason"]) == ("REMOVED", "preempted")
    assert gone["taken_for"]["state"] == "served"


async def test_only_operators_ask_and_only_about_what_is(story: Story) -> None:
    cluster = await story.create()
    for path in (
        "node/no-such-node",
        "target/no-such-cluster",
        f"target/{'0' * 8}-0000-4000-8000-{'0' * 12}",
    ):
        answer = await story.operator.get(f"{WHY}/{path}")
        assert (answer.status_code, error_of(answer)["type"]) == (404, "not_found_error")
    answer = await story.tenant.get(f"{WHY}/target/{cluster['cluster_id']}")
    assert answer.status_code == 403
