"""Pods: how they start, and how a kubelet takes a DELETE: SIGTERM, grace, SIGKILL."""

from __future__ import annotations

from datetime import datetime, timedelta

from ebbtide.playground.behaviours import FinishesAfter, FinishesAt, IgnoresSigterm, KubeletDoublesGrace
from ebbtide.playground.facts import What
from ebbtide.playground.state import Cluster, Node, Pod, PodPlan, State


def make(state: State, plan: PodPlan, name: str) -> Pod:
    return Pod(state.uid("pod"), name, plan)


def bind(state: State, cluster: Cluster, node: Node, pod: Pod) -> None:
    """The pod starts on the node now."""
    pod.bound_at = state.now
    node.pods[pod.uid] = pod
    node.attached += [f"{pod.uid}/{number}" for number, _ in enumerate(pod.plan.volumes)]
    note(state, What.BOUND, cluster, node, pod)
    state.touch(cluster.cluster_id, node.uid)
    behaviour = pod.plan.behaviour
    if isinstance(behaviour, FinishesAt):
        state.plan(max(behaviour.at, state.now), "pod_finished", cluster.cluster_id, node.uid, pod.uid)
    elif isinstance(behaviour, FinishesAfter):
        state.plan(state.at(behaviour.seconds), "pod_finished", cluster.cluster_id, node.uid, pod.uid)


def find(state: State, cluster_id: str, node_uid: str, pod_uid: str) -> tuple[Cluster, Node, Pod] | None:
    cluster = state.clusters.get(cluster_id)
    node = cluster.nodes.get(node_uid) if cluster else None
    pod = node.pods.get(pod_uid) if node else None
    return (cluster, node, pod) if cluster and node and pod else None


def would_tell(state: State, pod: Pod, grace_s: int) -> bool:
    """Whether a DELETE with this grace changes anything: grace only ever becomes shorter."""
    ends_by = state.at(grace_s)
    return not pod.finished and (pod.ends_by is None or ends_by < pod.ends_by)


def tell(state: State, cluster: Cluster, node: Node, pod: Pod, grace_s: int) -> None:
    """DELETE with a grace: the kubelet sends SIGTERM, and SIGKILL when the grace is over."""
    if not would_tell(state, pod, grace_s):
        return
    again = pod.told_at is not None
    pod.told_at = pod.told_at or state.now
    pod.ends_by = state.at(grace_s)
    state.tell(
        What.SHORTENED if again else What.SIGTERM,
        cluster_id=cluster.cluster_id,
        node_uid=node.uid,
        pod=pod.name,
        asked_s=pod.plan.grace_s,
        given_s=grace_s,
    )
    state.touch(cluster.cluster_id, node.uid)
    if pod.dead or (again and not pod.plan.behaviour.shortening_bites):
        return
    pod.exit_at = _exit_at(pod, pod.told_at, pod.ends_by)
    state.plan(pod.exit_at, "pod_exit", cluster.cluster_id, node.uid, pod.uid)


def _exit_at(pod: Pod, told_at: datetime, ends_by: datetime) -> datetime:
    behaviour = pod.plan.behaviour
    if isinstance(behaviour, IgnoresSigterm):
        return ends_by
    if isinstance(behaviour, KubeletDoublesGrace):
        return ends_by + (ends_by - told_at)
    return min(told_at + timedelta(seconds=behaviour.exits_after_s), ends_by)


def note(state: State, what: What, cluster: Cluster, node: Node, pod: Pod, detail: str = "") -> None:
    state.tell(what, cluster_id=cluster.cluster_id, node_uid=node.uid, pod=pod.name, detail=detail)
