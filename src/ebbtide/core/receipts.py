"""What became of a drain, told from its records: each pod's end, and one sentence for all of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ebbtide.core.words import many


class PodEnd(StrEnum):
    """How a pod's part in a drain ended."""

    THERE = "there"  # the drain goes on, and so does the pod
    EXITED = "exited"  # a fresh read no longer had it
    KILLED = "killed"  # still there when its node had to leave: ended with the machine
    UNKNOWN = "unknown"  # the node left, and nobody saw what became of the pod


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod in a drain, as it was recorded while it happened.

    told_at, grace_given_s: its first SIGTERM, and the grace that came with it; None: not told by us
    told_by:  `signal` (DELETE), `eviction`, or `others` when it was terminating before we came
    arrived:  it came after the notice
    """

    pod_uid: str
    namespace: str
    name: str
    kind: str
    first_seen_at: datetime
    arrived: bool
    tolerates: bool
    grace_asked_s: int
    told_at: datetime | None = None
    told_by: str | None = None
    grace_given_s: int | None = None
    shortened_to_s: int | None = None
    refused: str | None = None
    overrode: str | None = None
    gone_at: datetime | None = None
    killed: bool = False

    @property
    def shown(self) -> str:
        """NAMESPACE/NAME, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def end_of(pod: PodRecord, left_at: datetime | None) -> PodEnd:
    """How it ended, given when its node left (None: it has not)."""
    if pod.killed:
        return PodEnd.KILLED
    if pod.gone_at is not None:
        return PodEnd.EXITED
    return PodEnd.THERE if left_at is None else PodEnd.UNKNOWN


def ended_at(pod: PodRecord, left_at: datetime | None) -> datetime | None:
    """When it was gone; for a pod that ended with its machine, when the node left."""
    return left_at if pod.killed else pod.gone_at


def used_s(pod: PodRecord, left_at: datetime | None) -> int | None:
    """Whole seconds from its SIGTERM to its end; None while either is not known."""
    end = ended_at(pod, left_at)
    if pod.told_at is None or end is None:
        return None
    return max(0, int((end - pod.told_at).total_seconds()))


def used_up(pod: PodRecord, left_at: datetime | None) -> bool:
    """Whether it took all the grace that it got: it may have been killed when that was over."""
    used, given = used_s(pod, left_at), pod.shortened_to_s or pod.grace_given_s
    return used is not None and given is not None and used >= given


def sentence(
    pods: Sequence[PodRecord], *, noticed_at: datetime, deadline: datetime, left_at: datetime
) -> str:
    """The whole drain in one sentence, for whoever looks at the node last."""
    took_s = max(0, int((left_at - noticed_at).total_seconds()))
    window_s = int((deadline - noticed_at).total_seconds())
    ends = Counter(end_of(pod, left_at) for pod in pods)
    words = {
        PodEnd.EXITED: "exited",
        PodEnd.KILLED: "ended with the machine",
        PodEnd.UNKNOWN: "not seen again",
    }
    parts = [f"{ends[end]} {word}" for end, word in words.items() if ends[end]]
    told = f"of {many(len(pods), 'pod')} {', '.join(parts)}" if parts else "it had no pods"
    return f"left {took_s} s after the notice, of {window_s} s; {told}"
