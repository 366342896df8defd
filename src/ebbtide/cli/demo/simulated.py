"""The story on the simulated fleet: pods are the playground's."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime

from ebbtide.cli.demo import stage as on
from ebbtide.cli.demo.scene import PodPlan, PodTold
from ebbtide.cli.demo.stage import Json
from ebbtide.client import Client


class SimulatedScene:
    """A `Scene` that speaks to the playground's routes. operator: a client with the operator's key."""

    about: Sequence[str] = ()
    join_limit_s = 60.0
    shows_notices = False
    watch_s = 0.0

    def __init__(self, operator: Client) -> None:
        self._operator = operator

    def watch(self, cluster: Json) -> Sequence[str]:
        return ()

    def run(self, cluster: Json, plans: Sequence[PodPlan]) -> None:
        for plan in plans:
            obeys = {"behaviour": "obeys", "exits_after_s": plan.exits_after_s}
            how = {"behaviour": "kubelet_doubles_grace"} if plan.exits_after_s is None else obeys
            pod = {"name": plan.name, "node": plan.node, "grace_s": plan.grace_s, **how}
            self._operator.add_pods(cluster["cluster_id"], pod)

    def running(self, cluster: Json) -> Set[str]:
        return {pod["node"] for pod in self._pods(cluster) if pod["state"] == "running"}

    def told(self, cluster: Json) -> Sequence[PodTold]:
        return [
            PodTold(pod["node"], on.instant(pod["told_at"]), on.instant(pod["ends_by"]))
            for pod in self._pods(cluster)
            if pod["told_at"]
        ]

    def announced(self, cluster: Json, node: str, deadline: datetime) -> str | None:
        return None

    def close(self) -> None:
        return

    def _pods(self, cluster: Json) -> Sequence[Json]:
        return self._operator.pods(cluster["cluster_id"])
