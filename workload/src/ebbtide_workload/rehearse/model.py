"""The plain values a rehearsal is made of. Times are seconds on the monotonic clock of the machine that
rehearses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

KILL_MARGIN_S = (
    3.0  # a drain shortens every grace by this, so that obedient pods are gone when the window ends
)


class RehearsalError(Exception):
    """The rehearsal itself could not be held (nothing is said about the job)."""


@dataclass(frozen=True)
class Event:
    """Something the job did. `source` is "guard" (the job says so itself) or "log" (read from its output)."""

    event: str
    step: int | None
    t: float
    pid: int = 0
    source: str = "guard"


@dataclass(frozen=True)
class ProcessFact:
    """One process of the job as it was when the notice came.

    `handler` is what the process does with SIGTERM: "handles", "ignores", "default" or "unknown".
    `gone_after_s` counts from the notice; None means alive until it was killed at the deadline.
    `told` says whether the notice was sent to it, or it said itself that it heard of it.
    """

    pid: int
    name: str
    main: bool
    handler: str
    gone_after_s: float | None
    told: bool


@dataclass(frozen=True)
class Ending:
    """How a run ended: its exit code (None when unknown) and whether it had to be killed."""

    exit_code: int | None
    killed: bool
    why: str = ""


@dataclass(frozen=True)
class Delivery:
    """What became of the notice: `delivered` False when the kernel of a container would have dropped it."""

    delivered: bool
    to: str
    grace_s: float
    at_t: float


@dataclass(frozen=True)
class RoundFacts:
    """One preemption, as seen. Seconds count from the notice."""

    number: int
    moment: str
    window_s: float
    grace_s: float
    delivered: bool
    notified: str
    began_at_step: int | None
    step_at_notice: int | None
    last_step: int | None
    steps_after_notice: int
    noticed_after_s: float | None
    save_took_s: float | None
    saved_after_s: float | None
    saved_step: int | None
    newest_save: int | None
    exited_after_s: float | None
    exit_code: int | None
    resumed_step: int | None
    returned: bool
    return_note: str
    back_after_s: float | None
    processes: tuple[ProcessFact, ...] = ()
    left_behind: tuple[str, ...] = ()
    checkpoints: int | None = None
    checkpoint_bytes: int | None = None
    says_itself: bool = False
    save_cut: bool = False
    launcher: str | None = None
    counted_as_failure: bool = False

    @property
    def lost_steps(self) -> int | None:
        """Steps that have to be done again; None when either end is unknown."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)


@dataclass(frozen=True)
class Finding:
    """One thing to know. `caps_at` is the best grade a round with this finding can get."""

    rule: str
    caps_at: str
    text: str
    fix: str


@dataclass(frozen=True)
class Verdict:
    """The grade of one round or of the whole rehearsal and what held it down, worst first."""

    grade: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Rehearsal:
    """Everything a report says."""

    what: str
    seed: int
    window_s: float
    rounds: tuple[RoundFacts, ...]
    verdicts: tuple[Verdict, ...]
    overall: Verdict
    finished_early: bool = False
    stopped_early: bool = False


class Run(Protocol):
    """One life of the job, from its start to its end; local processes and Kubernetes pods both are one."""

    started_t: float

    def poll(self, timeout_s: float) -> list[Event]:
        """New events; waits up to `timeout_s` for one."""

    def running(self) -> bool:
        """Whether the job's main process still lives."""

    def notify(self) -> Delivery:
        """Send the notice of preemption."""

    def expire(self) -> None:
        """The deadline has come: make sure that nothing of this run lives on. Harmless when nothing does."""

    def ending(self) -> Ending:
        """How it ended; call only when no longer running."""

    def processes(self) -> tuple[ProcessFact, ...]:
        """The processes known when the notice was sent, with their ends."""

    def left_behind(self) -> tuple[str, ...]:
        """Names of processes that still lived when the main process left."""

    def counted_as_failure(self) -> bool:
        """Whether a controller took the preemption for a failure; call after the next life has begun."""


@dataclass
class Observed:
    """The events of one run, in the order seen. A job that speaks for itself is believed over its log."""

    events: list[Event] = field(default_factory=list)

    def add(self, events: list[Event]) -> None:
        self.events.extend(events)

    @property
    def says_itself(self) -> bool:
        return any(e.source == "guard" for e in self.events)

    def chosen(self) -> list[Event]:
        source = "guard" if self.says_itself else "log"
        return [e for e in self.events if e.source == source]

    def stepping(self) -> bool:
        return any(e.event == "step" for e in self.chosen())
