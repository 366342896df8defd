"""The official command line, as a program of its own, against a whole Ebbtide: good input and bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .living import Living, living

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
NAMED = ["--name", "demo", "--gpu-type", "H100_SXM", "--region", "local-1", "--billing-type", "ON_DEMAND"]
DRIVER = ["--nvidia-version-id", "local-1-570-128"]


@pytest.fixture
def server(database_url: str) -> Iterator[Living]:
    with living(database_url) as running:
        yield running


@pytest.fixture
def tg(server: Living, tmp_path: Path) -> Run:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TOGETHER_BASE_URL": server.url,
        "TOGETHER_API_KEY": server.member,
        "TOGETHER_TELEMETRY_DISABLED": "1",
        "TOGETHER_DISABLE_VERSION_CHECK": "1",
        "TOGETHER_CREDENTIALS_PATH": str(tmp_path / "none"),
        "COLUMNS": "200",
    }

    def run(*words: str, **changed: str) -> Done:
        program = Path(sys.executable).with_name("tg")
        return subprocess.run(
            [str(program), "clusters", *words],
            env={**environment, **changed},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def told(done: Done) -> dict[str, object]:
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def refused(done: Done, *words: str) -> None:
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


def test_a_cluster_from_create_to_delete_in_json(tg: Run, server: Living) -> None:
    wanted = ["--num-gpus", "8", "--num-preemptible-gpus", "8", "--project", server.project_id]
    made = told(tg("create", *NAMED, *DRIVER, *wanted, "--json"))
    assert (made["desired_preemptible_gpus"], made["project_id"]) == (8, server.project_id)
    cluster = str(made["cluster_id"])
    for _ in range(20):
        seen = told(tg("retrieve", cluster, "--json"))
        if (seen["status"], seen["allocated_preemptible_gpus"]) == ("Ready", 8):
            break
        time.sleep(0.2)
    assert (seen["status"], seen["allocated_preemptible_gpus"]) == ("Ready", 8)
    nodes = seen["gpu_worker_nodes"]
    assert isinstance(nodes, list)
    assert sorted(node["node_id"].rsplit("-", 2)[0] for node in nodes) == ["gpu-dp", "gpu-preemptible-dp"]
    kubeconfig = told(tg("get-credentials", cluster, "--file", "-", "--json"))["kubeconfig"]
    assert f"{cluster}-admin" in str(kubeconfig)
    assert (
        told(tg("update", cluster, "--num-preemptible-gpus", "0", "--json"))["desired_preemptible_gpus"] == 0
    )
    assert cluster in tg("list", "--json").stdout
    assert told(tg("delete", cluster, "--json")) == {"cluster_id": cluster}


def test_a_cluster_in_text(tg: Run) -> None:
    regions = tg("list-regions", "--non-interactive")
    assert regions.returncode == 0
    assert "local-1-570-128" in regions.stdout
    legacy = ["--nvidia-driver-version", "570", "--cuda-version", "12.8", "--num-gpus", "8"]
    made = tg("create", *NAMED, *legacy, "--non-interactive")
    assert made.returncode == 0, made.stdout + made.stderr
    cluster = made.stdout.split()[-1]
    assert cluster in tg(cluster, "--non-interactive").stdout
    assert tg("update", cluster, "--num-gpus", "16", "--non-interactive").returncode == 0
    listed = tg("list", "--non-interactive").stdout
    assert "demo" in listed
    assert "local-1" in listed
    assert tg("delete", cluster, "--non-interactive").returncode == 0


def test_refusals_are_our_sentences(tg: Run) -> None:
    eight = ["--num-gpus", "8"]
    target = ["--num-preemptible-gpus", "8"]
    refused(tg("create", *NAMED, *DRIVER, "--num-gpus", "12", "--json"), "num_gpus must be a multiple of 8")
    refused(
        tg("create", *NAMED, *DRIVER, "--num-gpus", "128", "--non-interactive"), "out of stock", "32 free"
    )
    refused(
        tg("create", *DRIVER, "--json"),
        "billing_type, cluster_name, gpu_type, num_gpus and region are required",
    )
    refused(tg("create", *NAMED, *DRIVER, *eight, *target, "--non-interactive"), "project_id is required")
    refused(
        tg("create", *NAMED, *DRIVER, *eight, "--cluster-type", "SLURM", "--json"), "SLURM is not offered"
    )
    refused(tg("create", *NAMED, *DRIVER, *eight, "--project", "not-mine", "--json"), "project")
    refused(tg("update", "nope", *target, "--non-interactive"), "cluster not found")
    refused(tg("retrieve", "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01", "--json"), "no cluster")


def test_the_other_base_url_works_too(tg: Run, server: Living) -> None:
    assert told(tg("list", "--json", TOGETHER_BASE_URL=f"{server.url}/v1")) == {"clusters": []}
