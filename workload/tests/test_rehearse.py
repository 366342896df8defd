"""`ebb rehearse` against small real processes: good ones get an A, and each kind of bad one is told why
not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rehearse_jobs import LAUNCHER, PLAIN, counting, environment, script

from ebbtide_workload.cli import main
from ebbtide_workload.rehearse import processes

QUICK = ["--after", "0.1..0.2", "--rounds", "1", "--first-step", "30"]
Result = tuple[int, dict[str, Any]]


@pytest.fixture(autouse=True)
def _package_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment())
    monkeypatch.delenv("EBBTIDE_REHEARSAL_FILE", raising=False)


def rehearse(
    capsys: pytest.CaptureFixture[str], command: list[str], *options: str, window: str = "10"
) -> Result:
    """Exit code and JSON report."""
    code = main(["rehearse", "--json", "--window", window, *QUICK, *options, "--", *command])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def rules(result: dict[str, Any]) -> set[str]:
    return {f["rule"] for f in result["findings"]}


def text_of(result: dict[str, Any], rule: str) -> str:
    return next(str(f["text"]) for f in result["findings"] if f["rule"] == rule)


def test_a_job_that_saves_at_the_notice_gets_an_a(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, counting(tmp_path, "saves"))
    assert (code, result["grade"]) == (0, "A")
    [facts] = result["rounds"]
    assert facts["delivered"] and facts["noticed_after_s"] < 5
    assert facts["saved_step"] == facts["resumed_step"] == facts["last_step"]
    assert facts["lost_steps"] == 0
    assert facts["exit_code"] == 85


def test_j7_three_preemptions_in_a_row_never_go_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J7: each resumed step is at least the last completed save, and the timeline shows it."""
    code, result = rehearse(capsys, counting(tmp_path, "saves"), "--rounds", "3")
    assert (code, result["grade"]) == (0, "A")
    lives = result["timeline"]
    assert len(lives) == 3
    for life, following in zip(lives, lives[1:]):
        assert life["resumed_step"] >= life["saved_step"]
        assert following["began_at_step"] >= life["saved_step"]
    assert [life["saved_step"] for life in lives] == sorted({life["saved_step"] for life in lives})


def test_j7_a_stale_resume_is_an_f(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, counting(tmp_path, "saves_stale"), "--after", "0.8")
    assert (code, result["grade"]) == (1, "F")
    assert "stale" in rules(result)


def test_a_plain_script_is_an_f_and_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, script(tmp_path, "plain.py", PLAIN), window="0.5")
    assert (code, result["grade"]) == (1, "F")
    assert {"from-scratch", "ignored-sigterm"} <= rules(result)
    [facts] = result["rounds"]
    assert not facts["delivered"], "a kernel gives process 1 no signal it has no handler for"
    assert facts["resumed_step"] == 0
    assert "plain.py" in text_of(result, "ignored-sigterm")
    assert "has no handler for SIGTERM" in text_of(result, "ignored-sigterm")


def test_behind_an_init_a_plain_script_dies_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = rehearse(capsys, script(tmp_path, "plain.py", PLAIN), "--no-pid1")
    assert (code, result["grade"]) == (1, "F")
    assert {"from-scratch", "died-of-sigterm"} <= rules(result)


def test_j4_who_swallows_sigterm_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """J4: the process that bypasses SIGTERM and trains on is named."""
    command = counting(tmp_path, "swallows", name="stubborn_trainer.py")
    code, result = rehearse(capsys, command, window="0.6")
    assert code == 1
    said = text_of(result, "ignored-sigterm")
    assert "stubborn_trainer.py" in said
    assert "swallowed SIGTERM and went on for" in said
    [facts] = result["rounds"]
    assert facts["exited_after_s"] is None
    assert facts["steps_after_notice"] > 1


def test_j9_a_shell_that_keeps_the_signal_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J9: the shell is process 1, the trainer is never told."""
    inner = " ".join(counting(tmp_path, "saves"))
    code, result = rehearse(capsys, ["sh", "-c", f"{inner}; true"], window="0.6")
    assert code == 1
    said = text_of(result, "ignored-sigterm")
    assert "sh -c" in said and "as process 1 of a container it never even gets it" in said
    assert "train.py" in said and "was never told" in said
    fix = next(f["fix"] for f in result["findings"] if f["rule"] == "ignored-sigterm")
    assert "ebb run --" in fix


def test_j1_a_launcher_that_kills_in_the_middle_of_a_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J1: the launcher's own limit cuts the save though the pod's grace is far from used up."""
    worker = counting(tmp_path, "saves", save_s=30, name="worker.py")
    code, result = rehearse(capsys, script(tmp_path, "torchrun", LAUNCHER, *worker[1:]))
    assert code == 1
    said = text_of(result, "launcher-kill")
    assert "torchrun killed" in said and "worker.py" in said and "in the middle of a save" in said
    assert {"launcher-kill", "launcher-limit"} <= rules(result)
    [facts] = result["rounds"]
    assert facts["save_cut"]
    assert facts["exited_after_s"] < facts["grace_s"]


def test_j6_a_checkpoint_more_with_every_preemption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """J6: every preemption leaves another checkpoint; at most keep + 1 may exist."""
    options = ["--rounds", "3", "--checkpoints", str(tmp_path / "state-all"), "--keep", "1"]
    code, result = rehearse(capsys, counting(tmp_path, "another_file"), *options)
    assert (code, result["grade"]) == (1, "C")
    assert [r["checkpoints"] for r in result["rounds"]] == [1, 2, 3]
    assert "1, 2, 3" in text_of(result, "checkpoints-grow")
    assert result["rounds"][-1]["checkpoint_bytes"] > 0


def test_leaving_without_a_save_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").write_text("5")
    code, result = rehearse(capsys, counting(tmp_path, "unsaved"), "--after", "0.5")
    assert (code, result["grade"]) == (1, "C")
    assert {"unsaved", "lost-steps"} <= rules(result)


def test_exit_zero_would_complete_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, counting(tmp_path, "exit_zero"))
    assert (code, result["grade"]) == (1, "C")
    assert rules(result) == {"exit-code"}
    assert rehearse(capsys, counting(tmp_path, "exit_zero"), "--pass", "C")[0] == 0


def test_saving_but_staying_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = rehearse(capsys, counting(tmp_path, "stays"), window="0.8")
    assert code == 1
    assert "saved, but then did not leave" in text_of(result, "ignored-sigterm")


def test_a_job_that_cannot_start_again_is_an_f(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = (
        "import os, sys\nif os.path.exists(sys.argv[1]): sys.exit(7)\nopen(sys.argv[1], 'w').close()\n"
        + PLAIN
    )
    code, result = rehearse(capsys, script(tmp_path, "once.py", once, str(tmp_path / "been")), window="0.5")
    assert (code, result["grade"]) == (1, "F")
    assert "exit code 7" in text_of(result, "no-return")


def test_children_left_behind_are_ended_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
    )
    command = counting(tmp_path, "saves")
    path = Path(command[1])
    path.write_text(parent + path.read_text())
    code, result = rehearse(capsys, command)
    assert (code, result["grade"]) == (0, "B")
    assert rules(result) == {"left-behind"}
    assert processes.look(int((tmp_path / "child").read_text())) is None


def test_the_log_tells_where_there_is_no_guard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talker = (
        "import os, signal, sys, time\n"
        "told = []\nsignal.signal(signal.SIGTERM, lambda *_: told.append(1))\n"
        "first = int(open(sys.argv[1]).read()) if os.path.exists(sys.argv[1]) else 0\n"
        "print(f'<<from {first}>>', flush=True)\n"
        "for n in range(first + 1, 100000):\n"
        "    time.sleep(0.01)\n    print(f'[{n}/100000] loss', flush=True)\n"
        "    if told:\n        open(sys.argv[1], 'w').write(str(n))\n        print(f'kept {n}', "
        "flush=True); sys.exit(75)\n"
    )
    patterns = [
        "--step-pattern",
        r"\[(\d+)/",
        "--save-pattern",
        r"kept (?P<step>\d+)",
        "--resume-pattern",
        r"<<from (\d+)",
    ]
    code, result = rehearse(capsys, script(tmp_path, "talker.py", talker, str(tmp_path / "n")), *patterns)
    assert (code, result["grade"]) == (0, "A")
    [facts] = result["rounds"]
    assert facts["saved_step"] == facts["resumed_step"]
    assert not facts["says_itself"]


def test_without_proc_it_still_grades(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "supported", lambda: False)
    code, result = rehearse(capsys, counting(tmp_path, "saves"))
    assert (code, result["grade"]) == (0, "A")
    code, result = rehearse(capsys, counting(tmp_path, "swallows", name="b.py"), window="0.5")
    assert "was still there" in text_of(result, "ignored-sigterm")


def test_the_same_seed_chooses_the_same_moments() -> None:
    from ebbtide_workload.rehearse.moments import choose

    assert choose(7, 5, 1, 9) == choose(7, 5, 1, 9) != choose(8, 5, 1, 9)


def test_the_report_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "--window", "30", *QUICK, "--", *counting(tmp_path, "saves")]) == 0
    said = capsys.readouterr()
    assert "Grade: A   preemption costs this job seconds" in said.out
    assert "nothing lost" in said.out
    assert "life 1: step" in said.out
    assert "round 1 of 1" in said.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name one thing to rehearse"),
        (["--rounds", "0", "--", "true"], 2, "--rounds"),
        (["--grace", "0", "--", "true"], 2, "--grace"),
        (["--", "/no/such/program"], 3, "cannot start"),
        (["--after", "9..1", "--", "true"], 3, "from low to high"),
        (["--step-pattern", "step", "--", "true"], 3, "needs a group"),
        (["--", sys.executable, "-c", ""], 3, "done before it could be preempted"),
        (["--", sys.executable, "-c", "raise SystemExit(4)"], 3, "exit code 4"),
    ],
)
def test_what_cannot_be_held_says_why(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rehearse", *words]) == code
    assert said in capsys.readouterr().err


def test_nothing_is_left_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rehearse(capsys, counting(tmp_path, "saves", name="unmistakable_name.py"))
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            assert b"unmistakable_name.py" not in words


@pytest.mark.parametrize(
    ("prepare", "does"),
    [
        ("pass", "default"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "ignores"),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", "handles"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})", "handles"),
    ],
)
def test_what_a_process_does_with_sigterm_is_read_from_the_kernel(prepare: str, does: str) -> None:
    text = f"import signal, sys\n{prepare}\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.sigterm_handler(process.pid) == does


def test_a_supervisor_that_waits_for_signals_gets_them() -> None:
    text = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nprint('ready', "
        "flush=True)\n"
        "signal.sigtimedwait({signal.SIGTERM}, 30)"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = {processes.sigterm_handler(process.pid) for _ in range(200)}
        process.terminate()
    assert seen == {"handles"}
