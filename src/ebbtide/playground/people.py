"""What people do to the simulated world: start pods, set budgets, cordon, make things go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ebbtide.core.nodes import ComputeClass
from ebbtide.errors import NotFound
from ebbtide.playground import clusters, kubelet, pods, scheduler
from ebbtide.playground.facts import What
from ebbtide.playground.state import Budget, Cluster, Node, Outage, Pod, PodPlan, State


def cluster_of(state: State, cluster_id: str) -> Cluster:
    """The cluster. Raises NotFound."""
    cluster = state.clusters.get(cluster_id)
    if cluster is None or cluster.deleted:
        raise NotFound(f"the playground has no cluster {cluster_id}", param="cluster_id")
    return cluster


def node_of(state: State, cluster_id: str, node_name: str) -> tuple[Cluster, Node]:
    """The cluster's node by its name or uid. Raises NotFound."""
    cluster = cluster_of(state, cluster_id)
    for node in cluster.nodes.values():
        if node_name in (node.name, node.uid):
            return cluster, node
    raise NotFound(f"cluster {cluster.name} shows no node {node_name}", param="node_name")


def run_pods(
    state: State, cluster_id: str, plan: PodPlan, count: int, node_name: str | None, bind_at: datetime | None
) -> list[str]:
    """Make `count` pods: on the named node whatever it says, else where the scheduler will. Their uids."""
    cluster = cluster_of(state, cluster_id)
    made = [pods.make(state, plan, f"{plan.name}-{state.number()}") for _ in range(count)]
    if node_name is None:
        for pod in made:
            scheduler.place(state, cluster, pod)
        return [pod.uid for pod in made]
    _, node = node_of(state, cluster_id, node_name)
    for pod in made:
        if bind_at is None or bind_at <= state.now:
            pods.bind(state, cluster, node, pod)
        else:
            cluster.late[pod.uid] = pod
            state.plan(bind_at, "pod_late", cluster_id, node.uid, pod.uid)
    return [pod.uid for pod in made]


def on_pod_late(state: State, cluster_id: str, node_uid: str, pod_uid: str) -> None:
    cluster = state.clusters.get(cluster_id)
    pod = cluster.late.pop(pod_uid, None) if cluster else None
    node = cluster.nodes.get(node_uid) if cluster else None
    if cluster and pod and node and node.ready:
        pods.bind(state, cluster, node, pod)


def add_budget(state: State, cluster_id: str, budget: Budget) -> None:
    """Set the budget of that name; budgets refuse evictions, never a DELETE."""
    cluster = clusters.ensure(state, cluster_id)
    cluster.budgets = [known for known in cluster.budgets if known.name != budget.name] + [budget]


def cordon(state: State, cluster_id: str, node_name: str, cordoned: bool) -> None:
    cluster, node = node_of(state, cluster_id, node_name)
    clusters.cordon(state, cluster, node, cordoned)


def delete_node(state: State, cluster_id: str, node_name: str) -> None:
    """What `kubectl delete node` does: a node that a finalizer holds stays until it was emptied."""
    cluster, node = node_of(state, cluster_id, node_name)
    if node.admitted and node.compute_class == ComputeClass.PREEMPTIBLE:
        node.deleting = True
        state.touch(cluster_id, node.uid)
    else:
        clusters.forget(state, cluster, node)


def add_provider_outage(state: State, outage: Outage) -> None:
    state.outages = [known for known in state.outages if known.end > state.now] + [outage]


def refusal(cluster: Cluster, pod: Pod) -> str | None:
    """Why an eviction of the pod would be refused now, None if it would not be."""
    covering = [budget for budget in cluster.budgets if budget.pods == pod.plan.name]
    if not covering:
        return None
    if len(covering) > 1:
        names = ", ".join(budget.name for budget in covering)
        return f"internal error: more than one disruption budget covers the pod ({names})"
    (budget,) = covering
    if budget.min_available is None:
        return f"disruption budget {budget.name} never allows one"
    healthy = sum(
        1
        for node in cluster.nodes.values()
        for other in node.pods.values()
        if other.plan.name == budget.pods and other.counts and other.told_at is None and not other.dead
    )
    if healthy - 1 < budget.min_available:
        return f"disruption budget {budget.name} needs {budget.min_available} of {healthy} healthy pods"
    return None


def keepers(cluster: Cluster, found: Sequence[Pod]) -> dict[str, str]:
    """By pod uid: the budgets that would refuse its eviction now."""
    return {
        pod.uid: ", ".join(
            f"default/{budget.name}" for budget in cluster.budgets if budget.pods == pod.plan.name
        )
        for pod in found
        if refusal(cluster, pod) is not None
    }


def evict(state: State, cluster: Cluster, node: Node, pod: Pod, grace_s: int) -> str | None:
    """Ask politely. Why it was refused, None if the pod was told (or is gone)."""
    if pod.told_at is not None or pod.finished:
        return None
    why = refusal(cluster, pod)
    if why is None:
        pods.tell(state, cluster, node, pod, grace_s)
    elif why != pod.refused:
        pod.refused = why
        pods.note(state, What.EVICTION_REFUSED, cluster, node, pod, why)
    return why


HANDLERS = {
    "pod_late": on_pod_late,
    "pod_finished": kubelet.on_pod_finished,
    "pod_exit": kubelet.on_pod_exit,
    "detached": kubelet.on_detached,
}
