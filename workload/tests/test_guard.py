"""The three lines, in real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job, Jobs, environment

from ebbtide_workload.checkpoint import Checkpoints
from ebbtide_workload.checkpoint_times import SaveTimes
from ebbtide_workload.say import read_journal

TRAIN = """
def save(folder):
    print("save of", step, flush=True)
    (folder / "step").write_text(str(step))

guard = Guard(sys.argv[1])
for step in range(guard.resume(load), int(sys.argv[2])):
    print("step", step, flush=True)
    time.sleep(0.02)
    guard.step(step, save)
print("finished", flush=True)
"""


def train(jobs: Jobs, root: Path, total: int = 100_000, **env: str) -> Job:
    return jobs.python(TRAIN, root, str(total), **env)


def timeline(root: Path) -> list[dict[str, object]]:
    return read_journal(root / ".ebbtide" / "timeline.jsonl")


def test_preempted_it_saves_the_step_it_did_last_and_leaves_with_85(tmp_path: Path, jobs: Jobs) -> None:
    job = train(jobs, tmp_path / "ck")
    job.until("step 5\n")
    job.signal()
    assert job.end() == 85, job.out
    done = [int(n) for n in re.findall(r"^step (\d+)$", job.out, re.MULTILINE)]
    assert job.out.count("save of") == 1
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    assert newest.step == done[-1], "not a step is lost"


def test_three_preemptions_in_a_row_never_go_back(tmp_path: Path, jobs: Jobs) -> None:
    """J7: each resumed step is at or after the last completed save, and the timeline shows it."""
    root = tmp_path / "ck"
    for _ in range(3):
        job = train(jobs, root)
        job.until("step ", times=4)
        job.signal()
        assert job.end() == 85, job.out
    last = train(jobs, root, total=25)
    assert last.end() == 0, last.out
    assert "finished" in last.out
    events = timeline(root)
    saved = -1
    for event in events:
        if event["event"] == "resumed":
            assert event["step"] == saved + 1
        if event["event"] == "saved":
            saved = int(str(event["step"]))
    order = [str(event["event"]) for event in events]
    assert order == ["resumed", "noticed", "saved", "left"] * 3 + ["resumed", "closed"]
    listed = jobs.ebb("checkpoints", root, "--verify", "--timeline")
    assert listed.end() == 0, listed.out
    assert listed.out.count("resumed") == 4


def test_a_signal_in_the_middle_of_a_step_waits_for_its_end(tmp_path: Path, jobs: Jobs) -> None:
    """J2: the handler only sets a flag."""
    job = jobs.python(
        """
        half = {}
        def save(folder):
            assert half["a"] == half["b"], "a half-done step must not be saved"
            (folder / "step").write_text(str(half["a"]))
        guard = Guard(sys.argv[1])
        for step in range(guard.resume(load), 1000):
            half["a"] = step
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)
            half["b"] = step
            guard.step(step, save)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 85, job.out
    assert "saved step 2" in job.out


def test_a_signal_in_the_middle_of_a_save_lets_it_end_and_saves_no_second_time(
    tmp_path: Path, jobs: Jobs
) -> None:
    """J2: saving inside the handler would hang or store a torn state."""
    job = jobs.python(
        """
        def save(folder):
            print("save begins")
            (folder / "step").write_text("1")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            (folder / "more").write_text("1")
            print("save ends")
        guard = Guard(sys.argv[1], every_steps=3)
        for step in range(guard.resume(load), 1000):
            guard.step(step, save)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 85, job.out
    assert (job.out.count("save begins"), job.out.count("save ends")) == (1, 1)
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    assert newest.step == 2, "after three steps: 0, 1, 2"
    assert sorted(path.name for path in newest.path.iterdir()) == ["ebbtide-manifest.json", "more", "step"]


def test_a_save_that_fails_at_the_notice_says_so_and_leaves_with_86(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        def save(folder):
            raise OSError(28, "No space left on device")
        guard = Guard(sys.argv[1])
        for step in range(guard.resume(load), 10**9):
            guard.step(step, save)
            if step == 10:
                os.kill(os.getpid(), signal.SIGTERM)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 86, job.out
    assert "No space left on device" in job.out
    assert "NOT SAVED since the start" in job.out
    assert [event["event"] for event in timeline(tmp_path / "ck")][-2:] == ["save_failed", "left"]


def test_a_store_that_cannot_be_released_does_not_change_the_exit_code(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        def save(folder):
            (folder / "step").write_text("x")
        guard = Guard(sys.argv[1])
        def fail():
            raise RuntimeError("the network is down")
        guard.checkpoints.release = fail
        os.kill(os.getpid(), signal.SIGTERM)
        guard.step(0, save)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 85, job.out
    assert "the network is down" in job.out


def test_a_save_that_fails_without_a_notice_is_the_callers_to_handle(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        def save(folder):
            raise RuntimeError("my bug")
        guard = Guard(sys.argv[1], every_steps=5)
        for step in range(guard.resume(load), 100):
            guard.step(step, save)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 1
    assert "my bug" in job.out


def test_preempted_can_be_caught_to_clean_up(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        from ebbtide_workload import Preempted
        def save(folder):
            (folder / "step").write_text("x")
        try:
            with Guard(sys.argv[1]) as guard:
                for step in guard.steps(1000, load=load, save=save):
                    if step == 4:
                        os.kill(os.getpid(), signal.SIGTERM)
        except Preempted as preempted:
            print("caught", preempted.step, preempted.saved, preempted.code)
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """,
        tmp_path / "ck",
    )
    assert job.end() == 0, job.out
    assert "caught 4 True 85" in job.out


@pytest.mark.parametrize("how", ["before the start", "while running"])
def test_a_notice_file_is_heard(tmp_path: Path, jobs: Jobs, how: str) -> None:
    notice = tmp_path / "notice"
    if how == "before the start":
        notice.write_text("")
    job = train(jobs, tmp_path / "ck", EBBTIDE_NOTICE_FILE=str(notice))
    if how == "while running":
        job.until("step 3")
        written = jobs.ebb("notice", "--grace", "120", "--reason", "preStop", EBBTIDE_NOTICE_FILE=str(notice))
        assert written.end() == 0, written.out
    assert job.end() == 85, job.out
    assert "notice from file" in job.out
    if how == "before the start":
        assert "step 0" not in job.out, "no new work is begun"


def test_a_notice_of_the_callers_own_that_came_before_the_guard_counts(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        notice = ebbtide_workload.Notice(grace_s=60).open()
        notice.tell("the queue", reason="its turn is over")
        guard = Guard(sys.argv[1], notice=notice)
        guard.resume(load)
        """,
        tmp_path / "ck",
    )
    assert job.end() == 85, job.out
    assert "notice from the queue: its turn is over" in job.out
    assert "nothing was begun" in job.out


def test_a_window_that_does_not_fit_is_said_and_saves_come_more_often(tmp_path: Path, jobs: Jobs) -> None:
    """J8: p95 = 280 s in a window of 297 s."""
    root = tmp_path / "ck"
    (root / ".ebbtide").mkdir(parents=True)
    times = SaveTimes(root / ".ebbtide" / "save-times.json")
    for _ in range(20):
        times.add(280.0, 10**12)
    job = jobs.python(
        """
        guard = Guard(sys.argv[1], every_s=3600)
        guard.resume(load)
        print("next save in", round(guard._due_s - time.monotonic()))
        """,
        root,
        EBBTIDE_GRACE_S="297",
    )
    assert job.end() == 0, job.out
    assert "the window does not fit" in job.out
    assert "4 min 40 s (p95)" in job.out
    assert "saving more often" in job.out
    seconds = int(re.findall(r"next save in (\d+)", job.out)[0])
    assert 500 < seconds <= 1800
    assert "window_too_short" in [event["event"] for event in timeline(root)]


def test_an_assumed_grace_is_said_to_be_assumed(tmp_path: Path, jobs: Jobs) -> None:
    root = tmp_path / "ck"
    (root / ".ebbtide").mkdir(parents=True)
    SaveTimes(root / ".ebbtide" / "save-times.json").add(60.0, 10**9)
    job = jobs.python("guard = Guard(sys.argv[1]); guard.resume(load)", root)
    assert job.end() == 0
    assert "EBBTIDE_GRACE_S" in job.out


def test_a_main_thread_that_never_comes_to_a_boundary_is_shown(tmp_path: Path, jobs: Jobs) -> None:
    job = jobs.python(
        """
        def stuck_in_a_collective():
            print("stuck")
            while True:
                time.sleep(0.05)
        guard = Guard(sys.argv[1], grace_s=14)
        guard.resume(load)
        stuck_in_a_collective()
        """,
        tmp_path / "ck",
    )
    job.until("stuck")
    job.signal()
    job.until("the main thread is here")
    job.until("in stuck_in_a_collective")


def test_a_job_that_ends_by_itself_lets_the_next_writer_in_at_once(tmp_path: Path, jobs: Jobs) -> None:
    assert train(jobs, tmp_path / "ck", total=3).end() == 0
    checkpoints = Checkpoints(tmp_path / "ck", wait_s=0)
    checkpoints.acquire()
    checkpoints.release()


def test_the_rehearsal_is_told_in_counts_of_finished_steps(tmp_path: Path, jobs: Jobs) -> None:
    watched = tmp_path / "watched"
    job = train(jobs, tmp_path / "ck", EBBTIDE_REHEARSAL_FILE=str(watched))
    job.until("step 5\n")
    job.signal()
    assert job.end() == 85, job.out
    events = [json.loads(line) for line in watched.read_text().splitlines()]
    assert events[0]["event"] == "resume"
    assert events[0]["step"] == 0
    assert [e["event"] for e in events if e["event"] != "step"] == [
        "resume",
        "notice",
        "save_begin",
        "save_end",
        "exit",
    ]
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    assert events[-1]["step"] == newest.step + 1


def test_what_the_package_imports(tmp_path: Path) -> None:
    """Nothing beyond the standard library, and nothing heavy of it: images pay for each start."""
    code = """
import sys
before = set(sys.modules)
import ebbtide_workload
first = sorted(set(sys.modules) - before)
from ebbtide_workload import Guard, Notice, Checkpoints
heavy = sorted(set(sys.modules) & {"asyncio", "ssl", "socket", "http", "logging", "subprocess", "inspect",
    "dataclasses", "urllib.request", "concurrent.futures", "ctypes", "torch", "fsspec", "argparse", "shutil"})
outside = sorted(name.partition(".")[0] for name in set(sys.modules) - before
    if getattr(sys, "stdlib_module_names", None) and name.partition(".")[0] not in sys.stdlib_module_names
    and not name.startswith("ebbtide_workload"))
print(first, heavy, outside)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    first, heavy, outside = re.findall(r"\[[^]]*\]", done.stdout)
    assert (heavy, outside) == ("[]", "[]")
    assert len(first.split(",")) < 12, first


def test_ebb_help_imports_no_subcommand() -> None:
    code = "import sys; from ebbtide_workload.cli import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    for name in ("run", "rehearse", "lint", "window", "guard"):
        assert f"'ebbtide_workload.{name}'" not in done.stdout
    assert "ebb COMMAND --help" in done.stdout


def test_unknown_modes_are_refused(tmp_path: Path) -> None:
    from ebbtide_workload.guard import Guard

    with pytest.raises(ValueError, match="rank0"):
        Guard(tmp_path, writes="some")
