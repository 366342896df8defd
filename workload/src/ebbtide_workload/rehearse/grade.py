"""What a round is worth. Pure: facts in, grade and reasons out.

A round starts at A; every finding names the best grade that is still possible with it. The whole rehearsal
is worth its worst round: the next preemption may be that one.
"""

from __future__ import annotations

from collections.abc import Iterator

from .launchers import TORCHRUN_LIMIT_S
from .model import KILL_MARGIN_S, Finding, ProcessFact, RoundFacts, Verdict

GRADES = "ABCDF"
NOTICE_SLOW_S = 10.0
A_FEW_STEPS = 10
TOO_MANY_CHECKPOINTS = 4
_GUARD = (
    "add three lines: import ebbtide_workload; guard = ebbtide_workload.Guard(folder); "
    "for step in guard.steps(total, load=load, save=save)"
)


def verdict(facts: RoundFacts) -> Verdict:
    """The grade of one preemption."""
    return _worst([*_return(facts), *_signal(facts), *_save(facts), *_leaving(facts)])


def overall(
    rounds: tuple[RoundFacts, ...], verdicts: tuple[Verdict, ...], keep: int | None = None
) -> Verdict:
    """The grade of all rounds together; a finding seen in several rounds is told once."""
    every = [f for v in verdicts for f in v.findings] + list(_growth(rounds, keep)) + list(_stale(rounds))
    told: dict[str, Finding] = {}
    for finding in every:
        known = told.get(finding.rule)
        if known is None or GRADES.index(finding.caps_at) > GRADES.index(known.caps_at):
            told[finding.rule] = finding
    return _worst(list(told.values()))


def _worst(findings: list[Finding]) -> Verdict:
    ordered = sorted(findings, key=lambda f: (-GRADES.index(f.caps_at), f.rule))
    return Verdict(ordered[0].caps_at if ordered else "A", tuple(ordered))


def at_least(grade: str, wanted: str) -> bool:
    """Whether `grade` is as good as `wanted` or better."""
    return GRADES.index(grade) <= GRADES.index(wanted)


def _return(facts: RoundFacts) -> Iterator[Finding]:
    if not facts.returned:
        yield Finding(
            "no-return",
            "F",
            f"The job did not come back: {facts.return_note}.",
            "run the command twice by hand; the second start must find what the first one left",
        )
    elif facts.resumed_step is None:
        if facts.saved_step is None:
            yield Finding(
                "blind",
                "D",
                f"Nothing shows where the job went on ({facts.return_note or 'no steps seen'}).",
                f"{_GUARD}; or say how its log names a step: --step-pattern 'step (\\d+)'",
            )
    elif facts.newest_save is not None and facts.resumed_step < facts.newest_save:
        yield Finding(
            "stale",
            "F",
            f"It resumed at step {facts.resumed_step}, although a complete save of step "
            f"{facts.newest_save} existed.",
            "resume from the newest complete checkpoint: guard.steps(...) does",
        )
    elif facts.resumed_step <= 1 and (facts.last_step or 0) > 2:
        yield Finding(
            "from-scratch",
            "F",
            f"It started over at step {facts.resumed_step}: all {facts.lost_steps} steps were lost.",
            f"{_GUARD}. It saves at the notice and resumes from there",
        )
    elif facts.lost_steps is not None and facts.lost_steps > 1:
        yield Finding(
            "lost-steps",
            "B" if facts.lost_steps <= A_FEW_STEPS else "C",
            f"{facts.lost_steps} steps have to be done again (reached {facts.last_step}, "
            f"resumed at {facts.resumed_step}).",
            "save once more when the notice comes, and resume from that save",
        )


def _signal(facts: RoundFacts) -> Iterator[Finding]:
    if facts.exited_after_s is None:
        yield Finding(
            "ignored-sigterm",
            "D",
            f"Killed at the deadline, {facts.grace_s:g} s after the notice. " + " ".join(ignorers(facts)),
            _ignored_fix(facts),
        )
    elif _died_of_it(facts):
        yield Finding(
            "died-of-sigterm",
            "D",
            f"{facts.notified} has no handler for SIGTERM: it died at once and saved nothing.",
            _GUARD,
        )
    if facts.noticed_after_s is not None and facts.noticed_after_s > NOTICE_SLOW_S:
        yield Finding(
            "slow-notice",
            "B",
            f"It took {facts.noticed_after_s:.0f} s to notice: a step is that long.",
            "call guard.step more often, such as once per micro-batch",
        )


def _died_of_it(facts: RoundFacts) -> bool:
    main = next((p for p in facts.processes if p.main), None)
    return main is not None and main.handler == "default" and facts.saved_after_s is None


def ignorers(facts: RoundFacts) -> list[str]:
    """One sentence for each process that was still there at the deadline, saying why, by name."""
    return [_why(p, facts) for p in facts.processes if p.gone_after_s is None] or [
        f"{facts.notified} was still there."
    ]


def _why(process: ProcessFact, facts: RoundFacts) -> str:
    who = f"{process.name} (pid {process.pid})"
    if process.main and not facts.delivered:
        how = "ignores SIGTERM" if process.handler == "ignores" else "has no handler for SIGTERM"
        return f"{who} {how}; as process 1 of a container it never even gets it."
    if not process.told:
        return f"{who} was never told: its parent did not pass SIGTERM on."
    if facts.saved_after_s is not None:
        return f"{who} saved, but then did not leave."
    went_on = (
        f" and went on for {facts.steps_after_notice} more steps" if facts.steps_after_notice > 1 else ""
    )
    return f"{who} swallowed SIGTERM{went_on}."


def _ignored_fix(facts: RoundFacts) -> str:
    if any(not p.told and not p.main for p in facts.processes):
        return "put `ebb run --` before the command: it passes SIGTERM on to the right processes"
    if facts.save_cut:
        return "the save does not fit: see `ebb window`; or save a smaller or sharded checkpoint"
    if facts.saved_after_s is not None:
        return "leave after the last save: guard.steps(...) does"
    return _GUARD


def _save(facts: RoundFacts) -> Iterator[Finding]:
    cut = [p for p in facts.processes if not p.main and _gone_early(p, facts)]
    if facts.save_cut and cut and facts.exited_after_s is not None:
        names = ", ".join(sorted({f"{p.name} (pid {p.pid})" for p in cut}))
        main = next((p.name for p in facts.processes if p.main), "the launcher")
        yield Finding(
            "launcher-kill",
            "D",
            f"{main} killed {names} {max(p.gone_after_s or 0 for p in cut):.0f} s after the notice, in "
            f"the middle of a save; {facts.grace_s:g} s were given.",
            f"start it through `ebb run -- {main} ...`, which sets the launcher's own limit to the grace "
            "(torchrun: --shutdown-timeout)",
        )
    elif _left_unsaved(facts):
        yield Finding(
            "unsaved",
            "C",
            "It left when told, but saved nothing on the way.",
            "save when the notice comes: guard.steps(...) does",
        )
    if facts.launcher is not None:
        yield Finding(
            "launcher-limit",
            "B",
            f"{facts.launcher} kills its workers {TORCHRUN_LIMIT_S} s after SIGTERM, whatever the grace: "
            "a save that takes longer is torn.",
            f"start it through `ebb run -- {facts.launcher} ...`, or give it --shutdown-timeout",
        )


def _left_unsaved(facts: RoundFacts) -> bool:
    left = facts.exited_after_s is not None and not _died_of_it(facts)
    return left and facts.saved_after_s is None and (facts.lost_steps is None or facts.lost_steps > 1)


def _gone_early(process: ProcessFact, facts: RoundFacts) -> bool:
    return process.gone_after_s is not None and process.gone_after_s <= (facts.exited_after_s or 0.0)


def _leaving(facts: RoundFacts) -> Iterator[Finding]:
    if facts.exited_after_s is not None:
        share = facts.exited_after_s / facts.grace_s
        if share > 0.5:
            yield Finding(
                "slow-leave",
                "C" if share > 0.9 else "B",
                f"It needed {facts.exited_after_s:.0f} s of {facts.grace_s:g} s: a slower disk on the day "
                f"and it is cut.",
                "see `ebb window` for the rate the save needs; save less, or in parallel",
            )
        if facts.exit_code == 0 and facts.resumed_step is not None:
            yield Finding(
                "exit-code",
                "C",
                "It left with exit code 0 though it was not done: a Kubernetes Job would count it as "
                "complete.",
                "leave with another code; the guard uses 85 (saved) and 86 (not saved)",
            )
    if facts.counted_as_failure:
        yield Finding(
            "counted-as-failure",
            "C",
            "The Job counted the preemption as a failure of the pod: backoffLimit of them end the Job.",
            "add a podFailurePolicy that ignores DisruptionTarget: `ebb lint` shows where",
        )
    if facts.left_behind:
        yield Finding(
            "left-behind",
            "B",
            f"Still at work when the main process left, and killed with it: "
            f"{', '.join(sorted(facts.left_behind))}.",
            "wait for the children before leaving; `ebb run --` does",
        )
    if facts.grace_s < (facts.window_s - KILL_MARGIN_S) / 2:
        yield Finding(
            "short-grace",
            "B",
            f"You will get {facts.grace_s:g} s of the {facts.window_s:g} s.",
            f"set terminationGracePeriodSeconds: {facts.window_s:g}",
        )


def _growth(rounds: tuple[RoundFacts, ...], keep: int | None) -> Iterator[Finding]:
    counts = [r.checkpoints for r in rounds if r.checkpoints is not None]
    if not counts:
        return
    grows = len(counts) > 2 and all(b > a for a, b in zip(counts, counts[1:]))
    limit = TOO_MANY_CHECKPOINTS if keep is None else keep + 1
    if counts[-1] > limit and (keep is not None or grows):
        yield Finding(
            "checkpoints-grow",
            "C",
            f"Every preemption leaves another checkpoint ({', '.join(map(str, counts))}): the disk will "
            f"be full.",
            "keep a fixed number: Guard(..., keep=2)",
        )


def _stale(rounds: tuple[RoundFacts, ...]) -> Iterator[Finding]:
    """Nothing may be resumed that is older than what an earlier round had saved."""
    best = -1
    for facts in rounds:
        best = max(best, facts.newest_save if facts.newest_save is not None else -1)
        if facts.resumed_step is not None and facts.resumed_step < best:
            yield Finding(
                "stale",
                "F",
                f"Round {facts.number} resumed at step {facts.resumed_step}, older than the completed "
                f"save of {best}.",
                "resume from the newest complete checkpoint: guard.steps(...) does",
            )
