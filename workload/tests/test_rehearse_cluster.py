"""`ebb rehearse --job` through kubectl, against a cluster double whose pods are real processes."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rehearse_jobs import PLAIN, counting, environment, script

from ebbtide_workload.cli import main

KUBECTL = Path(__file__).parent / "fake_kubectl.py"
QUICK = ["--after", "0.1..0.2", "--rounds", "1", "--first-step", "20", "--json"]


class Cluster:
    """The folder of the double, and its first kubelet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self, command: list[str], *, grace_s: int = 20, mode: str = "good") -> None:
        self.root.joinpath("settings.json").write_text(
            json.dumps({"command": command, "grace_s": grace_s, "mode": mode})
        )
        import fake_kubectl

        fake_kubectl.start_kubelet(0)

    def stop(self) -> None:
        (self.root / "stop").touch()
        until = time.monotonic() + 20
        while time.monotonic() < until and any(not (p / "exit").exists() for p in self.root.glob("pod-*")):
            time.sleep(0.02)

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    root, tools = tmp_path / "cluster", tmp_path / "bin"
    root.mkdir()
    tools.mkdir()
    program = tools / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {KUBECTL} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", environment())
    monkeypatch.setenv("FAKE_CLUSTER", str(root))
    made = Cluster(root)
    yield made
    made.stop()


def rehearse(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report."""
    code = main(["rehearse", *QUICK, "--job", "train", *options])
    said = capsys.readouterr()
    assert said.out, said.err
    result: dict[str, Any] = json.loads(said.out)
    return code, result


def rules(result: dict[str, Any]) -> set[str]:
    return {f["rule"] for f in result["findings"]}


def test_a_good_job_gets_the_same_a_as_at_home(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"))
    code, result = rehearse(capsys, "--window", "20", "--namespace", "team", "--context", "lab")
    assert (code, result["grade"]) == (0, "A")
    [facts] = result["rounds"]
    assert facts["saved_step"] == facts["resumed_step"] == facts["last_step"]
    assert facts["exit_code"] == 85
    assert facts["notified"] == "pod pod-0"
    assert all(call.startswith("--context lab --namespace team ") for call in cluster.calls)


def test_the_pod_is_marked_as_disrupted_and_gets_its_grace_cut_to_the_window(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"), grace_s=900)
    rehearse(capsys, "--window", "300")
    [condition] = json.loads((cluster.root / "pod-0" / "condition").read_text())["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert condition["lastTransitionTime"].endswith("Z")
    assert (cluster.root / "pod-0" / "delete").read_text() == "297"
    assert not (cluster.root / "pod-1" / "delete").exists(), "the last life is left to run"
    verbs = [call.split()[0] for call in cluster.calls]
    assert verbs.index("patch") < verbs.index("delete")


def test_a_pod_with_the_default_grace_is_told_what_it_gets(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"), grace_s=30)
    _, result = rehearse(capsys, "--window", "300")
    assert rules(result) == {"short-grace"}
    assert "You will get 30 s of the 300 s" in result["findings"][0]["text"]


def test_a_plain_script_is_an_f_in_the_cluster_too(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    immune = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PLAIN
    cluster.start(script(tmp_path, "plain.py", immune), grace_s=1)
    code, result = rehearse(capsys, "--window", "20")
    assert (code, result["grade"]) == (1, "F")
    assert {"from-scratch", "ignored-sigterm", "short-grace"} == rules(result)
    assert result["rounds"][0]["exited_after_s"] is None


def test_a_job_that_counts_preemptions_is_told_so(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"), mode="counts")
    code, result = rehearse(capsys, "--window", "20")
    assert (code, result["grade"]) == (1, "C")
    assert rules(result) == {"counted-as-failure"}


def test_a_job_that_ends_by_it_did_not_come_back(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"), mode="fails")
    code, result = rehearse(capsys, "--window", "20")
    assert (code, result["grade"]) == (1, "F")
    assert "job/train has failed" in next(f["text"] for f in result["findings"] if f["rule"] == "no-return")


def test_pods_of_other_controllers_are_chosen_by_label(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"))
    assert main(["rehearse", *QUICK, "--selector", "app=train", "--window", "20"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["grade"], result["what"]) == ("A", "pods with app=train")
    assert "get pods -l app=train -o json" in cluster.calls
    assert not any(call.startswith("get job") for call in cluster.calls)


def test_the_launchers_limit_is_read_from_the_pod(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = counting(tmp_path, "saves")
    launcher = tmp_path / "torchrun"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    cluster.start([str(launcher), *command[1:]])
    _, result = rehearse(capsys, "--window", "20")
    assert rules(result) == {"launcher-limit"}


def test_no_such_job_and_no_kubectl_say_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.start(counting(tmp_path, "saves"))
    assert main(["rehearse", *QUICK, "--job", "other"]) == 3
    assert "cannot read the Job other" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(["rehearse", *QUICK, "--job", "train"]) == 3
    assert "kubectl is not on PATH" in capsys.readouterr().err
