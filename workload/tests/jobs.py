"""Real processes for tests: written as scripts, watched through their output, never waited for without a
limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
LIMIT_S = 120.0

PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
import ebbtide_workload
from ebbtide_workload import Checkpoints, Guard

sys.stdout.reconfigure(line_buffering=True)  # whole lines, though threads and children write as well

def load(folder):
    print("loaded", (folder / "step").read_text(), flush=True)
"""


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, without anything that would make a job think it is in a cluster."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EBBTIDE_", "KUBERNETES_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"):
        kept.pop(name, None)
    return {**kept, "PYTHONPATH": str(SOURCE), **extra}


def eventually(holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until `holds()`; fails with `what` after the limit."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


class Job:
    """One started command; `out` is everything it printed so far, stderr included."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)

    @property
    def out(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def until(self, text: str, times: int = 1) -> None:
        """Wait until it printed `text` so many times."""

        def printed() -> bool:
            if self.out.count(text) >= times:
                return True
            assert self.process.poll() is None or self.out.count(text) >= times, (
                f"ended with {self.process.returncode} before saying {text!r}:\n{self.out}"
            )
            return False

        eventually(printed, f"{text!r} from:\n{self.out}")

    def signal(self, signum: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(signum)

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s:\n{self.out}") from None

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)


class Jobs:
    """Starts jobs in a folder of their own and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jobs: list[Job] = []

    def script(self, body: str) -> Path:
        """A Python file with the preamble and `body`."""
        path = self.folder / f"job-{len(list(self.folder.glob('job-*.py')))}.py"
        path.write_text(PREAMBLE + textwrap.dedent(body), encoding="utf-8")
        return path

    def start(self, *command: str | Path, **env: str) -> Job:
        log = self.folder / f"log-{len(self._jobs)}"
        job = Job([str(word) for word in command], log, environment(**env))
        self._jobs.append(job)
        return job

    def python(self, body: str, *args: str | Path, **env: str) -> Job:
        """Start a script made of `body`."""
        return self.start(sys.executable, self.script(body), *args, **env)

    def ebb(self, *args: str | Path, **env: str) -> Job:
        """Start `ebb` with arguments."""
        return self.start(sys.executable, "-m", "ebbtide_workload", *args, **env)

    def stop_all(self) -> None:
        for job in self._jobs:
            job.stop()
