"""The processes below us, read from /proc: who is whose child, what each does with SIGTERM, who launched
torch workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_TERM_BIT = 1 << (signal.SIGTERM - 1)
ELASTIC_MARK = b"TORCHELASTIC_RUN_ID="
ELASTIC_LIMIT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
ELASTIC_DEFAULT_S = 30.0


class Process(NamedTuple):
    """One process as it is now. `start` tells it from a later one with the same number; `command` is for
    people."""

    pid: int
    parent: int
    start: str
    command: str
    catches: bool
    ignores: bool
    zombie: bool
    elastic: bool

    @property
    def key(self) -> tuple[int, str]:
        return self.pid, self.start

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})"


def below(root: int) -> dict[int, Process]:
    """Every descendant of `root`, by pid; those that vanish while being read are left out."""
    parents = _parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, Process] = {}
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        process = look(pid)
        if process is not None:
            found[pid] = process
            waiting.extend(children.get(pid, ()))
    return found


def look(pid: int) -> Process | None:
    """One process, None when there is none."""
    stat = _read(pid, "stat")
    status = _read(pid, "status")
    if not stat or not status:
        return None
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    masks = dict(
        line.split(b":", 1) for line in status.splitlines() if line.startswith((b"SigCgt", b"SigIgn"))
    )
    return Process(
        pid=pid,
        parent=int(fields[1]),
        start=fields[19].decode(),
        command=_command(pid) or name.decode(errors="replace"),
        catches=bool(int(masks.get(b"SigCgt", b"0"), 16) & _TERM_BIT),
        ignores=bool(int(masks.get(b"SigIgn", b"0"), 16) & _TERM_BIT),
        zombie=fields[0] in (b"Z", b"X"),
        elastic=ELASTIC_MARK in _read(pid, "environ"),
    )


def elastic_limit_s(pid: int) -> float:
    """Seconds after which a torch launcher kills its workers once it was signalled, as far as can be seen."""
    words = _read(pid, "cmdline").decode(errors="replace").split("\0")
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ("--shutdown-timeout", "--shutdown_timeout"):
            return _seconds(value or (words[at + 1] if at + 1 < len(words) else ""))
    if not _knows_the_variable(pid):
        return ELASTIC_DEFAULT_S
    for item in _read(pid, "environ").decode(errors="replace").split("\0"):
        if item.startswith(ELASTIC_LIMIT + "="):
            return _seconds(item.partition("=")[2])
    return ELASTIC_DEFAULT_S


def _knows_the_variable(pid: int) -> bool:
    """Whether the torch that the process has loaded reads ELASTIC_LIMIT: its own source is asked, not its
    version."""
    for line in _read(pid, "maps").decode(errors="replace").splitlines():
        path = line.partition("/")
        library = path[1] + path[2]
        if "/torch/lib/" in library:
            source = Path(library.partition("/torch/lib/")[0]) / "torch/distributed/launcher/api.py"
            try:
                return ELASTIC_LIMIT in source.read_text(encoding="utf-8", errors="replace")
            except OSError:
                return False
    return False


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return ELASTIC_DEFAULT_S


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(int(name), "stat").rpartition(b")")[2].split()
            if fields:
                parents[int(name)] = int(fields[1])
    return parents


def _command(pid: int) -> str:
    words = _read(pid, "cmdline").decode(errors="replace").split("\0")
    line = " ".join(word.rpartition("/")[2] if word.startswith("/") else word for word in words).strip()
    return line if len(line) <= 80 else line[:77] + "..."


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
