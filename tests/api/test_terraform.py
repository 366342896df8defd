"""What the official Terraform provider sends over a cluster's life, and that its plans come out empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import error_of
from .stories import CREATE, Story
from .terraform import CHANGES, REPLACES, Terraform

# As docs/terraform.md recommends it.
CLUSTER: dict[str, Any] = {
    "cluster_name": "training",
    "cluster_type": "KUBERNETES",
    "region": "local-1",
    "gpu_type": "H100_SXM",
    "cuda_version": "12.8",
    "nvidia_driver_version": "570",
    "num_gpus": 8,
    "num_preemptible_gpus": 8,
    "add_ons": [],
}
FULL: dict[str, Any] = {
    **CLUSTER,
    "install_traefik": True,
    "slurm_shm_size_gib": 64,
    "acceptance_tests_params": {"enabled": False},
    "add_ons": [
        {"add_on_type": "dashboard", "name": "board", "config": {"dashboard": {"enabled": True}}},
    ],
    "cluster_config": {"load_balancer": "TRAEFIK", "ingress": {"enabled": True}, "jumphost_enabled": False},
    "oidc_config": {
        "issuer_url": "https://dex.example",
        "client_id": "kubernetes",
        "username_claim": "email",
        "username_prefix": "oidc:",
        "group_claim": "groups",
        "group_prefix": "oidc:",
    },
}


@pytest.fixture
def terraform(story: Story) -> Terraform:
    """Under the base URL that the provider is configured with."""
    story.tenant.base_url = httpx.URL("http://ebbtide/v1/")
    return Terraform(story.tenant)


@pytest.mark.parametrize("configured", [CLUSTER, FULL], ids=["plain", "full"])
async def test_a_clusters_life(story: Story, terraform: Terraform, configured: dict[str, Any]) -> None:
    """Apply, plan without a difference, raise the target, plan, scale, plan, destroy."""
    wanted = {**configured, "project_id": story.project}
    if "oidc_config" in wanted:  # a volume, too
        volume = await story.tenant.post(
            "compute/clusters/storage/volumes",
            json={"region": "local-1", "volume_name": "data", "size_tib": 1},
        )
        assert volume.status_code == 200, volume.text
        wanted["volume_id"] = volume.json()["volume_id"]
        await story.simulated.run_for(30)
    assert await terraform.apply(wanted) == ["POST"]
    assert terraform.state is not None
    first = terraform.state["cluster_id"]
    for seconds in (0, 60):  # while it is made as when it is ready
        await story.simulated.run_for(seconds)
        await terraform.refresh()
        assert terraform.plan(wanted) == set()
    for step, shown in (
        ({"num_preemptible_gpus": 16}, ("desired_preemptible_gpus", 16)),
        ({"num_gpus": 16}, ("num_gpus", 16)),
        ({"num_preemptible_gpus": 0}, ("desired_preemptible_gpus", 0)),
    ):
        wanted |= step
        assert await terraform.apply(wanted) == ["GET", "PUT"]
        await story.simulated.run_for(30)
        assert await terraform.apply(wanted) == ["GET"]
        assert terraform.state["cluster_id"] == first
        seen = (await story.tenant.get(f"compute/clusters/{first}")).json()
        assert seen[shown[0]] == shown[1]
    await terraform.destroy()
    assert [method for method, _, _ in terraform.sent[-2:]] == ["GET", "DELETE"]
    await story.simulated.run_for(900)
    again = await story.tenant.delete(f"compute/clusters/{first}")
    assert (again.status_code, error_of(again)["type"]) == (404, "not_found_error")
    assert (await story.tenant.get("compute/clusters")).json() == {"clusters": []}


async def test_add_ons_and_configuration_change_in_place(story: Story, terraform: Terraform) -> None:
    wanted = {**FULL, "project_id": story.project}
    await terraform.apply(wanted)
    wanted["cluster_config"] = {**FULL["cluster_config"], "load_balancer": "NGINX", "jumphost_enabled": True}
    wanted["add_ons"] = [{**FULL["add_ons"][0], "config": {"dashboard": {"enabled": True}, "ingress": {}}}]
    assert await terraform.apply(wanted) == ["GET", "PUT"]
    assert await terraform.apply(wanted) == ["GET"]


async def test_a_cluster_deleted_elsewhere_is_made_again(story: Story, terraform: Terraform) -> None:
    """A 404 on refresh drops it, so neither the next apply nor destroy asks to delete what is gone."""
    wanted = {**CLUSTER, "project_id": story.project}
    await terraform.apply(wanted)
    assert terraform.state is not None
    first = terraform.state["cluster_id"]
    assert (await story.tenant.delete(f"compute/clusters/{first}")).status_code == 200
    await terraform.refresh()
    assert terraform.plan(wanted) == set()  # it is deleting; Terraform does not look at the status
    await story.simulated.run_for(900)
    assert await terraform.apply(wanted) == ["GET", "POST"]
    assert terraform.state["cluster_id"] != first
    second = terraform.state["cluster_id"]
    await story.tenant.delete(f"compute/clusters/{second}")
    await story.simulated.run_for(900)
    await terraform.destroy()
    assert terraform.sent[-1][0] == "GET"


@pytest.mark.parametrize(
    ("left_out", "replaces"), [("project_id", True), ("cluster_type", False), ("add_ons", False)]
)
async def test_what_must_be_configured(
    story: Story, terraform: Terraform, left_out: str, replaces: bool
) -> None:
    """The traps of docs/terraform.md are real: without these, every plan shows a difference."""
    wanted = {**CLUSTER, "project_id": story.project, "num_preemptible_gpus": 0}
    del wanted[left_out]
    await terraform.apply(wanted)
    await terraform.refresh()
    assert terraform.plan(wanted) == {left_out}
    assert (left_out in REPLACES, left_out in CHANGES) == (replaces, not replaces)


@pytest.mark.parametrize(
    "add_on",
    [
        {"add_on_type": "dashboard", "name": "board"},
        {"add_on_type": "dashboard", "name": "board", "config": {"dashboard": {"enabled": False}}},
    ],
    ids=["without a config", "switched off"],
)
async def test_add_ons_that_differ_on_every_plan(
    story: Story, terraform: Terraform, add_on: dict[str, Any]
) -> None:
    """The contract answers enabled add-ons only, and each with a config."""
    wanted = {**CLUSTER, "project_id": story.project, "add_ons": [add_on]}
    await terraform.apply(wanted)
    await terraform.refresh()
    assert terraform.plan(wanted) == {"add_ons"}


async def test_a_target_taken_out_of_the_configuration_stays(story: Story, terraform: Terraform) -> None:
    """Terraform sends null, which means unchanged; 0 turns preemptible off."""
    wanted = {**CLUSTER, "project_id": story.project}
    await terraform.apply(wanted)
    del wanted["num_preemptible_gpus"]
    assert await terraform.apply(wanted) == ["GET", "PUT"]
    assert terraform.sent[-1][2]["num_preemptible_gpus"] is None
    assert terraform.state is not None
    seen = await story.tenant.get(f"compute/clusters/{terraform.state['cluster_id']}")
    assert seen.json()["desired_preemptible_gpus"] == 8
    assert await terraform.apply(wanted) == ["GET"]


async def test_what_cannot_be_had_is_said_at_once(story: Story, terraform: Terraform) -> None:
    """The Go client repeats a 409 unless it is told not to."""
    wanted = {**CLUSTER, "project_id": story.project}
    await terraform.apply(wanted)
    assert terraform.state is not None
    path = f"compute/clusters/{terraform.state['cluster_id']}"
    answer = await story.tenant.put(path, json={**CREATE, **wanted, "num_gpus": 800})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    await terraform.refresh()
    assert terraform.plan(wanted) == set()


def test_the_page_recommends_what_was_tested(repository: Path) -> None:
    """Every attribute of the plain configuration stands in the page's first block, with these values."""
    page = (repository / "docs" / "terraform.md").read_text(encoding="utf-8")
    block = page.split("```hcl", 2)[1].split("```", 1)[0]
    shown = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    told = {name.strip(): value.split("#")[0].strip().strip('"') for name, value in shown.items()}
    for name, value in CLUSTER.items():
        assert told[name] == str(value), name
    assert told["project_id"]
    assert told["base_url"].endswith("/v1")
