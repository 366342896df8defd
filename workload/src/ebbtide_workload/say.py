"""Telling a person, on stderr, and a machine, in a journal of JSON lines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from . import clock

MAX_JOURNAL_BYTES = 1 << 20


def say(text: str) -> None:
    """One line on stderr: `ebbtide 21:04:05Z rank 2: text`. A closed stderr is no reason to stop a
    training."""
    if os.environ.get("EBBTIDE_QUIET") == "1":
        return
    rank = os.environ.get("RANK")
    who = f" rank {rank}" if rank else ""
    line = f"ebbtide {clock.utc_now():%H:%M:%SZ}{who}: {text}\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def duration(seconds: float) -> str:
    """Seconds as people read them: `0.84 s`, `12.3 s`, `4 min 50 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def size(count: float) -> str:
    """Bytes as people read them, in powers of 1000: `3.5 TB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit always returns")


class Journal:
    """Appends events as JSON lines to every path given: `{"event": "saved", "at": "...", "pid": 7, ...}`.

    Each line is one write in append mode, so that several processes may share a file. A file past
    MAX_JOURNAL_BYTES is set aside as `NAME.1`, replacing the one before. Writing never raises: a full disk
    must not stop the training; the path that failed is dropped and said so once.
    """

    def __init__(self, *paths: Path | None) -> None:
        self._paths = [path for path in paths if path is not None]

    @classmethod
    def from_environment(cls, *paths: Path | None) -> Journal:
        """The given paths and what EBBTIDE_JOURNAL names."""
        extra = os.environ.get("EBBTIDE_JOURNAL")
        return cls(*paths, Path(extra) if extra else None)

    def write(self, event: str, **facts: object) -> None:
        """Append one event with its facts; values must be JSON."""
        line = {
            "event": event,
            "at": clock.utc_now().isoformat(timespec="milliseconds"),
            "pid": os.getpid(),
            **facts,
        }
        data = (json.dumps(line) + "\n").encode()
        for path in list(self._paths):
            try:
                _append(path, data)
            except OSError as error:
                self._paths.remove(path)
                say(f"no journal at {path} from here on: {error}")


def read_journal(path: Path) -> list[dict[str, object]]:
    """The events in a journal, oldest first; lines that are torn are left out, a missing file is empty."""
    events: list[dict[str, object]] = []
    for part in (path.with_name(path.name + ".1"), path):
        try:
            text = part.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                events.append(event)
    return events


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags, 0o644)
    try:
        full = os.fstat(fd).st_size > MAX_JOURNAL_BYTES
        os.write(fd, data)
    finally:
        os.close(fd)
    if full:
        path.replace(path.with_name(path.name + ".1"))
