"""The lab of examples/local-kubelet as this ring uses it: through its programs, as its README says."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.kube.places import MissingPrograms, places
from ebbtide.kube.programs import CONTROL_PLANE
from tests.e2e.processes import Json, json_lines, run

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "local-kubelet"
_LAB: list[str | Path] = [sys.executable, EXAMPLE / "lab.py"]
_DISK = Path("/var/tmp")  # containers' file systems are stacked: memory or another stack will not do
_PREFIX = "ebbtide-e2e-"
_CONTAINERS = "hosts/*/disk/containerd/io.containerd.runtime.v2.task/k8s.io/*"
_LOOK_EVERY_S = 0.1


def lacking() -> str:
    """What this machine lacks, in words; empty when real kubelets can run here."""
    checked = subprocess.run([*_LAB, "check"], capture_output=True, text=True, timeout=60)
    told = "" if checked.returncode == 0 else checked.stdout + checked.stderr
    try:
        places().require(CONTROL_PLANE)
    except MissingPrograms as missing:
        told += missing.message
    return told


@dataclass(frozen=True, slots=True)
class Lab:
    """A folder with machines. settings: what Ebbtide's provider `exec` needs for them."""

    folder: Path
    settings: dict[str, str]

    def call(self, verb: str, **asked: object) -> Json:
        """One of the programs, as Ebbtide calls it."""
        command = shlex.split(self.settings[f"EBBTIDE_EXEC_{verb.upper()}"])
        answer: Json = json.loads(run(command, stdin=json.dumps({"verb": verb, **asked})))
        return answer

    def freeze(self, host: str, program: str) -> None:
        """Stop a program of a machine where it stands; all else of it goes on."""
        inner = self.inner_pids()[host]
        children = Path(f"/proc/{inner}/task/{inner}/children").read_text().split()
        named = [pid for pid in children if _text(Path(f"/proc/{pid}/comm")).strip() == program]
        os.kill(int(named[0]), signal.SIGSTOP)

    def power_off(self) -> None:
        """All machines, at once and without asking."""
        for instance in self._instances():
            assert self.call("stop", node_uid=instance["node_uid"])["stopped"]

    def said(self, verb: str, node: str) -> list[Json]:
        """What a program answered for a node, and when, from the lab's journal."""
        lines = json_lines(self.folder / "journal.jsonl")
        return [line for line in lines if (line["verb"], line["node"]) == (verb, node)]

    def inner_pids(self) -> dict[str, int]:
        """Process 1 of each machine, by its host."""
        return {each["host"]: int(each["inner"]) for each in self._instances()}

    def _instances(self) -> list[Json]:
        texts = [_text(file) for file in self.folder.glob("hosts/*/instance.json")]
        return [json.loads(text) for text in texts if text]


@contextmanager
def lab(image_content: dict[str, Path]) -> Iterator[Lab]:
    """A new lab that is gone at the end, whatever happens: with this process, or at the next run of this."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_DISK))
    folder.chmod(0o755)  # PostgreSQL runs as another user in there
    with (folder / "cord").open("w") as cord:
        fcntl.flock(cord, fcntl.LOCK_EX)
        try:
            more = [
                argument for name, file in image_content.items() for argument in ("--image", f"{name}={file}")
            ]
            told = run([*_LAB, "make", folder, *more])
            exports = re.findall(r"^export (\w+)=(.*)$", told, re.MULTILINE)
            yield Lab(folder, {name: shlex.split(value)[0] for name, value in exports})
        finally:
            containers = {path.name for path in folder.glob(_CONTAINERS)}
            run([*_LAB, "clear", folder])
            assert _left(folder, containers) == []


def _left(folder: Path, containers: set[str]) -> list[str]:
    """What of a cleared lab is still there: processes, mounts, cgroups, files."""
    commands = {path: _text(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    found = [f"process {path.parent.name}: {text}" for path, text in commands.items() if str(folder) in text]
    found += [
        f"mount {line}" for line in _text(Path("/proc/self/mounts")).splitlines() if str(folder) in line
    ]
    groups = Path("/sys/fs/cgroup").glob("**/k8s.io/*")
    found += [f"cgroup {path}" for path in groups if path.name in containers]
    return found + ([str(folder)] if folder.exists() else [])


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # a process or a machine that goes just now
        return ""


def _sweep() -> None:
    """What runs left that were killed."""
    run([*_LAB, "sweep", _DISK / _PREFIX])


@dataclass(slots=True)
class Mounts:
    """Looks all the time at which machines have a volume mounted for a pod.

    seen: each combination of hosts that had it at once
    """

    lab: Lab
    volume: str
    seen: set[frozenset[str]] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watched(self) -> Iterator[None]:
        looker = threading.Thread(target=self._look_on)
        looker.start()
        try:
            yield
        finally:
            self._ended.set()
            looker.join()

    def _look_on(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            pids = self.lab.inner_pids()
            self.seen.add(frozenset(host for host, pid in pids.items() if self._has(pid)))

    def _has(self, pid: int) -> bool:
        mounts = _text(Path(f"/proc/{pid}/mountinfo")).splitlines()
        return any("kubernetes.io~local-volume" in line and self.volume in line for line in mounts)


def environment() -> dict[str, str]:
    """Ours, where Debian keeps programs for root included."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"}
