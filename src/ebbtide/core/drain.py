"""The drain's timetable: what is due now, given the deadline, the pods seen and the time. Pure.

Two kinds. A reclaim asks nobody: every workload pod gets SIGTERM at once with as much of its own grace as
fits before the deadline. A release is the tenant's own act: it evicts, so disruption budgets hold, until a
pod's grace must begin; from then on it goes like a reclaim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from math import floor

from ebbtide.core.nodes import DrainKind


@dataclass(frozen=True, slots=True)
class DrainPolicy:
    """Spans of a drain, in seconds. `window_s` is the promise to tenants; the rest are margins inside it."""

    window_s: int = 300
    kill_margin_s: int = 3  # an obedient pod is gone this long before the deadline
    late_notice_s: int = 60  # given once when no SIGTERM could be sent because we were down
    critical_reserve_s: int = 30  # system-node-critical pods wait for the others until this long before it
    release_margin_s: int = 10  # a release stops being polite this long before a pod's grace must begin
    detach_limit_s: int = 60  # after the deadline, attachments are waited for this long, unbilled
    resync_s: int = (
        5  # a fresh read of the pods at least this often while a drain waits; a watch is only a hint
    )


class PodKind(StrEnum):
    WORKLOAD = "workload"
    DAEMON = "daemon"  # owned by a DaemonSet: not signalled, goes with the node
    MIRROR = "mirror"  # a static pod's picture: never touched
    CRITICAL = "critical"  # system-node-critical: last
    FINISHED = "finished"  # succeeded or failed: does not count


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod on the node by a fresh read.

    grace_s:   its own terminationGracePeriodSeconds
    ends_by:   when its grace ends, if it is terminating already; None if nobody told it to go
    namespace: where it lives; empty where a kind of cluster knows no namespaces
    tolerates_cordon: it may be scheduled onto a cordoned node (it tolerates everything)
    containers: those of its containers that run, as far as the cluster says
    """

    uid: str
    name: str
    kind: PodKind
    grace_s: int = 30
    ends_by: datetime | None = None
    namespace: str = ""
    tolerates_cordon: bool = False
    containers: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether a node with it is not empty."""
        return self.kind in (PodKind.WORKLOAD, PodKind.CRITICAL)


@dataclass(frozen=True, slots=True)
class PodOrder:
    """One pod to be told to go, with the grace it gets.

    shorten: it was told before, with an end past the deadline
    """

    uid: str
    name: str
    grace_s: int
    shorten: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class DrainState:
    """What the ledger knows of a drain.

    ends_at:     the deadline, or the end of a late notice if any
    signal_from: no pod is told before this; None: at once
    """

    kind: DrainKind
    deadline: datetime
    ends_at: datetime
    signal_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class DrainStep:
    """What is due now.

    signal: pods to be sent SIGTERM with the grace given (DELETE)
    evict:  pods to be asked politely (eviction; budgets may refuse)
    done:   the node is empty, or its time is over: leave DRAINING
    due:    when to look again
    """

    signal: tuple[PodOrder, ...] = ()
    evict: tuple[PodOrder, ...] = ()
    done: bool = False
    overdue: bool = False
    due: datetime | None = None
    waiting_for: tuple[PodSeen, ...] = field(default=())


def longest_warning_s(policy: DrainPolicy) -> int:
    """How long SIGTERM may come after the notice at most: what is left is still worth having."""
    return max(0, policy.window_s - _worth_having_s(policy))


def signal_time(
    noticed_at: datetime, wanted: datetime | None, deadline: datetime, policy: DrainPolicy
) -> datetime:
    """When SIGTERM is due: at the notice, or as its cluster wants it, but early enough whatever was wanted
    (the policy may have changed since)."""
    latest = deadline - timedelta(seconds=_worth_having_s(policy))
    return max(noticed_at, min(wanted or noticed_at, latest))


def _worth_having_s(policy: DrainPolicy) -> int:
    """The shortest grace that we give late; and time for the others to go before critical pods must."""
    return max(policy.late_notice_s, 2 * policy.critical_reserve_s)


def grace_for(own_grace_s: int, now: datetime, ends_at: datetime, policy: DrainPolicy) -> int:
    """Grace of a pod told at `now`: its own, cut to what is left less the kill margin, at least 1 s."""
    left_s = floor((ends_at - now).total_seconds()) - policy.kill_margin_s
    return max(1, min(own_grace_s, left_s))


def late_end(deadline: datetime, now: datetime, policy: DrainPolicy) -> datetime | None:
    """The end of the late notice, if a first SIGTERM sent at `now` would leave less than `late_notice_s`.

    Only for a drain whose first signal was never attempted because no worker of ours was alive; the caller
    knows that.
    """
    end = now + timedelta(seconds=policy.late_notice_s)
    return end if end > deadline else None


def next_step(
    drain: DrainState, pods: Sequence[PodSeen], now: datetime, policy: DrainPolicy, attachments: int = 0
) -> DrainStep:
    """What a drain has to do at `now`, seeing `pods` (a fresh, complete list) and volume attachments."""
    counted = [pod for pod in pods if pod.counts]
    if not counted and not attachments:
        return DrainStep(done=True)
    if now >= drain.ends_at:
        return DrainStep(done=True, overdue=bool(counted), waiting_for=_sorted(counted))
    if drain.signal_from is not None and now < drain.signal_from:
        soon = now + timedelta(seconds=policy.resync_s)
        return DrainStep(due=min(soon, drain.signal_from, drain.ends_at), waiting_for=_sorted(counted))
    workload = [pod for pod in counted if pod.kind is PodKind.WORKLOAD]
    critical = [pod for pod in counted if pod.kind is PodKind.CRITICAL]
    critical_due = not workload or now >= drain.ends_at - timedelta(seconds=policy.critical_reserve_s)
    told = workload + (critical if critical_due else [])
    orders = [order for pod in told if (order := _order(pod, drain, now, policy))]
    polite = {
        pod.uid for pod in told if drain.kind is DrainKind.RELEASE and now < _polite_until(pod, drain, policy)
    }
    return DrainStep(
        signal=tuple(order for order in orders if order.uid not in polite),
        evict=tuple(order for order in orders if order.uid in polite and not order.shorten),
        due=_due(drain, workload, critical, now, policy),
        waiting_for=_sorted(counted),
    )


def _order(pod: PodSeen, drain: DrainState, now: datetime, policy: DrainPolicy) -> PodOrder | None:
    """Grace is one shot: a pod that ends in time is never told again; another is shortened once."""
    if pod.ends_by is None:
        grace_s = grace_for(pod.grace_s, now, drain.ends_at, policy)
        return PodOrder(pod.uid, pod.name, grace_s, namespace=pod.namespace)
    if pod.ends_by > drain.ends_at:
        grace_s = grace_for(pod.grace_s, now, drain.ends_at, policy)
        return PodOrder(pod.uid, pod.name, grace_s, shorten=True, namespace=pod.namespace)
    return None


def _polite_until(pod: PodSeen, drain: DrainState, policy: DrainPolicy) -> datetime:
    reserve_s = min(pod.grace_s, policy.window_s) + policy.release_margin_s
    return drain.ends_at - timedelta(seconds=reserve_s)


def _due(
    drain: DrainState,
    workload: Sequence[PodSeen],
    critical: Sequence[PodSeen],
    now: datetime,
    policy: DrainPolicy,
) -> datetime:
    moments = [now + timedelta(seconds=policy.resync_s), drain.ends_at]
    if drain.kind is DrainKind.RELEASE:
        moments += [_polite_until(pod, drain, policy) for pod in workload if pod.ends_by is None]
    if critical:
        moments.append(drain.ends_at - timedelta(seconds=policy.critical_reserve_s))
    return min(moment for moment in moments if moment > now)


def _sorted(pods: Sequence[PodSeen]) -> tuple[PodSeen, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))
