"""One builder per event: the only place with its wording. Past tense: who, why, until when.

One event is stored once under its own reason. Clients written against the documentation's older names get an
alias beside it, rendered at the edge (`aliases`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Reason(StrEnum):
    SCALED_UP = "TogetherScaledUp"
    PREEMPTED = "TogetherPreempted"
    SCALED_DOWN = "TogetherScaledDown"
    LOST = "EbbtideNodeLost"
    FAILED = "EbbtideNodeFailed"
    LATE_NOTICE = "EbbtideLateNotice"
    GRACE_EXPIRED = "EbbtideGraceExpired"
    BUDGET_OVERRIDDEN = "EbbtideBudgetOverridden"
    POD_ARRIVED = "EbbtidePodArrived"
    REMEDIATED = "EbbtideNodeRemediated"
    RESTARTING = "EbbtideNodeRestarting"


_NAMED = 5  # of a list, so many by name
# The one closing event of a drain in Kubernetes. No lifecycle event: the receipt says more.
DRAINED = "EbbtideNodeDrained"

ALIASES = {Reason.SCALED_UP: "TogetherNodeAdded", Reason.PREEMPTED: "TogetherPreemptionNotified"}


@dataclass(frozen=True, slots=True)
class Event:
    """A lifecycle event before it has a number. `at` is when it happened."""

    reason: Reason
    message: str
    at: datetime


def rfc3339(instant: datetime) -> str:
    """An instant to the second with `Z`, the form of the wire."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def joined(compute_class: str, at: datetime, waited_s: int) -> Event:
    return Event(Reason.SCALED_UP, f"{compute_class} node joined {waited_s} s after it was placed", at)


def preempted(why: str, at: datetime, deadline: datetime) -> Event:
    left_s = round((deadline - at).total_seconds())
    return Event(
        Reason.PREEMPTED,
        f"capacity was needed elsewhere ({why}); the node is removed as soon as its pods are gone, "
        f"within {left_s} s, at {rfc3339(deadline)} at the latest",
        at,
    )


def scaled_down(why: str, at: datetime, deadline: datetime | None) -> Event:
    until = f"; its pods have until {rfc3339(deadline)}" if deadline else ""
    return Event(Reason.SCALED_DOWN, f"{why}{until}", at)


def lost(at: datetime, last_seen: datetime | None) -> Event:
    seen = f"last seen healthy at {rfc3339(last_seen)}" if last_seen else "never seen healthy"
    return Event(Reason.LOST, f"the host vanished without notice; {seen}; billing ended there", at)


def failed(why: str, at: datetime) -> Event:
    return Event(Reason.FAILED, f"the node was given up: {why}", at)


def remediated(why: str, at: datetime, deadline: datetime | None) -> Event:
    """deadline: None for a node that did not run yet."""
    until = f"its pods have until {rfc3339(deadline)}" if deadline else "it did not run yet"
    return Event(Reason.REMEDIATED, f"the node was replaced ({why}); {until}", at)


def restarting(why: str, at: datetime, deadline: datetime) -> Event:
    return Event(
        Reason.RESTARTING, f"the machine was restarted ({why}); its pods had until {rfc3339(deadline)}", at
    )


def late_notice(at: datetime, until: datetime, deadline: datetime, *, told: bool = True) -> Event:
    """told: pods get their SIGTERM now; else the cluster did not answer until the node had to leave."""
    what = (
        f"pods got SIGTERM only now and have until {rfc3339(until)}"
        if told
        else f"its pods got no SIGTERM, because the cluster did not answer until {rfc3339(until)}"
    )
    return Event(
        Reason.LATE_NOTICE,
        f"Ebbtide was down when notice was due: {what} "
        f"(the deadline was {rfc3339(deadline)}); the time since the notice is credited",
        at,
    )


@dataclass(frozen=True, slots=True)
class Overdue:
    """A pod that was still there when its node had to leave.

    pod:        as NAMESPACE/NAME, or its name alone
    containers: those that still ran, where the cluster says which
    used_s:     seconds since its SIGTERM; None: it got none
    """

    pod: str
    containers: tuple[str, ...] = ()
    used_s: int | None = None


def grace_expired(pods: Sequence[Overdue], at: datetime) -> Event:
    told = _some([_overdue(pod) for pod in pods])
    return Event(Reason.GRACE_EXPIRED, f"still there at the deadline and ended with the node: {told}", at)


def _overdue(pod: Overdue) -> str:
    which = f" (container {', '.join(pod.containers)})" if pod.containers else ""
    used = "without SIGTERM" if pod.used_s is None else f"{pod.used_s} s after SIGTERM"
    return f"{pod.pod}{which} {used}"


def budget_overridden(pods: Mapping[str, Sequence[str]], at: datetime) -> Event:
    """pods: those that each budget would have kept, by the budget's name."""
    told = _some([f"{name} ({_some(pods[name])})" for name in sorted(pods)])
    return Event(
        Reason.BUDGET_OVERRIDDEN,
        f"pods got SIGTERM although a disruption budget allowed none: {told}; a reclaim asks "
        f"none, and a release no longer when a pod's grace must begin",
        at,
    )


def pod_arrived(pods: Sequence[str], at: datetime) -> Event:
    return Event(
        Reason.POD_ARRIVED,
        f"pods came onto the draining node, because they tolerate its cordon: {_some(pods)}; they get what "
        f"is left of the time, and so does whatever comes after them. Take the toleration away",
        at,
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
