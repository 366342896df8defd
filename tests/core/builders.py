"""Small builders for what core works on: each says only what matters to its test."""

from datetime import UTC, datetime, timedelta

from ebbtide.core.capacity import Candidate, Holding
from ebbtide.core.nodes import Phase

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    """NOW plus so many seconds."""
    return NOW + timedelta(seconds=seconds)


def a_holding(cluster: str, held: int = 0, wanted: int = 0, **more: int | str) -> Holding:
    """A cluster named `project/name`, or only `name`, which is then its project too. Counts are GPUs."""
    project = cluster.split("/")[0]
    return Holding(cluster, project, held, wanted, **more)  # type: ignore[arg-type]  # fields by name


def a_candidate(
    uid: str,
    cluster: str = "a",
    *,
    ran_s: float = 3_600,
    busy: bool = False,
    phase: Phase = Phase.RUNNING,
    cordoned: bool = False,
) -> Candidate:
    """A node of `cluster` that has run for `ran_s` seconds at NOW, idle unless said otherwise."""
    running_at = after(-ran_s) if phase is Phase.RUNNING else None
    return Candidate(uid, cluster, cluster.split("/")[0], phase, busy, running_at, cordoned)
