"""The promise: a plain script is an F and told why; three lines more and it is an A. As the tutorial tells
it."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rehearse_jobs import environment

from ebbtide_workload.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "workloads"
PLAIN = DOCS / "examples" / "train_plain.py"
GUARDED = DOCS / "examples" / "train.py"


def code_lines(path: Path) -> list[str]:
    """The lines of a script without its first (its docstring) and without empty ones."""
    return [line for line in path.read_text().splitlines()[1:] if line.strip()]


def added_lines() -> list[str]:
    return [
        line[2:] for line in difflib.ndiff(code_lines(PLAIN), code_lines(GUARDED)) if line.startswith("+ ")
    ]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment())


def rehearse(capsys: pytest.CaptureFixture[str], script: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["rehearse", "--json", "--after", "0.2..0.5", *options, "--", sys.executable, str(script)])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_the_scripts_differ_by_three_lines() -> None:
    assert len(added_lines()) == 3


def test_with_the_three_lines_it_is_an_a(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, GUARDED, "--window", "30", "--rounds", "2")
    assert (code, result["grade"]) == (0, "A"), result["findings"]
    assert [r["lost_steps"] for r in result["rounds"]] == [0, 0]
    assert {r["exit_code"] for r in result["rounds"]} == {85}
    assert result["timeline"][1]["began_at_step"] >= result["timeline"][0]["saved_step"]


def test_j6_the_guard_keeps_its_checkpoints_few(capsys: pytest.CaptureFixture[str]) -> None:
    """J6: at most keep + 1 checkpoints exist, however often it is preempted."""
    options = ["--window", "30", "--rounds", "3", "--checkpoints", "checkpoints", "--keep", "2"]
    code, result = rehearse(capsys, GUARDED, *options)
    assert (code, result["grade"]) == (0, "A"), result["findings"]
    assert [r["checkpoints"] for r in result["rounds"]] == [1, 2, 2]


def test_without_them_it_is_an_f_and_is_told_why(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, PLAIN, "--window", "1")
    assert (code, result["grade"]) == (1, "F")
    told = {f["rule"]: f for f in result["findings"]}
    assert "started over at step 0" in told["from-scratch"]["text"]
    assert "train_plain.py" in told["ignored-sigterm"]["text"]
    for line in ("import ebbtide_workload", "ebbtide_workload.Guard(", "guard.steps("):
        assert line in told["from-scratch"]["fix"]


def test_j9_behind_ebb_run_a_shell_is_no_obstacle(capsys: pytest.CaptureFixture[str]) -> None:
    """J9: the wrapper forwards the signal past the shell."""
    shell = f"{sys.executable} {GUARDED}; exit $?"
    wrapped = [sys.executable, "-m", "ebbtide_workload", "run", "--", "sh", "-c", shell]
    words = ["rehearse", "--json", "--after", "0.3", "--rounds", "1", "--window", "30", "--", *wrapped]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["grade"] == "A"


def test_the_tutorial_shows_the_lines_that_are_in_the_script() -> None:
    page = (DOCS / "first-rehearsal.md").read_text()
    for line in added_lines():
        assert f"+{line}" in page
