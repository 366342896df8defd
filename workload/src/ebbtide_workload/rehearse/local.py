"""A job started here, treated as a container would be: one main process, and when it ends, everything
ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .. import progress
from ..clock import monotonic
from . import processes
from .listen import LineReader, Patterns, ProgressTail
from .model import Delivery, Ending, Event, ProcessFact, RehearsalError

LOOK_EVERY_S = 0.1
_POLL_S = 0.02


class LocalRun:
    """One life of a local command. Call `expire` when done with it, whatever happened."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str,
        number: int,
        patterns: Patterns,
        grace_s: float,
        as_pid1: bool,
        echo: IO[str] | None = None,
    ) -> None:
        """Start `command`. Raises RehearsalError when it cannot be started."""
        path = str(Path(folder) / f"progress-{number}.jsonl")
        self._marker = f"{progress.ENV}={path}"
        self._grace_s, self._as_pid1, self._program = grace_s, as_pid1, Path(command[0]).name
        self._tail = ProgressTail(path)
        self.started_t = monotonic()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=_environment(path, grace_s),
                start_new_session=True,
            )
        except OSError as error:
            raise RehearsalError(f"cannot start {command[0]!r}: {error.strerror or error}") from error
        self._notified_t: float | None = None
        self._told: dict[int, bool] = {}
        self._facts: dict[int, ProcessFact] = {}
        self._alive: dict[int, processes.Seen] = {}
        self._left_behind: list[str] = []
        self._killed = False
        self._swept = False
        self._next_look_t = 0.0
        assert self._process.stdout is not None
        self._reader = LineReader(self._process.stdout, patterns, echo)

    def poll(self, timeout_s: float) -> list[Event]:
        deadline = monotonic() + timeout_s
        while True:
            events = self._tail.read() + self._reader.wait(0)
            self._look_again()
            left_s = deadline - monotonic()
            if events or left_s <= 0 or self._process.poll() is not None:
                return self._note_told(events)
            try:
                self._process.wait(min(_POLL_S, left_s))
            except subprocess.TimeoutExpired:
                continue

    def _note_told(self, events: list[Event]) -> list[Event]:
        for event in events:
            if event.event == "notice":
                self._told[event.pid] = True
        return sorted(events, key=lambda e: e.t)

    def running(self) -> bool:
        if self._process.poll() is None:
            return True
        self._sweep(by_us=False)
        return False

    def notify(self) -> Delivery:
        """SIGTERM to the main process alone, as a kubelet does. A kernel drops it when process 1 has no
        handler."""
        main = self._process.pid
        family = processes.family(main, self._marker) if processes.supported() else []
        for seen in family:
            self._alive[seen.pid] = seen
            self._facts[seen.pid] = ProcessFact(
                seen.pid,
                processes.name_of(seen.pid),
                seen.pid == main,
                processes.sigterm_handler(seen.pid),
                None,
                False,
            )
        handler = self._facts[main].handler if main in self._facts else "unknown"
        name = self._facts[main].name if main in self._facts else self._program
        dropped = self._as_pid1 and handler in ("default", "ignores")
        self._notified_t = monotonic()
        if not dropped:
            self._told[main] = True
            self._process.send_signal(signal.SIGTERM)
        return Delivery(not dropped, f"{name} (pid {main})", self._grace_s, self._notified_t)

    def _look_again(self) -> None:
        """Note which of the known processes have ended since the notice."""
        now = monotonic()
        if self._notified_t is None or self._swept or now < self._next_look_t:
            return
        self._next_look_t = now + LOOK_EVERY_S
        for pid, seen in list(self._alive.items()):
            found = processes.look(pid)
            if found is None or found.start != seen.start:
                self._gone(pid, now - self._notified_t)

    def _gone(self, pid: int, after_s: float | None) -> None:
        del self._alive[pid]
        fact = self._facts[pid]
        self._facts[pid] = ProcessFact(fact.pid, fact.name, fact.main, fact.handler, after_s, fact.told)

    def expire(self) -> None:
        """The deadline: SIGKILL for everything."""
        if self._process.poll() is None:
            self._killed = True
        self._sweep(by_us=True)

    def _sweep(self, *, by_us: bool) -> None:
        """End what still lives. When the main process left by itself, those are the ones it left behind."""
        if self._swept:
            return
        self._swept = True
        now = monotonic()
        if self._process.poll() is None:
            self._process.kill()
        elif self._notified_t is not None:
            for pid in list(self._alive):  # whatever still lives now ends with the main process
                self._gone(pid, now - self._notified_t)
        if not processes.supported():
            self._kill_group()
        rest = processes.family(self._process.pid, self._marker) if processes.supported() else []
        for seen in rest:
            if seen.pid != self._process.pid and not by_us:
                self._left_behind.append(processes.name_of(seen.pid))
            processes.kill(seen)
        self._process.wait()
        self._reader.join()

    def _kill_group(self) -> None:
        """Where processes cannot be seen: at least those that stayed in the main one's group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def ending(self) -> Ending:
        code = self._process.returncode
        return Ending(None if code is None else (128 - code if code < 0 else code), self._killed)

    def processes(self) -> tuple[ProcessFact, ...]:
        return tuple(
            ProcessFact(f.pid, f.name, f.main, f.handler, f.gone_after_s, self._told.get(pid, False))
            for pid, f in sorted(self._facts.items(), key=lambda item: (not item[1].main, item[0]))
        )

    def left_behind(self) -> tuple[str, ...]:
        return tuple(self._left_behind)

    def counted_as_failure(self) -> bool:
        return False


def _environment(progress_path: str, grace_s: float) -> dict[str, str]:
    """Ours, and what a pod would know besides: the grace it has. Output unbuffered, so that steps are seen
    in time."""
    known = {"EBBTIDE_GRACE_S": f"{grace_s:g}", **os.environ}
    return {**known, progress.ENV: progress_path, "PYTHONUNBUFFERED": "1"}
