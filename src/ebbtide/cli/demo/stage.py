"""What the story plays on: the pool, the two tenants, and the patience with which it looks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ebbtide.client import Client, Unreachable
from ebbtide.clock import monotonic
from ebbtide.errors import EbbtideError

Json = dict[str, Any]
T = TypeVar("T")

REGION = "story-1"
POOL = "story"
GPU_TYPE = "H100_SXM"
HOSTS = 4
_LOOK_EVERY_S = 0.2


class StoryFailed(EbbtideError):
    """A step of the story did not happen as promised."""


class Interrupted(EbbtideError):
    """The process is asked to stop."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody with a project of their own. `style` is the colour that they are shown in."""

    name: str
    project_id: str
    client: Client
    style: str


@dataclass(frozen=True, slots=True)
class Stage:
    """operator: a client with the operator's key. stop: set when the process shall end.

    drain_window_s and cooldown_s are what the server was started with.
    """

    operator: Client
    lender: Tenant
    standard: Tenant
    drain_window_s: int
    cooldown_s: int
    stop: threading.Event

    def pause(self, seconds: float) -> None:
        """Let time pass. Raises Interrupted when the process shall end."""
        if self.stop.wait(seconds):
            raise Interrupted("stopped")

    def until(self, what: str, look: Callable[[], T | None], limit_s: float) -> T:
        """Look until there is something; raise StoryFailed with `what` after `limit_s`."""
        begun = monotonic()
        while True:
            found = look()
            if found is not None and found is not False:
                return found
            if monotonic() - begun > limit_s:
                raise StoryFailed(f"{what}: not so within {limit_s:g} s")
            self.pause(_LOOK_EVERY_S)


def require(so: bool, what: str) -> None:
    """Raise StoryFailed unless it is so."""
    if not so:
        raise StoryFailed(what)


def instant(text: str) -> datetime:
    """An instant of the wire."""
    return datetime.fromisoformat(text)


def is_preemptible(node: Json) -> bool:
    return str(node["node_id"]).startswith("gpu-preemptible-")


def preemptible_running(cluster: Json) -> list[Json]:
    """The live preemptible nodes that run and are not draining."""
    return [
        node
        for node in cluster["gpu_worker_nodes"]
        if is_preemptible(node) and node["status"] == "Running" and not node.get("marked_for_deletion")
    ]


def draining(cluster: Json) -> list[Json]:
    return [node for node in cluster["gpu_worker_nodes"] if node.get("marked_for_deletion")]


def reasons(cluster: Json, node_id: str) -> set[str]:
    """The lifecycle reasons that were announced for a node."""
    return {event["reason"] for event in cluster["node_lifecycle_events"] if event["node_id"] == node_id}


def clear(stage: Stage, limit_s: float) -> int:
    """Delete what an earlier story left, and wait for the hosts. Answers how many clusters it was.

    Raises StoryFailed when somebody else's cluster is in the way.
    """
    ours = {stage.lender.project_id, stage.standard.project_id}
    there = [each for each in stage.operator.clusters() if each["region"] == REGION]
    for cluster in there:
        if not _is_left_over(cluster, ours):
            raise StoryFailed(
                f"cluster {cluster['cluster_name']} ({cluster['cluster_id']}) is in region {REGION}, "
                f"where the story plays; delete it: ebbtide clusters delete {cluster['cluster_id']}"
            )
        if cluster["status"] != "Deleting":
            stage.operator.delete_cluster(cluster["cluster_id"])
    stage.until("the story's hosts are free", lambda: _free_hosts(stage) == HOSTS or None, limit_s)
    return len(there)


def _is_left_over(cluster: Json, ours: set[str]) -> bool:
    return cluster["project_id"] in ours or str(cluster["cluster_name"]).startswith("story-")


def _free_hosts(stage: Stage) -> int:
    try:
        hosts = stage.operator.hosts(POOL)
    except Unreachable:
        return 0
    return sum(1 for host in hosts if host["bucket"] in ("free", "headroom"))
