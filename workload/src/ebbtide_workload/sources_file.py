"""A file as a messenger: a preStop hook, a launcher or `ebb run` writes it, every process that can read it
hears.

Its content is one of: nothing (deadline = time of writing plus the grace), an RFC 3339 instant, or JSON such
as `{"deadline": "2026-11-30T21:05:00Z", "reason": "preStop"}` or `{"grace_s": 120}`.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from . import clock
from .deadline import Heard, parse_instant

LEFTOVER_S = 60.0
"""A file whose deadline passed longer ago than this is from an earlier preemption."""


class FileSource:
    """Looks at one path. A file that cannot be understood still is a notice: its time and the grace are
    used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def look(self, grace_s: float) -> Heard | None:
        """The notice if the file is new or was changed since the last look, else None."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_size)
            if mark == self._seen:
                return None
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        self._seen = mark
        written = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
        deadline, reason = _read(text, written, grace_s)
        now = clock.utc_now()
        if deadline < now - timedelta(seconds=LEFTOVER_S):
            return None
        return Heard("file", deadline, reason or f"notice file {self._path}", now)


def write_notice(path: Path, deadline: datetime, reason: str) -> None:
    """Write a notice so that readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    temp.write_text(json.dumps({"deadline": deadline.isoformat(), "reason": reason}) + "\n", encoding="utf-8")
    temp.replace(path)


def _read(text: str, written: datetime, grace_s: float) -> tuple[datetime, str]:
    fallback = written + timedelta(seconds=grace_s)
    try:
        return parse_instant(text), ""
    except ValueError:
        pass
    try:
        said = json.loads(text)
    except ValueError:
        return fallback, ""
    if not isinstance(said, dict):
        return fallback, ""
    reason = str(said.get("reason", ""))
    try:
        if "deadline" in said:
            return parse_instant(str(said["deadline"])), reason
        return written + timedelta(seconds=float(said.get("grace_s", grace_s))), reason
    except (TypeError, ValueError, OverflowError):
        return fallback, reason
