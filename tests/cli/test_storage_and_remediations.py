"""`ebbtide storage` and `ebbtide remediations` against canned answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID
from tests.cli.stub import Stub

Run = Callable[..., Ran]
VOLUME_ID = "9a1c0c9e-55f1-4a0e-8a44-2f5a6c1b7e10"
REMEDY_ID = "c3b4b1a2-7d0e-4c57-8a39-5f1de0a7c9b3"
VOLUMES = "/v1/compute/clusters/storage/volumes"
REMEDIES = f"/v1/compute/clusters/{CLUSTER_ID}/instances"
FIRST_PAGE = f"GET {REMEDIES}/-/remediations?page_size=500"


def volume(**changes: Any) -> dict[str, Any]:
    return {
        "volume_id": VOLUME_ID,
        "volume_name": "demo-data",
        "size_tib": 2,
        "status": "available",
        **changes,
    }


def remedy(**changes: Any) -> dict[str, Any]:
    return {
        "id": REMEDY_ID,
        "cluster_id": CLUSTER_ID,
        "instance_id": "i-1",
        "instance_name": "gpu-dp-aaaaa-bbbbb",
        "mode": "REMEDIATION_MODE_REBOOT_VM",
        "state": "RUNNING",
        "trigger": "REMEDIATION_TRIGGER_MANUAL",
        "create_time": "2026-01-02T03:04:05Z",
        "outcome": "the machine goes down",
        **changes,
    }


def page(*items: dict[str, Any], token: str = "") -> dict[str, Any]:
    return {"remediations": list(items), "has_next": token != "", "next_page_token": token}


@pytest.fixture
def sick(stub: Stub) -> Stub:
    """A cluster one of whose nodes has an instance, and a remediation."""
    node = samples.node("gpu-dp-aaaaa-bbbbb", instance_id="i-1")
    cluster = samples.cluster(gpu_worker_nodes=[node])
    stub.on("GET /v1/compute/clusters", {"clusters": [cluster]})
    stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", cluster)
    stub.on(FIRST_PAGE, page(remedy()))
    return stub


def test_volumes_are_listed(online: Run, stub: Stub) -> None:
    stub.on(f"GET {VOLUMES}", {"volumes": [volume()]})
    ran = online("storage", "list")
    assert ran.code == 0
    for word in ("NAME", "demo-data", "2", "available", VOLUME_ID):
        assert word in ran.out
    assert json.loads(online("storage", "list", "--json").out) == [volume()]
    stub.on(f"GET {VOLUMES}?projectId=p", {"volumes": []})
    assert "no volumes" in online("storage", "list", "--project", "p").out


def test_a_volume_is_ordered_and_waited_for(online: Run, stub: Stub) -> None:
    region = {"name": "r", "supported_instance_types": [], "driver_versions": []}
    stub.on("GET /v1/compute/regions", {"regions": [region]})
    stub.on(f"POST {VOLUMES}", volume(status="scheduled"))
    stub.on(f"GET {VOLUMES}/{VOLUME_ID}", volume(status="provisioning"), volume())
    ran = online("storage", "create", "demo-data", "--size-tib", "2", "--keep", "--wait")
    assert (ran.code, "available" in ran.out) == (0, True)
    order = next(asked.body for asked in stub.asked if asked.method == "POST")
    assert order == {
        "volume_name": "demo-data",
        "size_tib": 2,
        "region": "r",
        "is_lifecycle_independent": True,
        "project_id": None,
    }


def test_of_several_regions_one_is_to_be_chosen(online: Run, stub: Stub) -> None:
    stub.on("GET /v1/compute/regions", samples.REGIONS)
    ran = online("storage", "create", "demo-data", "--size-tib", "2")
    assert (ran.code, "--region" in ran.err) == (2, True)


def test_a_volume_grows_and_goes_by_its_name(online: Run, stub: Stub) -> None:
    stub.on(f"GET {VOLUMES}", {"volumes": [volume()]})
    stub.on(f"PUT {VOLUMES}", volume(size_tib=5))
    assert "5 TiB" in online("storage", "grow", "demo-data", "--size-tib", "5").out
    assert stub.last.body == {"volume_id": VOLUME_ID, "size_tib": 5}
    stub.on(f"DELETE {VOLUMES}/{VOLUME_ID}", {"success": True})
    assert "being deleted" in online("storage", "delete", "demo-data", "--yes").out
    stub.refuse(f"DELETE {VOLUMES}/{VOLUME_ID}", 409, "attached to cluster x", "volume_attached")
    ran = online("storage", "delete", "demo-data", "--yes")
    assert (ran.code, "attached to cluster x" in ran.err) == (1, True)


def test_which_volume_is_meant(online: Run, stub: Stub) -> None:
    stub.on(f"GET {VOLUMES}", {"volumes": [volume(), volume(volume_id="other")]})
    ran = online("storage", "get", "demo-data")
    assert (ran.code, "2 volumes are named" in ran.err) == (2, True)
    ran = online("storage", "get", "nope")
    assert (ran.code, "no volume 'nope'" in ran.err) == (1, True)
    stub.on(f"GET {VOLUMES}/{VOLUME_ID}", volume())
    assert "demo-data" in online("storage", "get", VOLUME_ID).out


def test_remediations_are_listed_over_all_pages(online: Run, sick: Stub) -> None:
    sick.on(FIRST_PAGE, page(remedy(), token="p2"))
    sick.on(f"{FIRST_PAGE}&page_token=p2", page(remedy(id="second", outcome=None)))
    ran = online("remediations", "list", "reef")
    assert ran.code == 0
    for word in ("gpu-dp-aaaaa-bbbbb", "REBOOT_VM", "RUNNING", "the machine goes down", "second"):
        assert word in ran.out
    assert "REMEDIATION_" not in ran.out
    sick.on(f"GET {REMEDIES}/-/remediations?state=FAILED&page_size=500", page())
    assert "no remediations" in online("remediations", "list", "reef", "--state", "FAILED").out


@pytest.mark.parametrize("node", ["gpu-dp-aaaaa-bbbbb", "i-1"])
def test_one_is_asked_for_by_the_nodes_name_or_instance(online: Run, sick: Stub, node: str) -> None:
    sick.on(f"POST {REMEDIES}/i-1/remediations", remedy(state="PENDING"))
    ran = online("remediations", "create", "reef", node, "--mode", "reboot-vm", "--reason", "slow")
    assert (ran.code, "PENDING" in ran.out) == (0, True)
    assert sick.last.body == {"mode": "REMEDIATION_MODE_REBOOT_VM", "reason": "slow"}


def test_a_node_that_is_not_there(online: Run, sick: Stub) -> None:
    ran = online("remediations", "create", "reef", "nope", "--mode", "VM_ONLY")
    assert (ran.code, "no node 'nope'" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "verb", "body"),
    [
        (["approve", REMEDY_ID], "approve", {"comment": None, "mode": None}),
        (
            ["approve", REMEDY_ID, "--comment", "go", "--mode", "vm_only"],
            "approve",
            {"comment": "go", "mode": "REMEDIATION_MODE_VM_ONLY"},
        ),
        (["reject", REMEDY_ID, "--comment", "no"], "reject", {"comment": "no"}),
        (["cancel", REMEDY_ID], "cancel", ""),
    ],
)
def test_reviews(online: Run, sick: Stub, words: list[str], verb: str, body: object) -> None:
    sick.on(f"POST {REMEDIES}/i-1/remediations/{REMEDY_ID}/{verb}", remedy(state="CANCELLED"))
    ran = online("remediations", *words)
    assert (ran.code, "CANCELLED" in ran.out) == (0, True), ran
    assert sick.last.body == body


def test_one_that_is_not_there(online: Run, sick: Stub) -> None:
    assert "the machine goes down" in online("remediations", "get", REMEDY_ID).out
    ran = online("remediations", "get", "nope")
    assert (ran.code, "no remediation 'nope'" in ran.err) == (1, True)
