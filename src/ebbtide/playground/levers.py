"""The world's levers as an API offers them: plain JSON values in, plain JSON values out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ebbtide.core.drain import PodKind
from ebbtide.core.events import rfc3339
from ebbtide.errors import BadInput
from ebbtide.playground.behaviours import (
    Dawdles,
    FinishesAfter,
    IgnoresSigterm,
    KubeletDoublesGrace,
    Obeys,
    PodBehaviour,
)
from ebbtide.playground.state import Node, Pod
from ebbtide.playground.world import World

_MOST_PODS = 1_000
_LONGEST_S = 30 * 86_400
_BEHAVIOURS: dict[str, Callable[[float], PodBehaviour]] = {
    "obeys": lambda exits_after_s: Obeys(exits_after_s),
    "dawdles": lambda exits_after_s: Dawdles(exits_after_s),
    "ignores_sigterm": lambda exits_after_s: IgnoresSigterm(),
    "kubelet_doubles_grace": lambda exits_after_s: KubeletDoublesGrace(),
}
_FIELDS = {
    "name", "count", "node", "behaviour", "exits_after_s", "finishes_after_s", "grace_s", "kind", "gpus",
    "reschedule", "class",
}  # fmt: skip


class Levers:
    """Pods and hosts of a `World`, for trying things out. Raises BadInput and NotFound."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def add_pods(self, cluster_id: str, spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Start pods and say what became of them.

        spec: `name` ("job"), `count` (1), `node` (a name or uid; absent: the scheduler's choice), `behaviour`
        (obeys, dawdles, ignores_sigterm, kubelet_doubles_grace), `exits_after_s` (from SIGTERM to its end),
        `finishes_after_s` (completes by itself), `grace_s` (30), `kind` (workload, daemon, mirror, critical),
        `gpus` (0), `reschedule` (false), `class` (preemptible or standard; absent: any).
        """
        unknown = sorted(set(spec) - _FIELDS)
        if unknown:
            known = ", ".join(sorted(_FIELDS))
            raise BadInput(f"a pod has no field {unknown[0]}; it may have {known}", param=unknown[0])
        made = self._world.run_pods(
            cluster_id,
            _text(spec, "node"),
            _whole(spec, "count", 1, least=1, most=_MOST_PODS),
            _behaviour(spec),
            _whole(spec, "grace_s", 30, least=0, most=_LONGEST_S),
            _text(spec, "name") or "job",
            kind=_kind(spec),
            gpus=_whole(spec, "gpus", 0, least=0, most=1024),
            on=_text(spec, "class") or "",
            reschedule=_flag(spec, "reschedule"),
        )
        ours = set(made)
        return [pod for pod in await self.pods(cluster_id) if pod["uid"] in ours]

    async def pods(self, cluster_id: str) -> Sequence[Mapping[str, Any]]:
        """Every pod of the cluster, those that wait for a node included."""
        return [_pod(node, pod) for node, pod in self._world.cluster_pods(cluster_id)]

    async def volumes(self, cluster_id: str) -> Sequence[Mapping[str, Any]]:
        """Every PersistentVolume of the cluster, as its manifest."""
        return list(self._world.volumes(cluster_id).values())

    async def delete_node(self, cluster_id: str, node: str) -> Mapping[str, Any]:
        """What `kubectl delete node` does, by the node's name or uid. Raises NotFound."""
        self._world.delete_node(cluster_id, node)
        return {"node": node}

    async def vanish(self, host: str) -> Mapping[str, Any]:
        """The host is gone, now and without notice. Raises NotFound for a host that never had an instance."""
        return {"host": host, "node_uid": self._world.vanish_used(host)}

    async def restore(self, host: str) -> Mapping[str, Any]:
        """A vanished host is there again."""
        self._world.restore(host)
        return {"host": host}


def _whole(spec: Mapping[str, Any], field: str, default: int, *, least: int, most: int) -> int:
    value = spec.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"{field} must be a whole number from {least} to {most}", param=field)
    return value


def _seconds(spec: Mapping[str, Any], field: str) -> float | None:
    value = spec.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise BadInput(f"{field} must be a number of seconds, at most {_LONGEST_S}", param=field)
    return float(value)


def _text(spec: Mapping[str, Any], field: str) -> str | None:
    value = spec.get(field)
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= 253):
        raise BadInput(f"{field} must be a text of 1 to 253 characters", param=field)
    return value


def _flag(spec: Mapping[str, Any], field: str) -> bool:
    value = spec.get(field, False)
    if not isinstance(value, bool):
        raise BadInput(f"{field} must be true or false", param=field)
    return value


def _kind(spec: Mapping[str, Any]) -> PodKind:
    word = _text(spec, "kind") or PodKind.WORKLOAD.value
    offered = [kind.value for kind in PodKind if kind is not PodKind.FINISHED]
    if word not in offered:
        raise BadInput(f"kind must be one of {', '.join(offered)}", param="kind")
    return PodKind(word)


def _behaviour(spec: Mapping[str, Any]) -> PodBehaviour:
    exits_after_s, finishes_after_s = _seconds(spec, "exits_after_s"), _seconds(spec, "finishes_after_s")
    word = _text(spec, "behaviour") or "obeys"
    if word not in _BEHAVIOURS:
        raise BadInput(f"behaviour must be one of {', '.join(_BEHAVIOURS)}", param="behaviour")
    if finishes_after_s is not None:
        if word != "obeys":
            raise BadInput("a pod with finishes_after_s obeys SIGTERM until then", param="behaviour")
        return FinishesAfter(finishes_after_s, 5.0 if exits_after_s is None else exits_after_s)
    usual_s = 240.0 if word == "dawdles" else 5.0
    return _BEHAVIOURS[word](usual_s if exits_after_s is None else exits_after_s)


def _pod(node: Node | None, pod: Pod) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "name": pod.name,
        "node": node.name if node else None,
        "state": _state(pod),
        "kind": pod.plan.kind.value,
        "behaviour": type(pod.plan.behaviour).__name__,
        "grace_s": pod.plan.grace_s,
        "started_at": _instant(pod.bound_at),
        "told_at": _instant(pod.told_at),
        "ends_by": _instant(pod.ends_by),
    }


def _instant(at: datetime | None) -> str | None:
    return rfc3339(at) if at else None


def _state(pod: Pod) -> str:
    if pod.bound_at is None:
        return "pending"
    if pod.finished:
        return "finished"
    if pod.dead:
        return "dead with its machine"
    return "terminating" if pod.told_at else "running"
