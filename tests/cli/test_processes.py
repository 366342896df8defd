"""The API and the loops as processes of their own, on one PostgreSQL."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbtide.cli.waiting import Progress, until
from ebbtide.client import Client
from tests.cli.test_program import program
from tests.cli.test_up import SMALL_FLEET, Process, start

_KEY = base64.urlsafe_b64encode(bytes(32)).decode()


@contextmanager
def running(folder: Path, *words: str, **more: str) -> Iterator[Process]:
    process = start(folder, *words, **more)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.slow
def test_serve_and_worker_share_a_database(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "fleet.yaml").write_text(SMALL_FLEET)
    issued = json.loads(program("keys", "first", "--database", database_url, "--json").stdout)
    assert (issued["role"], issued["project_name"]) == ("operator", "Default")
    database = ("--database", database_url)
    secret = program("secrets", "new-key").stdout.strip()
    with (
        running(tmp_path, "serve", *database, "--port", "0", EBBTIDE_SECRET_KEYS=secret) as api,
        running(
            tmp_path,
            "worker",
            *database,
            "--fleet",
            "fleet.yaml",
            "--data",
            "world",
            EBBTIDE_SECRET_KEYS=secret,
        ) as worker,
    ):
        url = re.search(r"http://\S+(?=;)", api.read_error_until("the API listens at"))
        assert url
        worker.read_error_until("the loops run")
        with Client(url[0], issued["key"]) as client:
            made = client.create_cluster(
                {
                    "cluster_name": "far",
                    "billing_type": "ON_DEMAND",
                    "region": "here",
                    "gpu_type": "H100_SXM",
                    "num_gpus": 8,
                    "nvidia_version_id": "here-570-128",
                }
            )

            def look() -> Progress:
                status = client.cluster(made["cluster_id"])["status"]
                return Progress(status, status == "Ready")

            until(look, limit_s=60)
        assert api.stop(signal.SIGTERM)[0] == 0
        assert worker.stop(signal.SIGTERM)[0] == 0


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    url = f"postgresql://nobody@/nothing?host={tmp_path}"
    for words in (["serve", "--port", "0"], ["worker", "--data", str(tmp_path / "d")], ["keys", "first"]):
        ran = program(*words, "--database", url, EBBTIDE_SECRET_KEYS=_KEY)
        assert ran.returncode == 2, ran.stderr
        assert "error: " in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("words", [["serve", "--port", "0"], ["worker"]])
def test_processes_that_share_a_database_must_share_keys(words: list[str], tmp_path: Path) -> None:
    ran = program(*words, "--database", f"postgresql://nobody@/nothing?host={tmp_path}")
    assert ran.returncode == 2
    assert "`ebbtide secrets new-key` makes a key" in ran.stderr
