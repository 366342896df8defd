"""Signals as a messenger. The handler only raises a flag and notes the time; nothing is saved, locked or
logged in it.

The C-level handler of Python writes each signal's number to the wakeup descriptor at once, also while the
main thread is inside a long native call or another library has put its own Python handler over ours. The
watcher thread reads there, so peers hear within milliseconds although the main thread may take a minute to
its next step boundary.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from types import FrameType
from typing import Any

from . import clock
from .deadline import Attention
from .say import say


class SignalSource:
    """Hears `signals` until `close`. Must be opened in the main thread, as Python demands for handlers."""

    def __init__(self, signals: Iterable[signal.Signals], attention: Attention) -> None:
        self._signals = tuple(signals)
        self._attention = attention
        self._before: dict[signal.Signals, Any] = {}
        self._arrived: list[tuple[signal.Signals, datetime]] = []
        self._wake_read, self._wake_write = -1, -1
        self._reported: set[signal.Signals] = set()
        self._pid = os.getpid()

    def open(self) -> bool:
        """Install the handlers; False (and said so) when not in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            say("made outside the main thread: signals cannot be heard, a notice file and the cluster can")
            return False
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        for signum in self._signals:
            self._before[signum] = signal.signal(signum, self._handle)
            signal.siginterrupt(signum, False)  # a blocking write in the caller's save must not fail half-way
        taken = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        if taken not in (-1, self._wake_write):
            signal.set_wakeup_fd(taken)  # an event loop was first; our handler writes to the pipe itself
        os.register_at_fork(after_in_child=self._forget)
        return True

    @property
    def wake_fd(self) -> int:
        """Readable when a signal came; -1 when not open."""
        return self._wake_read

    def take(self) -> list[tuple[signal.Signals, datetime]]:
        """The signals that came since the last call, with the time of each."""
        if self._wake_read >= 0:
            self._read_wakeups()
        taken = []
        while self._arrived:
            taken.append(self._arrived.pop(0))
        return taken

    def _read_wakeups(self) -> None:
        try:
            data = os.read(self._wake_read, 512)
        except (BlockingIOError, OSError):
            return
        now = clock.utc_now()
        for number in data:
            if number in self._signals:
                self._arrived.append((signal.Signals(number), now))

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._attention.up = True
        self._arrived.append((signal.Signals(signum), clock.utc_now()))
        try:
            os.write(self._wake_write, bytes((signum,)))
        except OSError:
            return  # full or closed: the flag is up already

    def replaced_by(self) -> list[str]:
        """Who has put another handler over ours since the last call, in words; each signal is told once."""
        told = []
        for signum in self._before:
            current = signal.getsignal(signum)
            if current == self._handle or signum in self._reported or os.getpid() != self._pid:
                continue
            self._reported.add(signum)
            deaf = current in (signal.SIG_IGN, signal.SIG_DFL)
            still = "the guard cannot hear it any more" if deaf else "the guard still hears it"
            told.append(f"{signum.name} is now handled by {_name_of(current)}; {still}")
        return told

    def retake(self) -> None:
        """Put our handlers over those that others have installed since. In the main thread only."""
        for signum in self._before:
            if signal.getsignal(signum) != self._handle:
                signal.signal(signum, self._handle)

    def close(self) -> None:
        """Give the handlers back to whom they belonged, except those that others have replaced since."""
        if self._wake_read < 0 or os.getpid() != self._pid:
            return
        if threading.current_thread() is threading.main_thread():
            for signum, before in self._before.items():
                if signal.getsignal(signum) == self._handle:
                    signal.signal(signum, before if before is not None else signal.SIG_DFL)
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._wake_write):
                signal.set_wakeup_fd(current)
        self._before = {}
        read, write = self._wake_read, self._wake_write
        self._wake_read, self._wake_write = -1, -1
        os.close(read)
        os.close(write)

    def _forget(self) -> None:
        """In a fork (a data loader's worker) the signals mean again what they meant before, or the child
        could not be ended by its parent; and it must not write to our pipe."""
        if self._wake_read < 0:
            return
        for signum, before in self._before.items():
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, before if before is not None else signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._wake_write):
            signal.set_wakeup_fd(current)
        self._before = {}
        self._wake_read = self._wake_write = -1


def _name_of(handler: Callable[..., object] | int | None) -> str:
    if handler in (signal.SIG_IGN, signal.SIG_DFL):
        return (
            "nobody: it is ignored"
            if handler == signal.SIG_IGN
            else "the system: it ends the process at once"
        )
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", None) or type(handler).__name__
    return f"{module}.{name}" if module else str(name)
