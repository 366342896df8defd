"""`ebbtide clusters import` and `renew-import`: what they send, and what people read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID
from tests.cli.stub import Stub

Run = Callable[..., Ran]
IMPORT = "POST /v1/clusters/import"
ONE = f"GET /v1/compute/clusters/{CLUSTER_ID}"
WORDS = (
    "clusters",
    "import",
    "reef",
    "--standard-selector",
    "pool=gpu",
    "--region",
    "r",
    "--gpu-type",
    "H100_SXM",
)


def imported(problem: str | None = None, status: str = "Ready") -> dict:
    told = {"standard_selector": "pool=gpu", "problem": problem}
    return samples.cluster(imported=told, status=status)


@pytest.fixture
def file(offline: Path) -> str:
    (offline / "c").write_text("kind: Config\n", encoding="utf-8")
    return "c"


def test_what_is_sent(online: Run, stub: Stub, file: str) -> None:
    stub.on(IMPORT, imported(status="WaitingForControlPlaneNodes"))
    ran = online(*WORDS, "--kubeconfig", file, "--preemptible-gpus", "16", "--placement", "explicit")
    assert ran.code == 0, ran.err
    assert stub.last.body == {
        "cluster_name": "reef",
        "region": "r",
        "gpu_type": "H100_SXM",
        "kubeconfig": "kind: Config\n",
        "standard_selector": "pool=gpu",
        "num_preemptible_gpus": 16,
        "placement": "explicit",
        "project_id": None,
        "volume_id": None,
    }
    assert "pool=gpu" in ran.out
    assert "says what came of it" in ran.err


def test_waiting_ends_when_it_was_seen(online: Run, stub: Stub, file: str) -> None:
    stub.on(IMPORT, imported(status="WaitingForControlPlaneNodes"))
    stub.on(ONE, imported("may not list nodes", "WaitingForControlPlaneNodes"), imported())
    ran = online(*WORDS, "--kubeconfig", file, "--wait")
    assert ran.code == 0, ran.err
    assert "Ready" in ran.out


def test_waiting_that_leads_to_nothing_says_why(online: Run, stub: Stub, file: str) -> None:
    stub.on(IMPORT, imported(status="WaitingForControlPlaneNodes"))
    stub.on(ONE, imported("Ebbtide may not list nodes there", "WaitingForControlPlaneNodes"))
    ran = online(*WORDS, "--kubeconfig", file, "--wait", "--timeout", "1")
    assert ran.code == 5
    assert "Ebbtide may not list nodes there" in ran.err


def test_renewing(online: Run, stub: Stub, file: str) -> None:
    stub.on(ONE, imported())
    stub.on(f"PUT /v1/clusters/{CLUSTER_ID}/import", imported())
    assert online("clusters", "renew-import", CLUSTER_ID, "--kubeconfig", file).code == 0
    assert stub.last.body == {"kubeconfig": "kind: Config\n", "standard_selector": None}
    assert online("clusters", "renew-import", CLUSTER_ID, "--kubeconfig", file, "--force").code == 0
    assert stub.last.body == {"kubeconfig": "kind: Config\n", "standard_selector": None, "force": True}
    assert online("clusters", "renew-import", CLUSTER_ID).code == 2


def test_a_problem_is_shown(online: Run, stub: Stub) -> None:
    stub.on(ONE, imported("no node of the cluster has the labels pool=gpu"))
    assert "no node of the cluster has the labels" in online("clusters", "get", CLUSTER_ID).out


@pytest.mark.parametrize("content", [None, "", "  \n", "x" * 300_000])
def test_files_that_are_none(online: Run, offline: Path, content: str | None) -> None:
    if content is not None:
        (offline / "bad").write_text(content, encoding="utf-8")
    ran = online(*WORDS, "--kubeconfig", "bad")
    assert ran.code == 2
    assert "bad" in ran.err


def test_detaching_is_called_that(online: Run, stub: Stub) -> None:
    stub.on(ONE, imported())
    stub.on(f"DELETE /v1/compute/clusters/{CLUSTER_ID}", {"cluster_id": CLUSTER_ID})
    ran = online("clusters", "delete", CLUSTER_ID, "--yes")
    assert ran.out == "reef is being detached\n"


def test_there_is_no_kubeconfig_to_give(online: Run, stub: Stub) -> None:
    stub.on(ONE, imported())
    ran = online("clusters", "credentials", CLUSTER_ID)
    assert ran.code == 1
    assert "kubeconfigs of their own" in ran.err
