"""One object that knows that we are being preempted, whoever said so first.

notice = Notice().open()
while work and not notice.noticed: ...
notice.seconds_left()
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from signal import Signals

from . import clock, settings
from .deadline import Attention, Heard, Merged, after
from .say import duration, say
from .sources_file import FileSource
from .sources_signals import SignalSource

LOOK_S = 0.5


class Notice:
    """Hears SIGTERM (in Slurm SIGUSR1 too), a notice file, and the cluster when in one; see `settings`.

    `grace_s` is the time from the signal to the kill; it beats EBBTIDE_GRACE_S, which beats the pod's spec,
    which beats Kubernetes' default of 30. Several messages merge into one with the earliest deadline.
    """

    def __init__(
        self,
        *,
        grace_s: float | None = None,
        signals: Iterable[Signals] | None = None,
        file: os.PathLike[str] | str | None = None,
        attention: Attention | None = None,
    ) -> None:
        self.attention = attention or Attention()
        self._told_grace_s = grace_s if grace_s is not None else settings.grace_s()
        self._pod_grace_s: float | None = None
        self._merged = Merged(self.attention)
        chosen = settings.notice_signals() if signals is None else tuple(signals)
        self._signals = SignalSource(chosen, self.attention)
        path = file if file is not None else settings.notice_file()
        self._file = FileSource(Path(path)) if path else None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ticks: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def open(self) -> Notice:
        """Begin to hear; returns itself."""
        self._signals.open()
        self._look_at_file()  # a notice that was there before us is known before the first step
        self._start("ebbtide-watch", self._watch)
        node = settings.node_name()
        if node and settings.place().local_rank == 0:
            self._start("ebbtide-node", lambda: self._watch_node(node))
        return self

    def close(self) -> None:
        """Stop hearing and give the signal handlers back. Harmless when done twice or in a fork."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.name == "ebbtide-watch":
                thread.join(timeout=5.0)
        self._signals.close()

    @property
    def noticed(self) -> bool:
        """Whether we are being preempted."""
        if self.attention.up:
            self.settle()
        return bool(self._merged.all())

    @property
    def deadline(self) -> datetime | None:
        """When we will be killed (UTC), the earliest that anybody said; None while not noticed."""
        return self._merged.deadline()

    @property
    def reason(self) -> str:
        """Why, in the words of those who told us."""
        return self._merged.reason()

    @property
    def heard(self) -> tuple[Heard, ...]:
        """Every message, in the order heard."""
        return self._merged.all()

    @property
    def grace_s(self) -> float:
        """Seconds we get from the signal to the kill, as far as known; in Kubernetes at most the window."""
        known_s = self._known_grace_s() or settings.DEFAULT_GRACE_S
        return min(settings.WINDOW_S, known_s) if settings.in_kubernetes() else known_s

    @property
    def grace_is_known(self) -> bool:
        """False when 30 s is assumed because nobody said anything else."""
        return self._known_grace_s() is not None

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, never below 0; None while not noticed."""
        deadline = self.deadline
        return None if deadline is None else max(0.0, (deadline - clock.utc_now()).total_seconds())

    def tell(self, source: str, deadline: datetime | None = None, reason: str = "") -> bool:
        """Bring a notice from a messenger of your own; True when it was news. Not for signal handlers."""
        now = clock.utc_now()
        return self._merged.tell(Heard(source, deadline or after(self.grace_s, now), reason, now))

    def listen(self, listener: Callable[[Heard], None]) -> None:
        """Call `listener` for each new message, from whatever thread heard it."""
        self._merged.listen(listener)

    def every_look(self, tick: Callable[[], None]) -> None:
        """Call `tick` about twice a second from the watching thread."""
        self._ticks.append(tick)

    def retake_signals(self) -> None:
        """Put our signal handlers over those that a framework has installed since. In the main thread only.

        For frameworks whose own handler does harm, such as a collective that only the noticed rank enters.
        """
        self._signals.retake()

    def settle(self) -> None:
        """Take in what signal handlers left behind. Called at step boundaries and by the watching thread."""
        for signum, at in self._signals.take():
            self._merged.tell(Heard(signum.name, after(self.grace_s, at), f"signal {signum.name}", at))

    def _known_grace_s(self) -> float | None:
        return self._told_grace_s if self._told_grace_s is not None else self._pod_grace_s

    def _start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._wait_for_signal()
            self.settle()
            self._look_at_file()
            for change in self._signals.replaced_by():
                say(change)
            for tick in self._ticks:
                tick()

    def _look_at_file(self) -> None:
        heard = self._file.look(self.grace_s) if self._file is not None else None
        if heard is not None:
            self._merged.tell(heard)

    def _wait_for_signal(self) -> None:
        fd = self._signals.wake_fd
        if fd < 0:
            self._stop.wait(LOOK_S)
            return
        try:
            select.select([fd], [], [], LOOK_S)
        except (OSError, ValueError):
            self._stop.wait(LOOK_S)  # closed under us

    def _watch_node(self, node: str) -> None:
        from .sources_kubernetes import Api, KubernetesSource  # ssl and urllib, only where they are used

        api = Api.from_environment(os.environ)
        source = KubernetesSource(api, node, settings.pod_name(), self._merged.tell)
        self._pod_grace_s = source.grace_s()
        if self._pod_grace_s is not None and self._pod_grace_s < settings.WINDOW_S:
            say(
                f"this pod asks for {duration(self._pod_grace_s)} of the 300 s window: "
                "set terminationGracePeriodSeconds: 300"
            )
        source.run(self._stop.wait)
