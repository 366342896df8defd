"""What was seen: how long saves took, how often the job was preempted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..checkpoint_times import SaveTimes
from ..say import read_journal
from .units import BadQuantity, parse_seconds

READ_WINDOW_S = 72 * 3600.0
_REASONS = frozenset({"TogetherPreempted", "TogetherPreemptionNotified"})
_OWN = ".ebbtide"


@dataclass(frozen=True)
class Rate:
    """`count` preemptions in `span_s` seconds. With none seen, the mean life is at least the span."""

    count: int
    span_s: float
    source: str

    @property
    def life_s(self) -> float:
        """Mean time between preemptions."""
        return self.span_s / max(1, self.count)


@dataclass(frozen=True)
class History:
    """What a checkpoint folder remembers: the slow saves' time, the last save's size, the preemptions."""

    p95_s: float | None
    last_bytes: int
    saves: int
    rate: Rate | None


def parse_observed(text: str) -> Rate:
    """ "5/72h": five preemptions in 72 hours."""
    count, slash, span = text.partition("/")
    if not slash or not count.strip().isdigit():
        raise BadQuantity(f"{text!r} is no rate such as 5/72h")
    span_s = parse_seconds(span)
    if span_s <= 0:
        raise BadQuantity("preemptions need a span of time, such as 5/72h")
    return Rate(int(count), span_s, "as given")


def read_history(folder: Path) -> History:
    """Reads what the guard keeps beside its checkpoints. Raises BadQuantity when there is nothing."""
    own = folder / _OWN
    if not own.is_dir():
        raise BadQuantity(f"{folder} holds no history: no guard has saved there yet")
    times = SaveTimes(own / "save-times.json")
    return History(times.p95_s, times.last_bytes, len(times), _rate_of(own / "timeline.jsonl"))


def _rate_of(timeline: Path) -> Rate | None:
    events = [e for e in read_journal(timeline) if e.get("rank", 0) == 0 and isinstance(e.get("at"), str)]
    instants = sorted(datetime.fromisoformat(str(e["at"])) for e in events)
    if len(instants) < 2:
        return None
    span_s = (instants[-1] - instants[0]).total_seconds()
    left = sum(1 for e in events if e["event"] == "left")
    return Rate(left, span_s, "this run's timeline") if span_s > 0 else None


def read_cluster(text: str) -> Rate:
    """The rate in a cluster's JSON (as the API and its clients print it): preempted nodes in its event
    window.

    A job that spans several nodes stops whenever one of them is taken, so nodes are counted, each once.
    Raises BadQuantity when the text is no such JSON.
    """
    try:
        cluster: Mapping[str, Any] = json.loads(text)
        events = cluster["node_lifecycle_events"] or []
        preempted = {e["node_id"] for e in events if e["reason"] in _REASONS}
        stamps = [_instant(e["timestamp"]) for e in events]
        created = cluster.get("created_at")
        stamps += [_instant(created)] if created else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadQuantity("this is no cluster with node_lifecycle_events") from error
    seen_s = (max(stamps) - min(stamps)).total_seconds() if stamps else 0.0
    span_s = min(READ_WINDOW_S, seen_s) or READ_WINDOW_S
    return Rate(len(preempted), span_s, "the cluster's lifecycle events")


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
