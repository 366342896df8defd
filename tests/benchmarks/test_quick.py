"""Every benchmark still runs and says what it measured. Speed is judged elsewhere: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KEYS = {"what", "value", "unit", "peer", "peer_value", "ratio", "aim", "met", "note"}
NAMES = (
    "api_reads",
    "creates",
    "driver_alone",
    "memory",
    "metering",
    "reclaim",
    "simulated_month",
    "watcher",
)
ON_KUBERNETES = ("mass_notice",)  # see tests/live


def test_all_are_listed(repository: Path) -> None:
    there = {file.stem for file in (repository / "benchmarks").glob("[a-z]*.py")}
    assert there == {*NAMES, *ON_KUBERNETES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_quickly(name: str, repository: Path, tmp_path: Path) -> None:
    run_quickly(name, repository, tmp_path)


def run_quickly(name: str, repository: Path, tmp_path: Path) -> None:
    """Run it with `--quick`, and look at its report."""
    answer = tmp_path / "answer.json"
    program = repository / "benchmarks" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick", "--json", str(answer)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(answer.read_text())
    assert report["benchmark"] == name
    assert report["quick"] is True
    assert report["machine"]["cpus"] > 0
    assert report["results"], "a benchmark without a result"
    for result in report["results"]:
        assert set(result) == KEYS
        assert result["value"] > 0
        assert result["what"] in done.stdout
    assert any(result["peer"] for result in report["results"]), "no peer to compare with"
