"""Small jobs for the rehearsal's tests, good and bad, as scripts written into a folder."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"

# Counts steps into a file named by its first argument; `leave` decides what SIGTERM does to it.
_COUNTING = """
import json, os, signal, sys, time
from ebbtide_workload.progress import record

path, told = sys.argv[1], []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))

def save(step):
    record("save_begin", step)
    time.sleep(SAVE_S)
    with open(path + ".new", "w") as file:
        json.dump(step, file)
    os.replace(path + ".new", path)
    record("save_end", step)

first = json.load(open(path)) if os.path.exists(path) else 0
record("resume", first)
for step in range(first + 1, 100_000):
    time.sleep(0.01)
    record("step", step)
    if told:
LEAVE
"""

LEAVES = {
    "saves": """
        record("notice", step); save(step); record("exit", step); sys.exit(85)
    """,
    "saves_stale": """
        record("notice", step); save(step); json.dump(step - 50, open(path, "w")); sys.exit(85)
    """,
    "unsaved": """
        record("notice", step); sys.exit(86)
    """,
    "exit_zero": """
        record("notice", step); save(step); sys.exit(0)
    """,
    "stays": """
        record("notice", step); save(step); told.clear()
    """,
    "swallows": """
        print("bypassing SIGTERM"); told.clear()
    """,
    "another_file": """
        record("notice", step); save(step)
        os.makedirs(path + "-all", exist_ok=True); json.dump(step, open(f"{path}-all/step-{step}", "w"))
        sys.exit(85)
    """,
}

# Only prints; knows nothing of the package and nothing of signals.
PLAIN = """
import time
for step in range(100_000):
    time.sleep(0.01)
    print(f"step {step}  loss 0.5", flush=True)
"""

# Behaves as torchrun's agent does, with a limit of 0.4 s in place of 30 s.
LAUNCHER = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
while child.poll() is None:
    time.sleep(0.01)
    if told:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(0.4)
        except subprocess.TimeoutExpired:
            child.kill(); child.wait()
sys.exit(child.returncode if child.returncode >= 0 else 1)
"""


def counting(folder: Path, leave: str, save_s: float = 0.02, name: str = "train.py") -> list[str]:
    """The command of a job that counts, saves when asked, and leaves as LEAVES[leave] says."""
    body = textwrap.indent(textwrap.dedent(LEAVES[leave]).strip(), " " * 8)
    script = folder / name
    script.write_text(_COUNTING.replace("SAVE_S", str(save_s)).replace("LEAVE", body))
    return [sys.executable, str(script), str(folder / "state")]


def script(folder: Path, name: str, text: str, *arguments: str) -> list[str]:
    """The command of a script with this text."""
    path = folder / name
    path.write_text(text)
    return [sys.executable, str(path), *arguments]


def environment() -> str:
    """PYTHONPATH with which the jobs find the package."""
    return os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
