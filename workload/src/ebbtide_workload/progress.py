"""What a job did and when, told to whoever rehearses it.

When the environment variable EBBTIDE_REHEARSAL_FILE names a file, `record` appends one JSON object per line:

    {"event": "step", "step": 41, "t": 8123.4, "pid": 17}

`event` is one of EVENTS, `step` counts finished steps (absent when unknown), `t` is this machine's monotonic
clock in seconds. Without the variable `record` does nothing and costs about as much as calling an empty
function.
"""

from __future__ import annotations

import json
import os

from .clock import monotonic

ENV = "EBBTIDE_REHEARSAL_FILE"
EVENTS = ("step", "notice", "save_begin", "save_end", "resume", "exit")
MIN_STEP_GAP_S = 0.01  # a loop of a million steps a second must not become a writer of a million lines


class Recorder:
    """Appends events to one file; whole lines only, so several processes can share it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._pid = 0
        self._next_step_t = 0.0
        self._held: int | None = None

    def record(self, event: str, step: int | None = None) -> None:
        """Append one event. Steps closer than MIN_STEP_GAP_S are held back; the last one held precedes the
        next other event, so that no notice, save or exit appears before the step it followed."""
        if os.getpid() != self._pid:
            self._open()
        now = monotonic()
        if event == "step":
            if now < self._next_step_t:
                self._held = step
                return
            self._next_step_t = now + MIN_STEP_GAP_S
            self._held = None
        elif self._held is not None:
            held, self._held = self._held, None
            self._write("step", held, now)
        self._write(event, step, now)

    def _open(self) -> None:
        """On first use, and in a fork: a step held back by the parent is the parent's to tell."""
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()
        self._next_step_t = 0.0
        self._held = None

    def _write(self, event: str, step: int | None, now: float) -> None:
        line: dict[str, object] = {"event": event, "t": now, "pid": self._pid}
        if step is not None:
            line["step"] = step
        os.write(self._fd, (json.dumps(line) + "\n").encode())


_path = os.environ.get(ENV)
_recorder: Recorder | None = Recorder(_path) if _path else None


def record(event: str, step: int | None = None) -> None:
    """Tell the rehearsal, if there is one, that `event` happened at `step`. Never raises: a full disk or a
    vanished folder must not stop the training that is being watched."""
    global _recorder
    if _recorder is None:
        return
    try:
        _recorder.record(event, step)
    except OSError:
        _recorder = None
