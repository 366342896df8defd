"""Where the story plays: how pods are run and looked at there, and what else shows there."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ebbtide.cli.demo.stage import Json


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod for a node.

    exits_after_s: from SIGTERM to its end; None: neither SIGTERM nor SIGKILL ends it in time
    """

    name: str
    node: str
    grace_s: int
    exits_after_s: int | None


@dataclass(frozen=True, slots=True)
class PodTold:
    """A pod that got SIGTERM: when, and when it will be killed."""

    node: str
    told_at: datetime
    ends_by: datetime


class Scene(Protocol):
    """One place to play. Its methods raise EbbtideError.

    about:         lines for the introduction
    join_limit_s:  how long a cluster or a node may take to be there
    shows_notices: whether a node's notice shows in the cluster itself
    watch_s:       how long people get to begin to watch
    """

    about: Sequence[str]
    join_limit_s: float
    shows_notices: bool
    watch_s: float

    def watch(self, cluster: Json) -> Sequence[str]:
        """Commands with which people see the cluster themselves, in another terminal."""

    def run(self, cluster: Json, plans: Sequence[PodPlan]) -> None:
        """Start pods on their nodes."""

    def running(self, cluster: Json) -> Set[str]:
        """The nodes on which pods run."""

    def told(self, cluster: Json) -> Sequence[PodTold]:
        """Pods that got SIGTERM and are still there."""

    def announced(self, cluster: Json, node: str, deadline: datetime) -> str | None:
        """What the cluster itself shows of a node's notice, in a sentence; None: nothing yet."""

    def close(self) -> None:
        """Let go of connections."""
