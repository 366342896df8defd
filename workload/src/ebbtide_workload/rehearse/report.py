"""A rehearsal told to a person, and to a machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap

from .model import Finding, Rehearsal, RoundFacts, Verdict

WIDTH = 100
_BAR = 40
_MEANING = {
    "A": "preemption costs this job seconds",
    "B": "it survives; a little is left on the table",
    "C": "it survives, but pays more than it must",
    "D": "it gets through by luck: what it lost was not saved in time",
    "F": "every preemption throws the work away",
}


def as_json(rehearsal: Rehearsal) -> str:
    """The whole rehearsal as one JSON document; fields are those of the dataclasses in `model`."""
    rounds = [
        {**asdict(facts), "lost_steps": facts.lost_steps, **_verdict(verdict)}
        for facts, verdict in zip(rehearsal.rounds, rehearsal.verdicts)
    ]
    return json.dumps(
        {
            "version": 1,
            "what": rehearsal.what,
            "seed": rehearsal.seed,
            "window_s": rehearsal.window_s,
            **_verdict(rehearsal.overall),
            "rounds": rounds,
            "timeline": timeline(rehearsal),
            "finished_early": rehearsal.finished_early,
            "stopped_early": rehearsal.stopped_early,
        },
        indent=2,
    )


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {"grade": verdict.grade, "findings": [asdict(f) for f in verdict.findings]}


def timeline(rehearsal: Rehearsal) -> list[dict[str, object]]:
    """The lives of the job in order: where each began, how far it came, what it had saved, where the next
    went on."""
    return [
        {
            "round": facts.number,
            "began_at_step": facts.began_at_step,
            "reached_step": facts.last_step,
            "saved_step": facts.newest_save,
            "resumed_step": facts.resumed_step,
            "lost_steps": facts.lost_steps,
        }
        for facts in rehearsal.rounds
    ]


def as_text(rehearsal: Rehearsal) -> str:
    """The report for a person."""
    lines = ["", f"Rehearsal of: {rehearsal.what}", _terms(rehearsal), ""]
    for facts, verdict in zip(rehearsal.rounds, rehearsal.verdicts):
        lines += [*_round(facts, verdict), ""]
    lines += [*_lives(rehearsal), ""]
    if rehearsal.finished_early:
        lines += ["The job was done before the last round; what was seen is graded.", ""]
    if rehearsal.stopped_early:
        lines += [
            "The remaining rounds would have gone the same way and were left out (--all-rounds holds them).",
            "",
        ]
    grade = rehearsal.overall.grade
    lines += [f"Grade: {grade}   {_MEANING[grade]}", ""]
    for finding in rehearsal.overall.findings:
        lines += [*_finding(finding), ""]
    return "\n".join(lines)


def _terms(rehearsal: Rehearsal) -> str:
    grace_s = rehearsal.rounds[0].grace_s
    return f"window {rehearsal.window_s:g} s, grace {grace_s:g} s, seed {rehearsal.seed}"


def _round(facts: RoundFacts, verdict: Verdict) -> Iterator[str]:
    yield f"Round {facts.number}   [{verdict.grade}]   {_bar(facts)}"
    at = "" if facts.step_at_notice is None else f", at step {facts.step_at_notice}"
    yield _line(0.0, f"SIGTERM to {facts.notified}, {facts.moment}{at}")
    if not facts.delivered:
        yield _line(0.0, "dropped: process 1 of a container gets no signal it has no handler for")
    yield from (_line(t, text) for t, text in sorted(_moments(facts)))
    if facts.checkpoints is not None:
        yield f"             {facts.checkpoints} checkpoints on disk, {_size(facts.checkpoint_bytes or 0)}"
    yield f"             {_back(facts)}"


def _moments(facts: RoundFacts) -> Iterator[tuple[float, str]]:
    if facts.noticed_after_s is not None:
        yield facts.noticed_after_s, "noticed"
    if facts.saved_after_s is not None:
        took = "" if facts.save_took_s is None else f"; the save took {facts.save_took_s:.1f} s"
        step = "" if facts.saved_step is None else f" step {facts.saved_step}"
        yield facts.saved_after_s, f"saved{step}{took}"
    for process in facts.processes:
        if process.gone_after_s is None:
            yield facts.grace_s, f"killed: {process.name} (pid {process.pid})"
    if facts.exited_after_s is not None:
        yield facts.exited_after_s, f"left with exit code {facts.exit_code}"


def _line(at_s: float, text: str) -> str:
    return f"  {at_s:7.1f} s  {text}"


def _back(facts: RoundFacts) -> str:
    if not facts.returned:
        return f"did not come back: {facts.return_note}"
    if facts.resumed_step is None:
        return facts.return_note or "came back"
    after = "" if facts.back_after_s is None else f" {facts.back_after_s:.1f} s after its start"
    lost = facts.lost_steps
    price = (
        "" if lost is None else (", nothing lost" if lost == 0 else f", {lost} step{'s' * (lost != 1)} lost")
    )
    return f"back at step {facts.resumed_step}{after}{price}"


def _bar(facts: RoundFacts) -> str:
    """How much of the grace was used."""
    used_s = facts.grace_s if facts.exited_after_s is None else facts.exited_after_s
    filled = min(_BAR, max(1, round(_BAR * used_s / facts.grace_s)))
    mark = "killed" if facts.exited_after_s is None else f"{used_s:.1f} s"
    return f"{'█' * filled}{'░' * (_BAR - filled)} {mark} of {facts.grace_s:g} s"


def _lives(rehearsal: Rehearsal) -> Iterator[str]:
    yield "Timeline"
    for facts in rehearsal.rounds:
        saved = "nothing saved" if facts.newest_save is None else f"saved {facts.newest_save}"
        to = "?" if facts.resumed_step is None else str(facts.resumed_step)
        began = "?" if facts.began_at_step is None else facts.began_at_step
        reached = "?" if facts.last_step is None else facts.last_step
        then = f"life {facts.number + 1} from step {to}"
        yield f"  life {facts.number}: step {began} to {reached}, {saved}  ->  {then}"


def _finding(finding: Finding) -> Iterator[str]:
    head = f"  {finding.caps_at}  {finding.rule}: "
    yield from wrap(head + finding.text, WIDTH, subsequent_indent=" " * 5)
    yield from wrap("     fix: " + finding.fix, WIDTH, subsequent_indent=" " * 10)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
