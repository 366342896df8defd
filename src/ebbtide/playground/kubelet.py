"""The kubelet and the controllers around it: how pods end, and what a dead machine leaves behind."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.core.drain import PodKind
from ebbtide.playground import scheduler
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace
from ebbtide.playground.facts import What
from ebbtide.playground.pods import find, note
from ebbtide.playground.state import Cluster, Node, Pod, State


def on_pod_finished(state: State, cluster_id: str, node_uid: str, pod_uid: str) -> None:
    found = find(state, cluster_id, node_uid, pod_uid)
    if found is None or found[2].dead or found[2].finished or found[2].told_at is not None:
        return
    cluster, node, pod = found
    pod.finished = True
    note(state, What.FINISHED, cluster, node, pod)
    _leave_volumes(state, cluster, node, pod)
    state.touch(cluster_id, node_uid)
    scheduler.fill(state, cluster)


def on_pod_exit(state: State, cluster_id: str, node_uid: str, pod_uid: str) -> None:
    found = find(state, cluster_id, node_uid, pod_uid)
    if found is None or found[2].dead:  # an end only ever moves earlier, so a stale one finds nothing
        return
    cluster, node, pod = found
    note(state, What.KILLED if _was_killed(pod) else What.EXITED, cluster, node, pod)
    del node.pods[pod_uid]
    _leave_volumes(state, cluster, node, pod)
    state.touch(cluster_id, node_uid)
    scheduler.replace(state, cluster, pod, node)


def _was_killed(pod: Pod) -> bool:
    behaviour = pod.plan.behaviour
    if isinstance(behaviour, IgnoresSigterm | KubeletDoublesGrace) or pod.told_at is None:
        return True
    return pod.exit_at != pod.told_at + timedelta(seconds=behaviour.exits_after_s)


def _leave_volumes(state: State, cluster: Cluster, node: Node, pod: Pod) -> None:
    for number, volume in enumerate(pod.plan.volumes):
        name = f"{pod.uid}/{number}"
        if name not in node.attached or volume.lingers_s is None:
            continue
        if volume.lingers_s <= 0:
            node.attached.remove(name)
        else:
            state.plan(state.at(volume.lingers_s), "detached", cluster.cluster_id, node.uid, name)


def on_detached(state: State, cluster_id: str, node_uid: str, name: str) -> None:
    cluster = state.clusters.get(cluster_id)
    node = cluster.nodes.get(node_uid) if cluster else None
    if node is None or name not in node.attached:
        return
    node.attached.remove(name)
    state.tell(What.DETACHED, cluster_id=cluster_id, node_uid=node_uid, pod=name)
    state.touch(cluster_id, node_uid)


def on_machine_dead(state: State, cluster_id: str, node_uid: str, why: str) -> None:
    """Every container ends with its machine; the objects stay until somebody takes them away."""
    cluster = state.clusters.get(cluster_id)
    node = cluster.nodes.get(node_uid) if cluster else None
    if cluster is None or node is None:
        return
    node.ready = False
    for pod in node.pods.values():
        if pod.dead or pod.finished:
            continue
        pod.dead = True
        if pod.plan.kind in (PodKind.WORKLOAD, PodKind.CRITICAL):
            note(state, What.KILLED, cluster, node, pod, why)


def on_taken_away(state: State, cluster: Cluster, node: Node, pod: Pod) -> None:
    """The pod's object goes with its Node."""
    if pod.counts:
        note(state, What.FORCE_DELETED, cluster, node, pod)
        scheduler.replace(state, cluster, pod, node)
