"""How long targets take to be met and how long preemptible nodes live, as observed. Pure.

What is not over yet is no less an observation: a node that has run for a day says that nodes may live for a
day. So spans are counted as in survival analysis (Kaplan and Meier): one that was cut off counts as long as
it was watched and then no more, and never as ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

_ROUNDING = 1e-9  # so that a half that was computed in steps is still a half


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds until something ended, or (`ended` false) until it was watched no more."""

    seconds: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """samples: all spans, the cut-off ones included; ended: those of them that ended.

    median_s, p90_s: by when half, or nine in ten, ended; None below the minimum, or where too few of them
    ended for the figure to be known.
    """

    samples: int
    ended: int
    enough: bool
    median_s: int | None = None
    p90_s: int | None = None


def figures(spans: Sequence[Span], *, least_ended: int) -> Figures:
    """The figures of some spans; none at all if fewer than `least_ended` ended."""
    ended = sum(span.ended for span in spans)
    if ended < max(1, least_ended):
        return Figures(len(spans), ended, enough=False)
    return Figures(len(spans), ended, True, quantile(spans, 50), quantile(spans, 90))


def quantile(spans: Iterable[Span], percent: int) -> int | None:
    """The shortest time by which so many percent ended; None if that was not seen to happen."""
    for seconds, left in _survival(spans):
        if left <= 1 - percent / 100 + _ROUNDING:
            return seconds
    return None


def _survival(spans: Iterable[Span]) -> Iterator[tuple[int, float]]:
    """At each time at which some ended: the estimated part that had not."""
    ordered = sorted(spans, key=lambda span: span.seconds)
    at_risk, left = len(ordered), 1.0
    for seconds, group in groupby(ordered, key=lambda span: span.seconds):
        together = list(group)
        ended = sum(span.ended for span in together)
        if ended:
            left *= 1 - ended / at_risk
            yield seconds, left
        at_risk -= len(together)


@dataclass(frozen=True, slots=True)
class Stay:
    """A preemptible node that ran.

    gone_at:   when it was noticed, or left without a notice; None: it runs
    reclaimed: it was taken back, as opposed to given back, lost, or gone with its cluster
    """

    running_at: datetime
    gone_at: datetime | None
    reclaimed: bool = False


def lives(stays: Iterable[Stay], now: datetime) -> list[Span]:
    """From RUNNING to the notice of a reclaim. Whatever else ended a node cuts its span off, and so does
    now."""
    return [
        Span(
            _seconds(stay.running_at, stay.gone_at or now), ended=stay.gone_at is not None and stay.reclaimed
        )
        for stay in stays
    ]


@dataclass(frozen=True, slots=True)
class Target:
    """From `at` on a cluster wants so many preemptible hosts. at None: since before what is looked at."""

    hosts: int
    at: datetime | None


# At one instant: first what is wanted, then who leaves, then who comes.
_TARGET, _GONE, _RAN = range(3)


def fills(targets: Sequence[Target], stays: Sequence[Stay], since: datetime, now: datetime) -> list[Span]:
    """How long each host that a raised target asked for took, in one cluster: from the raise until so many
    nodes RUN at once.

    So a node that replaces one that was taken meets no raised target, and one that was taken meanwhile makes
    it take longer. Lowered below it, a target is cut off then; not met yet, it is cut off now. Those from
    before `since` are not counted.
    """
    waiting: dict[int, datetime] = {}  # by how many nodes have to run: since when
    found: list[Span] = []
    wanted = runs = 0
    for at, what, hosts in _in_order(targets, stays, since):
        if what == _TARGET:
            if at > since:
                waiting |= dict.fromkeys(range(max(wanted, runs) + 1, hosts + 1), at)
            found += [Span(_seconds(waiting.pop(one), at), ended=False) for one in [*waiting] if one > hosts]
            wanted = hosts
        elif what == _GONE:
            runs -= 1
        else:
            runs += 1
            if runs in waiting:
                found.append(Span(_seconds(waiting.pop(runs), at), ended=True))
    return found + [Span(_seconds(began, now), ended=False) for began in waiting.values()]


def _in_order(
    targets: Sequence[Target], stays: Sequence[Stay], since: datetime
) -> list[tuple[datetime, int, int]]:
    changes = [(target.at or since, _TARGET, target.hosts) for target in targets]
    came = [(max(since, stay.running_at), _RAN, 0) for stay in stays]
    went = [(max(since, stay.gone_at), _GONE, 0) for stay in stays if stay.gone_at is not None]
    # What ran before is there before anything is wanted of it.
    before = [(at, -1, hosts) for at, _, hosts in came if at == since]
    after = [one for one in came if one[0] != since]
    return sorted([*before, *changes, *went, *after], key=lambda one: (one[0], one[1]))


def _seconds(start: datetime, end: datetime) -> int:
    return max(0, int((end - start).total_seconds()))
