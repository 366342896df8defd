"""The processes of a job and what they do with SIGTERM, read from /proc. Without /proc only the main one is
known."""

from __future__ import annotations

import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path

from .launchers import wrapped

_PROC = Path("/proc")
_SIGTIMEDWAIT = {"x86_64": b"128", "aarch64": b"137"}


def supported() -> bool:
    """Whether this system shows its processes in /proc."""
    return (_PROC / "self" / "status").exists()


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty when the process is gone or not ours to read."""
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class Seen:
    """A live process. `start` (clock ticks since boot) tells it from a later process with the same number."""

    pid: int
    parent: int
    start: int


def look(pid: int) -> Seen | None:
    """The process, or None when it is gone or only waits to be reaped."""
    stat = _read(pid, "stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Seen(pid, int(fields[1]), int(fields[19]))


def family(main: int, marker: str) -> list[Seen]:
    """The main process, its descendants, and every orphan whose environment carries `marker`
    ("NAME=value")."""
    everyone = [
        seen for seen in (look(int(p.name)) for p in _PROC.iterdir() if p.name.isdigit()) if seen is not None
    ]
    parents: dict[int, int] = {seen.pid: seen.parent for seen in everyone}
    wanted = marker.encode()
    ours: set[int] = {main}

    def belongs(pid: int) -> bool:
        chain: list[int] = []
        while pid in parents and pid not in ours and pid not in chain:
            chain.append(pid)
            pid = parents[pid]
        if pid in ours:
            ours.update(chain)
            return True
        return False

    return [s for s in everyone if belongs(s.pid) or (s.pid != os.getpid() and wanted in _environment(s.pid))]


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def name_of(pid: int) -> str:
    """How a person would call the process: program and script, such as "python train.py"."""
    words = [w.decode("utf-8", "replace") for w in _read(pid, "cmdline").split(b"\0") if w]
    if not words:
        return _read(pid, "comm").decode("utf-8", "replace").strip() or f"process {pid}"
    program = Path(words[0]).name
    interpreter = program.startswith(("python", "perl", "ruby", "node"))
    if not interpreter and program not in ("sh", "bash", "dash", "ash", "zsh", "env"):
        return program
    rest = words[1:]
    if "-m" in rest[:3] and rest.index("-m") + 1 < len(rest):
        return f"{program} -m {rest[rest.index('-m') + 1]}"
    if "-c" in rest[:3]:
        return f"{program} -c"
    script = next((w for w in rest if not w.startswith("-")), None)
    return program if script is None else f"{program} {Path(script).name}"


def command_line(pid: int) -> list[str]:
    """The words the process was started with."""
    return [w.decode("utf-8", "replace") for w in _read(pid, "cmdline").split(b"\0") if w]


def sigterm_handler(pid: int) -> str:
    """What the process does with SIGTERM: "handles", "ignores", "default", or "unknown".

    Blocking counts as handling: the kernel keeps a blocked signal even for process 1, and supervisors wait
    for it. While one waits in sigtimedwait the signal does not show as blocked, although the kernel still
    keeps it.
    """
    bit = 1 << (signal.SIGTERM - 1)
    masks: dict[bytes, int] = {}
    for line in _read(pid, "status").splitlines():
        key, _, value = line.partition(b":")
        if key in (b"SigBlk", b"SigCgt", b"SigIgn"):
            masks[key] = int(value.strip(), 16)
    if len(masks) < 3:
        return "unknown"
    if (masks[b"SigCgt"] | masks[b"SigBlk"]) & bit:
        return "handles"
    if masks[b"SigIgn"] & bit:
        return "ignores"
    return "handles" if _waits_for_signals(pid) or wrapped(command_line(pid)) else "default"


def _waits_for_signals(pid: int) -> bool:
    number = _SIGTIMEDWAIT.get(platform.machine())
    called = _read(pid, "syscall").split()
    return b"sigtimedwait" in _read(pid, "wchan") or (bool(called) and called[0] == number)


def kill(seen: Seen) -> None:
    """SIGKILL, unless the number already belongs to another process."""
    now = look(seen.pid)
    if now is None or now.start != seen.start:
        return
    try:
        os.kill(seen.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
