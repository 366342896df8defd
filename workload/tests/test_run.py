"""`ebb run` as a job meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import Job, Jobs

from ebbtide_workload.checkpoint import Checkpoints
from ebbtide_workload.deadline import Heard, after
from ebbtide_workload.run import environment_of, exit_code
from ebbtide_workload.run_supervisor import Ended

COUNTS = """
def tell(text):
    os.write(1, (text + "\\n").encode())  # a line at once: several processes share the output
got = []
def handler(signum, frame):
    got.append(signum)
    tell(f"{os.getpid()} got {signum}")
signal.signal(signal.SIGTERM, handler)
tell(f"up {os.getpid()}")
end = time.monotonic() + 60
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.7)
tell(f"{os.getpid()} leaves after {len(got)}")
"""

TRAIN = """
def save(folder):
    time.sleep(float(sys.argv[2]))
    (folder / "step").write_text(str(step))
guard = Guard(sys.argv[1])
for step in range(guard.resume(load), 10**9):
    time.sleep(0.02)
    guard.step(step, save)
    if step == 1: print("training", flush=True)
"""


def run(jobs: Jobs, *command: str | Path, options: tuple[str, ...] = ("--grace", "30"), **env: str) -> Job:
    return jobs.ebb("run", *options, "--", *command, **env)


@pytest.mark.parametrize(
    "shell",
    [
        "{python} {script}; true",  # J9: a shell that stays, as PID 1 of a container would
        "{python} {script} & wait",
        "trap 'kill -TERM $pid' TERM; {python} {script} & pid=$!; wait $pid; wait $pid",  # forwards by itself
        "{python} {script} | cat",
    ],
)
def test_under_a_shell_the_trainer_hears_exactly_once(jobs: Jobs, shell: str) -> None:
    script = jobs.script(COUNTS)
    job = run(jobs, "sh", "-c", shell.format(python=sys.executable, script=script))
    job.until("up ")
    job.signal()
    job.signal()
    job.end()
    assert job.out.count("got 15") == 1, job.out
    assert "leaves after 1" in job.out


def test_under_a_launcher_that_handles_only_sigint_all_children_hear_exactly_once(jobs: Jobs) -> None:
    """J10."""
    child = jobs.script(COUNTS)
    job = jobs.ebb(
        "run",
        "--grace",
        "30",
        "--",
        sys.executable,
        jobs.script(
            f"""
            import subprocess
            signal.signal(signal.SIGINT, lambda *a: print("launcher got SIGINT"))
            children = [subprocess.Popen([sys.executable, {str(child)!r}]) for _ in range(3)]
            codes = [each.wait() for each in children]
            print("launcher saw", codes, flush=True)
            """
        ),
    )
    job.until("up ", times=3)
    job.signal()
    job.end()
    assert job.out.count("got 15") == 3, job.out
    assert len(set(re.findall(r"(\d+) got 15", job.out))) == 3
    assert "launcher saw [0, 0, 0]" in job.out, "the launcher was not killed in their place"


AGENT = """
import subprocess
limit_s = float(sys.argv[1])
marked = {**os.environ, "TORCHELASTIC_RUN_ID": "job"}
workers = [subprocess.Popen([sys.executable, *sys.argv[2:]], env=marked)]
class Stop(Exception):
    pass
def stop(signum, frame):
    print("agent got", signum, flush=True)
    raise Stop
signal.signal(signal.SIGTERM, stop)
try:
    codes = [worker.wait() for worker in workers]
except Stop:
    for worker in workers:
        worker.terminate()
    end = time.monotonic() + limit_s
    while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.05)
    for worker in workers:
        if worker.poll() is None:
            print("agent kills", flush=True)
            worker.kill()
    sys.exit(1)
sys.exit(1 if any(codes) else 0)
"""


def test_a_torch_launcher_that_kills_early_does_not_cut_the_save(tmp_path: Path, jobs: Jobs) -> None:
    """J1: the agent would SIGKILL after 1 s here (30 s there), the save takes 3."""
    agent, worker = jobs.script(AGENT), jobs.script(TRAIN)
    job = run(jobs, sys.executable, agent, "1", worker, tmp_path / "ck", "3", "--shutdown-timeout=1")
    job.until("training")
    job.signal()
    assert job.end() == 85, job.out
    assert "would kill its workers after" in job.out
    assert "agent kills" not in job.out
    assert Checkpoints(tmp_path / "ck").newest() is not None


def test_a_torch_launcher_that_waits_long_enough_is_told_and_tells_its_workers(
    tmp_path: Path, jobs: Jobs
) -> None:
    agent, worker = jobs.script(AGENT), jobs.script(TRAIN)
    job = run(jobs, sys.executable, agent, "60", worker, tmp_path / "ck", "1", "--shutdown-timeout", "60")
    job.until("training")
    job.signal()
    assert job.end() == 85, job.out
    assert "agent got 15" in job.out
    assert job.out.count("telling ") == 1, job.out


def test_the_launchers_limit_is_raised_to_the_grace(capsys: pytest.CaptureFixture[str]) -> None:
    def limit(**env: str) -> str:
        return environment_of(env, 297.0, Path("n"), Path("j"))["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]

    assert limit() == "297"
    assert limit(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="600") == "600"
    assert capsys.readouterr().err == ""
    assert limit(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="30") == "297"
    assert "raised" in capsys.readouterr().err


def test_who_ignores_sigterm_is_named(jobs: Jobs, tmp_path: Path) -> None:
    """J4."""
    script = jobs.script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(2)"
    )
    report = tmp_path / "report.json"
    job = run(jobs, sys.executable, script, options=("--grace", "30", "--report", str(report)))
    job.until("up")
    job.signal()
    assert job.end() == 86, job.out
    assert re.search(rf"python\S* {script.name} \(pid \d+\) ignores SIGTERM", job.out), job.out
    (name,) = json.loads(report.read_text())["ignored_sigterm"]
    assert script.name in name


def test_it_never_kills_and_calls_once_more_shortly_before_the_end(jobs: Jobs) -> None:
    script = jobs.script(
        """
        signal.signal(signal.SIGTERM, lambda *a: print("swallowed", flush=True))
        print("up", flush=True)
        for _ in range(60):
            time.sleep(0.1)
        print("left by itself", flush=True)
        """
    )
    job = run(jobs, sys.executable, script, options=("--grace", "6"))
    job.until("up")
    job.signal()
    job.end()
    assert "left by itself" in job.out
    assert "and still runs" in job.out
    assert job.out.count("swallowed") == 1


def test_orphans_are_reaped(jobs: Jobs) -> None:
    job = run(jobs, "sh", "-c", "(sh -c 'sleep 0.2 & sleep 0.3 & exit 0') ; echo up; sleep 60")
    job.until("up")
    time.sleep(1.5)
    states = []
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if name.isdigit() and int(fields[1]) == job.process.pid:
            states.append(fields[0])
    assert states, "the shell is its child"
    assert "Z" not in states
    job.signal()
    assert job.end() == 86


def test_a_save_that_outlives_the_shell_is_waited_for(tmp_path: Path, jobs: Jobs) -> None:
    """The shell dies of something else; its trainer, now an orphan, still saves."""
    script = jobs.script(TRAIN)
    job = run(jobs, "sh", "-c", f"echo shell $$; {sys.executable} {script} {tmp_path / 'ck'} 1.5; true")
    job.until("training")
    shell = int(re.findall(r"shell (\d+)", job.out)[0])
    job.signal()
    job.until("notice from")
    os.kill(shell, signal.SIGKILL)
    assert job.end() == 85, job.out


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 0"), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        (("/etc/passwd",), 126),
        ((), 2),
    ],
)
def test_without_a_notice_the_commands_code_is_passed_on(
    jobs: Jobs, command: tuple[str, ...], code: int
) -> None:
    job = run(jobs, *command)
    assert job.end() == code, job.out


HEARD = Heard("SIGTERM", after(30), "signal SIGTERM", after(0))
SAVED, UNSAVED, CLOSED = (
    {"event": "left", "saved": True},
    {"event": "left", "saved": False},
    {"event": "closed"},
)


@pytest.mark.parametrize(
    ("status", "notice", "events", "code"),
    [
        (1, HEARD, [SAVED], 85),  # a launcher turned its worker's 85 into 1
        (0, HEARD, [SAVED, SAVED], 85),
        (1, HEARD, [SAVED, UNSAVED], 86),
        (1, None, [SAVED], 85),  # the guard heard from the cluster, before any signal
        (0, HEARD, [CLOSED], 0),  # it finished in spite of the notice
        (0, HEARD, [], 86),  # a job wrongly called complete would be lost
        (-15, HEARD, [], 86),
        (143, HEARD, [], 86),
        (3, HEARD, [], 3),  # a crash is a crash
        (0, None, [CLOSED], 0),
        (-9, None, [], 137),
    ],
)
def test_the_exit_code_tells_the_scheduler(
    status: int, notice: Heard | None, events: list[dict[str, object]], code: int
) -> None:
    assert exit_code(Ended(status, notice, (), (), 1.0 if notice else None), events) == code


def test_the_whole_way_with_a_report(tmp_path: Path, jobs: Jobs) -> None:
    script, report = jobs.script(TRAIN), tmp_path / "report.json"
    job = run(
        jobs,
        *(sys.executable, script, tmp_path / "ck", "0.1"),
        options=("--grace", "200", "--report", str(report)),
    )
    job.until("training")
    job.signal()
    assert job.end() == 85, job.out
    said = json.loads(report.read_text())
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    assert said["saved_step"] == newest.step
    assert said["exit_code"] == 85
    assert len(said["told"]) == 1
    order = [event["event"] for event in said["events"] if event["event"] != "noticed"]
    assert order == ["resumed", "saved", "left"], "noticed twice: by the signal and by the file"
    assert re.search(r"3 min (20|1\d) s left", job.out)


def test_a_notice_file_written_by_a_hook_is_passed_on_as_the_signal_and_only_once(
    jobs: Jobs, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    job = run(jobs, sys.executable, jobs.script(COUNTS), EBBTIDE_NOTICE_FILE=str(notice))
    job.until("up ")
    assert jobs.ebb("notice", EBBTIDE_NOTICE_FILE=str(notice)).end() == 0
    job.until("got 15")
    job.signal()
    assert job.end() == 86
    assert job.out.count("got 15") == 1


def test_slurms_signal_reaches_the_job_as_sigterm(jobs: Jobs) -> None:
    job = run(jobs, sys.executable, jobs.script(COUNTS), SLURM_JOB_ID="9")
    job.until("up ")
    job.signal(signal.SIGUSR1)
    job.end()
    assert job.out.count("got 15") == 1


def test_other_signals_are_passed_on_as_they_are(jobs: Jobs) -> None:
    job = run(
        jobs,
        sys.executable,
        jobs.script(
            """
            signal.signal(signal.SIGHUP, lambda *a: (print("reload"), sys.exit(5)))
            print("up", flush=True)
            time.sleep(60)
            """
        ),
    )
    job.until("up")
    job.signal(signal.SIGHUP)
    assert job.end() == 5


def test_the_job_starts_with_signals_as_they_should_be(jobs: Jobs) -> None:
    job = run(jobs, "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    assert job.end() == 0
    assert re.findall(r"SigBlk:\s*(\w+)", job.out) == ["0" * 16]
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", job.out)
    assert int(ignored, 16) & 0x7FFFFFFF == 0, "real-time signals aside"


@pytest.mark.parametrize(
    ("args", "said"),
    [(("--notice-signal", "NOPE"), "NOPE"), ((), "what is to be run")],
)
def test_wrong_use_is_explained(jobs: Jobs, args: tuple[str, ...], said: str) -> None:
    job = jobs.ebb("run", *args, *(["--", "true"] if args else []))
    assert job.end() == 2
    assert said in job.out


@pytest.mark.skipif(
    subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0,
    reason="no new process namespace for this user; run as root",
)
def test_as_process_1_of_a_container(jobs: Jobs, tmp_path: Path) -> None:
    """The kernel drops signals that process 1 has no handler for; ours must still hear and reap."""
    script = jobs.script(COUNTS)
    job = jobs.start(
        *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"),
        *(sys.executable, "-m", "ebbtide_workload", "run", "--grace", "30", "--"),
        *("sh", "-c", f"{sys.executable} {script}; true"),
    )
    job.until("up ")
    (inner,) = [
        int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == job.process.pid
    ]
    os.kill(inner, signal.SIGTERM)
    assert job.end() == 86, job.out
    assert job.out.count("got 15") == 1


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
