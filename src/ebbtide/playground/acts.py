"""Every call that changes the world, by the name under which the journal keeps it; and whatever happens by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ebbtide.playground import clusters, machines, people, pods, restarts, storage
from ebbtide.playground.state import Announcement, State


def admit(state: State, cluster_id: str, node_uid: str) -> None:
    cluster = state.clusters[cluster_id]
    clusters.admit(state, cluster, cluster.nodes[node_uid])


def notify(state: State, cluster_id: str, node_uid: str, notice: Announcement) -> None:
    cluster = state.clusters[cluster_id]
    clusters.notify(state, cluster, cluster.nodes[node_uid], notice)


def conclude(state: State, cluster_id: str, node_uid: str, reason: str, message: str) -> None:
    clusters.conclude(state, state.clusters[cluster_id].nodes[node_uid], cluster_id, reason, message)


def signal(state: State, cluster_id: str, node_uid: str, graces: dict[str, int]) -> None:
    """DELETE pods of the node with the graces given, in seconds by pod uid."""
    cluster = state.clusters[cluster_id]
    node = cluster.nodes[node_uid]
    for pod_uid, grace_s in graces.items():
        pod = node.pods.get(pod_uid)
        if pod is not None:
            pods.tell(state, cluster, node, pod, grace_s)


def evict(state: State, cluster_id: str, node_uid: str, graces: dict[str, int]) -> dict[str, str | None]:
    """Evict pods of the node. By pod uid: why it was refused, None where the pod was told or is gone."""
    cluster = state.clusters[cluster_id]
    node = cluster.nodes[node_uid]
    answers: dict[str, str | None] = {}
    for pod_uid, grace_s in graces.items():
        pod = node.pods.get(pod_uid)
        answers[pod_uid] = None if pod is None else people.evict(state, cluster, node, pod, grace_s)
    return answers


def remove(state: State, cluster_id: str, node_uid: str) -> None:
    cluster = state.clusters[cluster_id]
    clusters.remove(state, cluster, cluster.nodes[node_uid])


ACTS: dict[str, Callable[..., Any]] = {
    "create": machines.create,
    "stop": machines.stop,
    "delete": machines.delete,
    "create_control_plane": clusters.create,
    "delete_control_plane": clusters.delete,
    "stand_up": clusters.stand_up,
    "restart": restarts.restart,
    "provision_volume": storage.provision,
    "delete_volume": storage.delete,
    "put_volume": storage.put,
    "drop_volume": storage.drop,
    "admit": admit,
    "notify": notify,
    "conclude": conclude,
    "take_back_notice": restarts.take_back_notice,
    "signal": signal,
    "evict": evict,
    "remove": remove,
    "set_behaviour": machines.set_behaviour,
    "run_pods": people.run_pods,
    "add_budget": people.add_budget,
    "cordon": people.cordon,
    "delete_node": people.delete_node,
    "vanish": machines.vanish,
    "restore": machines.restore,
    "add_outage": clusters.add_outage,
    "add_provider_outage": people.add_provider_outage,
}

HAPPENINGS: dict[str, Callable[..., None]] = {
    **people.HANDLERS,
    "boot_failed": machines.on_boot_failed,
    "up": machines.on_up,
    "stopped": machines.on_stopped,
    "wiped": machines.on_wiped,
    "vanish": machines.on_vanish,
    "control_plane_ready": clusters.on_control_plane_ready,
    "outage_over": clusters.on_outage_over,
    "restarted": restarts.on_restarted,
    "volume_ready": storage.on_volume_ready,
    "volume_gone": storage.on_volume_gone,
    "register": clusters.on_register,
    "ready": clusters.on_ready,
    "gpus_shown": clusters.on_gpus_shown,
}
