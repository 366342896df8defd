"""A right first process of a container: starts one command, reaps, tells the right processes once, waits for
them.

It never kills. What is still there when the grace is over is killed by whoever set the grace.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from . import clock
from .deadline import Heard, after
from .run_processes import Process, below, elastic_limit_s
from .run_tree import Telling
from .say import duration, say
from .sources_file import FileSource, write_notice

LOOK_S = 0.25
LAST_CALL_S = 5.0
LINGER_S = 10.0
PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_CHILD_SUBREAPER = 36


class Ended(NamedTuple):
    """How a run ended. `status` is the command's exit code, negative for a signal, as Python counts."""

    status: int
    notice: Heard | None
    told: tuple[Process, ...]
    ignoring: tuple[Process, ...]
    seconds: float | None


class Supervisor:
    """One run of one command. `grace_s` is the time from the notice to the kill."""

    def __init__(
        self, command: Sequence[str], grace_s: float, signals: Sequence[signal.Signals], notice_file: Path
    ) -> None:
        self._command = list(command)
        self._grace_s = grace_s
        self._signals = tuple(signals)
        self._notice_file = notice_file
        self._file = FileSource(notice_file)
        self._blocked = {signal.SIGCHLD, *PASSED_ON, *signals}
        self._telling = Telling(os.getpid(), self._impatient)
        self._main = 0
        self._status: int | None = None
        self._notice: Heard | None = None
        self._noticed_at = self._main_gone_at = 0.0
        self._ignoring: dict[tuple[int, str], Process] = {}
        self._called_last = False

    def run(self, environment: Mapping[str, str]) -> Ended:
        """Start the command, wait for its end and return it. Raises OSError when it cannot be started."""
        become_reaper()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        try:
            self._main = os.posix_spawnp(
                self._command[0],
                self._command,
                dict(environment),
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, *self._blocked),
            )
            while not self._over():
                came = signal.sigtimedwait(self._blocked, LOOK_S)
                if came is not None:
                    self._take(signal.Signals(came.si_signo))
                self._reap()
                self._look()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        seconds = clock.monotonic() - self._noticed_at if self._notice else None
        told, ignoring = tuple(self._telling.told.values()), tuple(self._ignoring.values())
        return Ended(self._status or 0, self._notice, told, ignoring, seconds)

    def _take(self, signum: signal.Signals) -> None:
        if signum in self._signals:
            if self._notice is None:
                now = clock.utc_now()
                self._noticed(Heard(signum.name, after(self._grace_s, now), f"signal {signum.name}", now))
            else:
                say(f"{signum.name} again: everybody was told already")
        elif signum in PASSED_ON and not (signum == signal.SIGINT and _same_terminal()):
            self._send(self._main, signum)

    def _noticed(self, heard: Heard) -> None:
        """Write the deadline down where every process of the job finds it, then tell the right ones."""
        self._notice, self._noticed_at = heard, clock.monotonic()
        say(f"notice ({heard.reason}): {duration(self._left_s())} left")
        if heard.source != "file":
            try:
                write_notice(self._notice_file, heard.deadline, heard.reason)
                self._file.look(self._grace_s)
            except OSError as error:
                say(f"no notice file at {self._notice_file}: {error}")

    def _look(self) -> None:
        heard = self._file.look(self._grace_s)
        if heard is not None and self._notice is None:
            self._noticed(heard)
        if self._notice is None:
            return
        table = below(os.getpid())
        for process in self._telling.next(table):
            say(f"telling {process}")
            self._send(process.pid, signal.SIGTERM)
        for process in table.values():
            if process.ignores and process.key not in self._ignoring:
                self._ignoring[process.key] = process
                say(f"{process} ignores SIGTERM: it cannot be told")
        if not self._called_last and self._left_s() < LAST_CALL_S:
            self._last_call(table)

    def _last_call(self, table: Mapping[int, Process]) -> None:
        self._called_last = True
        for process in self._telling.alive(table, self._telling.told):
            say(f"{process} was told {duration(clock.monotonic() - self._noticed_at)} ago and still runs")
        for process in self._telling.last_call(table):
            say(f"last call for {process}")
            self._send(process.pid, signal.SIGTERM)

    def _impatient(self, launcher: Process) -> bool:
        limit_s = elastic_limit_s(launcher.pid)
        if limit_s >= self._left_s() - 1:
            return False
        limit = f"{duration(limit_s)} (--shutdown-timeout)"
        say(f"{launcher} would kill its workers after {limit}: telling them instead")
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = os.waitstatus_to_exitcode(status)
                self._main_gone_at = clock.monotonic()

    def _over(self) -> bool:
        """Without a notice the command's end is the end. With one, those who were told may outlive it (a
        shell that died in their place): they are waited for, and what they left behind for LINGER_S."""
        if self._status is None:
            return False
        if self._notice is None:
            return True
        table = below(os.getpid())
        if self._telling.alive(table, self._telling.told):
            return False
        lingering = self._telling.alive(table, self._telling.covered)
        return not lingering or clock.monotonic() - self._main_gone_at > LINGER_S

    def _left_s(self) -> float:
        deadline: datetime = self._notice.deadline if self._notice else after(self._grace_s)
        return max(0.0, (deadline - clock.utc_now()).total_seconds())

    def _send(self, pid: int, signum: signal.Signals) -> None:
        if pid == self._main and self._status is not None:
            return
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return
        except PermissionError as error:
            say(f"pid {pid} cannot be told: {error}")


def become_reaper() -> None:
    """Orphans below us become our children, as they would below process 1."""
    if os.getpid() == 1:
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        say("cannot become the reaper of orphans: processes whose parents die early will not be waited for")


def _same_terminal() -> bool:
    """Whether the terminal that sent us SIGINT sent it to our children as well."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
