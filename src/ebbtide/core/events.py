"""One builder per event: the only place with its wording. Past tense: who, why, until when.

One event is stored once under its own reason. Clients written against the documentation's older names get an
alias beside it, rendered at the edge (`aliases`).
"""

from __future__ import annotations

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
    REMEDIATED = "EbbtideNodeRemediated"
    RESTARTING = "EbbtideNodeRestarting"


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


def remediated(why: str, at: datetime, deadline: datetime) -> Event:
    return Event(
        Reason.REMEDIATED, f"the node was replaced ({why}); its pods have until {rfc3339(deadline)}", at
    )


def restarting(why: str, at: datetime, deadline: datetime) -> Event:
    return Event(
        Reason.RESTARTING, f"the machine was restarted ({why}); its pods had until {rfc3339(deadline)}", at
    )


def late_notice(at: datetime, until: datetime, deadline: datetime) -> Event:
    return Event(
        Reason.LATE_NOTICE,
        f"Ebbtide was down when notice was due: pods got SIGTERM only now and have until {rfc3339(until)} "
        f"(the deadline was {rfc3339(deadline)}); the time since the notice is credited",
        at,
    )


def grace_expired(pods: tuple[str, ...], at: datetime) -> Event:
    names = ", ".join(pods[:5]) + (f" and {len(pods) - 5} more" if len(pods) > 5 else "")
    return Event(Reason.GRACE_EXPIRED, f"still there at the deadline and ended with the node: {names}", at)
