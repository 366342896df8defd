"""What jobs tell the rehearsal: the little file behind EBBTIDE_REHEARSAL_FILE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from pathlib import Path

from rehearse_jobs import environment

from ebbtide_workload import progress
from ebbtide_workload.rehearse import processes
from ebbtide_workload.rehearse.listen import Patterns, ProgressTail, parse_progress


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_the_variable_it_costs_next_to_nothing() -> None:
    assert progress.ENV not in os.environ
    per_call_s = min(timeit.repeat(lambda: progress.record("step", 1), number=20_000, repeat=5)) / 20_000
    assert per_call_s < 1e-6


def test_events_are_whole_lines_with_step_time_and_process(tmp_path: Path) -> None:
    recorder = progress.Recorder(str(tmp_path / "p"))
    recorder.record("resume", 7)
    recorder.record("notice")
    first, second = lines(tmp_path / "p")
    assert (first["event"], first["step"], first["pid"]) == ("resume", 7, os.getpid())
    assert "step" not in second
    assert isinstance(first["t"], float)


def test_a_fast_loop_writes_few_lines_and_loses_no_step_before_an_event(tmp_path: Path) -> None:
    recorder = progress.Recorder(str(tmp_path / "p"))
    for step in range(1, 2001):
        recorder.record("step", step)
    recorder.record("save_begin", 2000)
    told = lines(tmp_path / "p")
    assert len(told) < 1000
    assert (told[-1]["event"], told[-1]["step"]) == ("save_begin", 2000)
    assert max(int(str(e["step"])) for e in told if e["event"] == "step") == 2000


def test_a_fork_tells_for_itself(tmp_path: Path) -> None:
    script = (
        "import os\nfrom ebbtide_workload.progress import record\nrecord('resume', 1)\n"
        "child = os.fork()\nif child == 0:\n    record('step', 2)\n    os._exit(0)\nos.waitpid(child, 0)\n"
    )
    env = {**os.environ, "PYTHONPATH": environment(), progress.ENV: str(tmp_path / "p")}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    assert len({e["pid"] for e in lines(tmp_path / "p")}) == 2


def test_a_file_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    script = "from ebbtide_workload.progress import record\nrecord('step', 1); record('exit'); print('fine')"
    env = {**os.environ, "PYTHONPATH": environment(), progress.ENV: str(tmp_path / "no" / "folder" / "p")}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "fine\n"


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "p"
    whole = json.dumps({"event": "step", "step": 3, "t": 1.0, "pid": 9})
    path.write_text(whole[:10])
    tail = ProgressTail(str(path))
    assert tail.read() == []
    with path.open("a") as file:
        file.write(whole[10:] + "\nnonsense\n" + json.dumps({"event": "unheard", "t": 1, "pid": 1}) + "\n")
    assert [(e.event, e.step, e.pid) for e in tail.read()] == [("step", 3, 9)]
    assert tail.read() == []


def test_torn_or_foreign_lines_are_no_events() -> None:
    for text in ("", "{", "[]", '{"event": "step"}', '{"event": "step", "t": "x", "pid": 1}'):
        assert parse_progress(text) is None


def test_what_the_log_says_without_being_asked() -> None:
    read = Patterns.of(None, None, None).read
    told = {
        "step 41  loss 0.5": ("step", 41),
        "Epoch 1 | Step: 1200/5000": ("step", 1200),
        "iteration 7": ("step", 7),
        " 10%|#         | 15/150 [00:10<01:30]": ("step", 15),
        "{'global_step': 90}": ("step", 90),
        "Saved checkpoint at step 50": ("save_end", 50),
        "resumed from step 50": ("resume", 50),
        "Resuming training at global_step=12": ("resume", 12),
    }
    for line, wanted in told.items():
        event = read(line, 1.0)
        assert event is not None, line
        assert (event.event, event.step, event.source) == (*wanted, "log"), line
    assert read("loading the model", 1.0) is None
    assert read("footstep 3", 1.0) is None


def test_a_process_is_called_as_people_call_it(tmp_path: Path) -> None:
    script = tmp_path / "my_trainer.py"
    script.write_text("import sys; print('ready', flush=True); sys.stdin.read()")
    words = [sys.executable, "-u", str(script)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.name_of(process.pid).endswith("my_trainer.py")
        assert str(tmp_path) not in processes.name_of(process.pid)
