"""Hearing what a job does: from the lines it prints and from the file its guard writes."""

from __future__ import annotations

import json
import queue
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from typing import IO

from .. import progress
from ..clock import monotonic
from .model import Event, RehearsalError

_STEP = r"\b(?:global[_ ]?)?step\D{0,3}(\d+)"
_BAR = r"\|\s*(\d+)/\d+ \["  # a progress bar's count
STEP = rf"(?i){_STEP}|\b(?:iteration|iter)\b\D{{0,3}}(\d+)|{_BAR}"
SAVE = rf"(?i)\b(?:saved|wrote)\b.*?{_STEP}"
RESUME = rf"(?i)\bresum(?:ed|ing)\b.*?{_STEP}"


@dataclass(frozen=True)
class Patterns:
    """How steps, completed saves and resumes look in the job's output; the step is group "step" or the first
    group."""

    step: Pattern[str]
    save: Pattern[str]
    resume: Pattern[str]

    @classmethod
    def of(cls, step: str | None, save: str | None, resume: str | None) -> Patterns:
        """Raises RehearsalError when a pattern does not compile or has no group."""
        return cls(_compiled(step or STEP), _compiled(save or SAVE), _compiled(resume or RESUME))

    def read(self, line: str, t: float) -> Event | None:
        """The event told by a line, if any. A line of JSON as written by `progress.record` counts as the
        job's own."""
        if line.startswith('{"event"'):
            own = parse_progress(line)
            if own is not None:
                return Event(own.event, own.step, t, own.pid)
        for name, pattern in (("resume", self.resume), ("save_end", self.save), ("step", self.step)):
            match = pattern.search(line)
            if match:
                return Event(name, _number(match), t, source="log")
        return None


def _compiled(pattern: str) -> Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise RehearsalError(f"pattern {pattern!r} is not a regular expression: {error}") from error
    if compiled.groups < 1:
        raise RehearsalError(f"pattern {pattern!r} needs a group around the step, such as (\\d+)")
    return compiled


def _number(match: re.Match[str]) -> int | None:
    text = match.groupdict().get("step") or next((g for g in match.groups() if g), "")
    return int(text) if text.isdigit() else None


def parse_progress(line: str) -> Event | None:
    """One line of a progress file; None when it is torn or not ours."""
    try:
        said = json.loads(line)
        event, step = said["event"], said.get("step")
        if event not in progress.EVENTS:
            return None
        return Event(event, None if step is None else int(step), float(said["t"]), int(said["pid"]))
    except (ValueError, KeyError, TypeError):
        return None


class ProgressTail:
    """Reads what was appended to a progress file since the last look; half-written lines wait for their
    end."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Event]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        events = (parse_progress(line.decode("utf-8", "replace")) for line in lines)
        return [event for event in events if event is not None]


class LineReader:
    """Reads a stream of lines in a thread of its own and turns them into events as they come."""

    def __init__(self, stream: IO[str], patterns: Patterns, echo: IO[str] | None = None) -> None:
        self._stream, self._patterns, self._echo = stream, patterns, echo
        self._heard: queue.Queue[Event] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            if self._echo is not None:
                self._echo.write("    | " + line)
            event = self._patterns.read(line, monotonic())
            if event is not None:
                self._heard.put(event)

    def wait(self, timeout_s: float) -> list[Event]:
        """Everything heard so far; waits up to `timeout_s` for the first of it."""
        events: list[Event] = []
        try:
            events.append(self._heard.get(timeout=timeout_s) if timeout_s > 0 else self._heard.get_nowait())
            while True:
                events.append(self._heard.get_nowait())
        except queue.Empty:
            return events

    def join(self) -> None:
        """Wait for the end of the stream, which comes with the end of its writers, and let go of it."""
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._stream.close()
