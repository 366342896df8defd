"""Holding a rehearsal: start, wait for work, preempt, wait the window out, start again, look where it goes
on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Optional

from ..clock import monotonic
from .grade import overall, verdict
from .model import Delivery, Event, Observed, Rehearsal, RehearsalError, RoundFacts, Run
from .moments import Moment

_LOOK_S = 0.2
_BACK_GRACE_S = 0.3


@dataclass(frozen=True)
class Terms:
    """How to hold it. `first_step_s`: how long a start may take before we stop waiting for its first step.

    `launcher` names a launcher with a limit of its own; `keep` is how many checkpoints the job means to keep.
    """

    window_s: float
    grace_s: float
    first_step_s: float
    all_rounds: bool = False
    launcher: str | None = None
    keep: int | None = None


Start = Callable[[int], Run]
Measure = Callable[[], tuple[Optional[int], Optional[int]]]
Tell = Callable[[str], None]


def hold(
    what: str,
    seed: int,
    moments: tuple[Moment, ...],
    terms: Terms,
    start: Start,
    measure: Measure,
    tell: Tell,
) -> Rehearsal:
    """Preempt the job once per moment and grade it. `start(n)` begins life n; `measure()` counts checkpoints.

    Raises RehearsalError when the job ends before its first preemption.
    """
    rounds: list[RoundFacts] = []
    finished = stopped = False
    run = start(0)
    seen = Observed()
    try:
        for number, moment in enumerate(moments, start=1):
            tell(f"round {number} of {len(moments)}: the notice comes {moment.describe()}")
            came = _work_until(run, seen, moment, terms)
            if came is None:
                finished = True
                break
            facts = _preempt(run, seen, number, came, terms)
            earlier = [r.newest_save for r in rounds if r.newest_save is not None]
            run.expire()
            counted, size = measure()
            before, run, after = run, start(number), Observed()
            back = _see_it_return(run, after, terms)
            newest = max([s for s in (*earlier, facts.newest_save) if s is not None], default=None)
            facts = replace(facts, newest_save=newest, checkpoints=counted, checkpoint_bytes=size)
            facts = replace(facts, counted_as_failure=before.counted_as_failure())
            rounds.append(_with_return(facts, back))
            seen = after
            tell(f"  {_in_short(rounds[-1])}")
            if not terms.all_rounds and number < len(moments) and _pointless(rounds[-1]):
                stopped = True
                break
    finally:
        run.expire()
    if not rounds:
        raise RehearsalError(_too_short(run))
    verdicts = tuple(verdict(r) for r in rounds)
    return Rehearsal(
        what,
        seed,
        terms.window_s,
        tuple(rounds),
        verdicts,
        overall(tuple(rounds), verdicts, terms.keep),
        finished,
        stopped,
    )


def _too_short(run: Run) -> str:
    code = run.ending().exit_code
    if code:
        return (
            f"the job failed by itself (exit code {code}) before it could be preempted; "
            "--verbose shows what it printed"
        )
    return "the job was done before it could be preempted: give it more steps, or choose an earlier --after"


def _pointless(facts: RoundFacts) -> bool:
    """A job that did not come back cannot be preempted again; one that heard nothing would hear nothing
    again."""
    return not facts.returned or (not facts.delivered and facts.exited_after_s is None)


def _in_short(facts: RoundFacts) -> str:
    left = (
        "killed at the deadline"
        if facts.exited_after_s is None
        else f"left after {facts.exited_after_s:.1f} s"
    )
    back = "did not come back" if not facts.returned else f"back at step {facts.resumed_step}"
    return f"{left}, {back}"


def _work_until(run: Run, seen: Observed, moment: Moment, terms: Terms) -> str | None:
    """Let the job work until the moment has come and say which it was; None when the job ended before."""
    waited_from = run.started_t
    first_step_t: float | None = monotonic() if seen.stepping() else None
    while run.running():
        fresh = run.poll(_LOOK_S)
        seen.add(fresh)
        now = monotonic()
        if first_step_t is None and (seen.stepping() or now - waited_from > terms.first_step_s):
            first_step_t = now
        if first_step_t is None:
            continue
        if moment.in_save and any(e.event == "save_begin" for e in fresh):
            return "during a save" if run.running() else None
        if now - first_step_t >= moment.after_s:
            return f"{now - first_step_t:.1f} s after the first step" if run.running() else None
        _wait_less(run, seen, first_step_t + moment.after_s - now)
    return None


def _wait_less(run: Run, seen: Observed, left_s: float) -> None:
    """Sleep through the tail of a moment shorter than a look."""
    if left_s < _LOOK_S:
        seen.add(run.poll(max(0.0, left_s)))


def _preempt(run: Run, seen: Observed, number: int, moment: str, terms: Terms) -> RoundFacts:
    at_notice = _newest_step(seen.chosen())
    delivery = run.notify()
    notice_t = delivery.at_t
    ended_t: float | None = None
    deadline = notice_t + delivery.grace_s
    while monotonic() < deadline:
        seen.add(run.poll(min(_LOOK_S, max(0.0, deadline - monotonic()))))
        if not run.running():
            ended_t = monotonic()
            break
    run.expire()
    seen.add(run.poll(0))
    return _facts(run, seen, number, moment, terms, delivery, notice_t, ended_t, at_notice)


def _newest_step(events: list[Event]) -> int | None:
    return max((e.step for e in events if e.step is not None and e.event in ("step", "resume")), default=None)


def _facts(
    run: Run,
    seen: Observed,
    number: int,
    moment: str,
    terms: Terms,
    delivery: Delivery,
    notice_t: float,
    ended_t: float | None,
    at_notice: int | None,
) -> RoundFacts:
    events = seen.chosen()
    notices = [e.t for e in events if e.event == "notice"]
    saves = [e for e in events if e.event == "save_end"]
    late_saves = [e for e in saves if e.t >= notice_t]
    begins = [e.t for e in events if e.event == "save_begin" and late_saves and e.t <= late_saves[-1].t]
    known = [e.step for e in events if e.step is not None and e.event in ("step", "resume")]
    last = max(known, default=None)
    ending = run.ending()
    clean = ended_t is not None and not ending.killed
    return RoundFacts(
        number=number,
        moment=moment,
        window_s=terms.window_s,
        grace_s=delivery.grace_s,
        delivered=delivery.delivered,
        notified=delivery.to,
        began_at_step=known[0] if known else None,
        step_at_notice=at_notice,
        last_step=last,
        steps_after_notice=0 if last is None or at_notice is None else last - at_notice,
        noticed_after_s=max(0.0, min(notices) - notice_t) if notices else None,
        save_took_s=late_saves[-1].t - begins[-1] if begins else None,
        saved_after_s=late_saves[-1].t - notice_t if late_saves else None,
        saved_step=late_saves[-1].step if late_saves else None,
        newest_save=max((e.step for e in saves if e.step is not None), default=None),
        exited_after_s=ended_t - notice_t if clean and ended_t is not None else None,
        exit_code=ending.exit_code,
        resumed_step=None,
        returned=False,
        return_note="",
        back_after_s=None,
        processes=run.processes(),
        left_behind=run.left_behind(),
        says_itself=seen.says_itself,
        save_cut=_save_cut(events),
        launcher=terms.launcher,
    )


def _save_cut(events: list[Event]) -> bool:
    """The last save that began never ended."""
    begun = [e.t for e in events if e.event == "save_begin"]
    ended = [e.t for e in events if e.event == "save_end"]
    return bool(begun) and (not ended or begun[-1] > ended[-1])


@dataclass(frozen=True)
class _Return:
    step: int | None
    after_s: float | None
    returned: bool
    note: str


def _see_it_return(run: Run, seen: Observed, terms: Terms) -> _Return:
    """Where the next life goes on. A resume said by the job counts; else its first step does."""
    while run.running():
        seen.add(run.poll(_LOOK_S))
        if seen.stepping():
            break
        if monotonic() - run.started_t > terms.first_step_s:
            return _Return(None, None, True, "it started again, but no step was seen")
    seen.add(run.poll(_BACK_GRACE_S))
    events = seen.chosen()
    resumes = [e for e in events if e.event == "resume" and e.step is not None]
    steps = [e for e in events if e.event == "step"]
    if resumes or steps:
        first = resumes[0] if resumes else steps[0]
        return _Return(first.step, max(0.0, first.t - run.started_t), True, "")
    ending = run.ending()
    code = ending.exit_code
    if ending.why:
        return _Return(None, None, False, ending.why)
    if code == 0:
        return _Return(None, None, True, "it started again and said that all was done")
    return _Return(None, None, False, f"its next start ended with exit code {code} before any step")


def _with_return(facts: RoundFacts, back: _Return) -> RoundFacts:
    return replace(
        facts,
        resumed_step=back.step,
        returned=back.returned,
        return_note=back.note,
        back_after_s=back.after_s,
    )
