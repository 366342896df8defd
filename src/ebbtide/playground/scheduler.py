"""Where pods go: a plain scheduler, and the controller that replaces the pods of a workload."""

from __future__ import annotations

from ebbtide.playground import pods
from ebbtide.playground.state import Cluster, Node, Pod, PodPlan, State


def _used_gpus(node: Node) -> int:
    return sum(pod.plan.gpus for pod in node.pods.values() if pod.bound_at is not None and not pod.finished)


def _fits(node: Node, plan: PodPlan) -> bool:
    if not node.ready or (plan.on and node.compute_class != plan.on):
        return False
    if not plan.tolerates_everything and (node.cordoned or not node.admitted):
        return False
    return plan.gpus == 0 or _used_gpus(node) + plan.gpus <= node.gpus


def place(state: State, cluster: Cluster, pod: Pod, home: Node | None = None) -> bool:
    """Bind the pod to the emptiest node that takes it, or to `home` if it tolerates that. False: it stays
    pending.
    """
    candidates = [node for node in cluster.nodes.values() if _fits(node, pod.plan)]
    if not candidates:
        cluster.pending.append(pod)
        return False
    stays = pod.plan.tolerates_everything and home in candidates
    best = home if stays and home else min(candidates, key=lambda node: (len(node.pods), node.name))
    pods.bind(state, cluster, best, pod)
    return True


def fill(state: State, cluster: Cluster) -> None:
    """Try the pods that wait for a node, in their order."""
    if not cluster.pending:
        return
    waiting, cluster.pending = cluster.pending, []
    hopeless: set[PodPlan] = set()
    for pod in waiting:
        if pod.plan in hopeless:
            cluster.pending.append(pod)
        elif not place(state, cluster, pod):
            hopeless.add(pod.plan)


def replace(state: State, cluster: Cluster, pod: Pod, home: Node) -> None:
    """What a Job or a Deployment does when one of its pods ended unfinished."""
    if pod.plan.reschedule and not pod.finished and not cluster.deleted:
        name = f"{pod.plan.name}-{state.number()}"
        place(state, cluster, pods.make(state, pod.plan, name), home)
    fill(state, cluster)
