"""The official command line, as a program of its own, over a real socket: what people type, good and bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

Run = Callable[..., subprocess.CompletedProcess[str]]
NAMED = ["--name", "demo", "--gpu-type", "H100_SXM", "--region", "local-1", "--billing-type", "ON_DEMAND"]
DRIVER = ["--nvidia-version-id", "local-1-570-128"]


@pytest.fixture
def tg(app: FastAPI, serve: Callable[[FastAPI], str], tmp_path: Path) -> Run:
    url = serve(app)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TOGETHER_BASE_URL": url,
        "TOGETHER_API_KEY": "member-key",
        "TOGETHER_TELEMETRY_DISABLED": "1",
        "TOGETHER_DISABLE_VERSION_CHECK": "1",
        "TOGETHER_CREDENTIALS_PATH": str(tmp_path / "none"),
        "COLUMNS": "200",
    }

    def run(*words: str, **changed: str) -> subprocess.CompletedProcess[str]:
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


def told(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said


def test_a_cluster_in_json_from_create_to_delete(tg: Run) -> None:
    made = told(
        tg(
            "create",
            *NAMED,
            *DRIVER,
            "--num-gpus",
            "8",
            "--num-preemptible-gpus",
            "16",
            "--project",
            "proj-1",
            "--json",
        )
    )
    assert made["desired_preemptible_gpus"] == 16
    cluster = str(made["cluster_id"])
    assert told(tg("retrieve", cluster, "--json")) == made
    assert (
        told(tg("update", cluster, "--num-preemptible-gpus", "0", "--json"))["desired_preemptible_gpus"] == 0
    )
    assert cluster in tg("list", "--json").stdout
    assert told(tg("delete", cluster, "--json"))["cluster_id"] == cluster
    refused(tg("retrieve", cluster, "--json"), "cluster not found")


def test_a_cluster_in_text(tg: Run) -> None:
    regions = tg("list-regions", "--non-interactive")
    assert regions.returncode == 0
    assert "local-1-570-128" in regions.stdout
    legacy = ["--nvidia-driver-version", "570", "--cuda-version", "12.8", "--num-gpus", "8"]
    made = tg("create", *NAMED, *legacy, "--non-interactive")
    assert made.returncode == 0, made.stdout + made.stderr
    cluster = made.stdout.split()[-1]
    listed = tg("list", "--non-interactive")
    assert "demo" in listed.stdout
    assert "WaitingForDataPlaneNodes" in listed.stdout
    assert cluster in tg(cluster, "--non-interactive").stdout
    assert tg("update", cluster, "--num-gpus", "16", "--non-interactive").returncode == 0
    assert tg("delete", cluster, "--non-interactive").returncode == 0
    assert cluster not in tg("list", "--non-interactive").stdout


def test_refusals_are_our_sentences(tg: Run) -> None:
    eight = ["--num-gpus", "8"]
    refused(tg("create", *NAMED, *DRIVER, "--num-gpus", "12", "--json"), "num_gpus must be a multiple of 8")
    refused(tg("create", *NAMED, *DRIVER, "--num-gpus", "128", "--non-interactive"), "not enough H100_SXM")
    refused(
        tg("create", *DRIVER, "--json"),
        "billing_type, cluster_name, gpu_type, num_gpus and region are required",
    )
    target = ["--num-preemptible-gpus", "8"]
    refused(tg("create", *NAMED, *DRIVER, *eight, *target, "--non-interactive"), "project_id is required")
    refused(
        tg("create", *NAMED, *DRIVER, *eight, "--cluster-type", "SLURM", "--json"), "SLURM is not offered"
    )
    refused(tg("update", "nope", *target, "--non-interactive"), "cluster not found")


def test_the_other_base_url_works_too(tg: Run, app: FastAPI, serve: Callable[[FastAPI], str]) -> None:
    assert told(tg("list", "--json", TOGETHER_BASE_URL=serve(app) + "/v1")) == {"clusters": []}
