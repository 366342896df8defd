"""The playground's clusters, as a driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ebbtide.core.drain import PodKind, PodOrder
from ebbtide.drivers.base import (
    ClusterRef,
    DriverError,
    NodeRef,
    NodeSeen,
    Notice,
    OrderResult,
    PodsSeen,
    StandardNode,
)
from ebbtide.playground.state import NodeView
from ebbtide.playground.trouble import WorldRefusal
from ebbtide.playground.world import World


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except WorldRefusal as refusal:
        raise DriverError(refusal.message) from refusal


class SimulatedDriver:
    """A `Driver` over a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world
        # What was translated last per cluster: a view that did not change is the same object again. Not a
        # cache of facts.
        self._translated: dict[str, tuple[tuple[NodeView, ...], list[NodeSeen]]] = {}

    async def observe(self, cluster: ClusterRef) -> list[NodeSeen]:
        with _translated():
            views = self._world.nodes(cluster.cluster_id)
        known = self._translated.get(cluster.cluster_id)
        if known is None or known[0] is not views:
            known = self._translated[cluster.cluster_id] = (views, [_node(view) for view in views])
        return list(known[1])

    async def join_data(self, cluster: ClusterRef, node: NodeRef) -> Mapping[str, str]:
        return {}

    async def missing_rights(self, cluster: ClusterRef) -> list[str]:
        return []

    async def standard(self, cluster: ClusterRef, selector: str) -> list[StandardNode]:
        """What was set up in the cluster; nothing there has labels, so the selector is not looked at."""
        with _translated():
            found = self._world.standard(cluster.cluster_id)
        return [StandardNode(name, ready=True, gpus=gpus) for name, gpus in sorted(found.items())]

    async def admit(self, cluster: ClusterRef, node: NodeRef) -> None:
        with _translated():
            self._world.admit(cluster.cluster_id, node.uid)

    async def notify(self, cluster: ClusterRef, node: NodeRef, notice: Notice) -> None:
        with _translated():
            self._world.notify(cluster.cluster_id, node.uid, notice.reason, notice.message, notice.deadline)

    async def pods(self, cluster: ClusterRef, node: NodeRef) -> PodsSeen:
        with _translated():
            pods, attachments = self._world.pods(cluster.cluster_id, node.uid)
        return PodsSeen(pods, attachments)

    async def signal(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        with _translated():
            kept_by = self._world.signal(
                cluster.cluster_id, node.uid, {order.uid: order.grace_s for order in orders}
            )
        return [OrderResult(order.uid, overrode=kept_by.get(order.uid)) for order in orders]

    async def evict(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        with _translated():
            answers = self._world.evict(
                cluster.cluster_id, node.uid, {order.uid: order.grace_s for order in orders}
            )
        return [OrderResult(order.uid, answers[order.uid]) for order in orders]

    async def conclude(self, cluster: ClusterRef, node: NodeRef, reason: str, message: str) -> None:
        with _translated():
            self._world.conclude(cluster.cluster_id, node.uid, reason, message)

    async def take_back(self, cluster: ClusterRef, node: NodeRef, reason: str) -> None:
        with _translated():
            self._world.take_back_notice(cluster.cluster_id, node.uid, reason)

    async def put_volume(self, cluster: ClusterRef, manifest: Mapping[str, Any]) -> None:
        with _translated():
            self._world.put_volume(cluster.cluster_id, manifest)

    async def drop_volume(self, cluster: ClusterRef, name: str) -> bool:
        with _translated():
            self._world.drop_volume(cluster.cluster_id, name)
        return True

    async def remove(
        self, cluster: ClusterRef, node: NodeRef, *, stopped: bool = True, patient: bool = True
    ) -> bool:
        with _translated():
            if not stopped:
                pods, _ = self._world.pods(cluster.cluster_id, node.uid)
                late = {pod.uid: pod.grace_s for pod in pods if pod.kind is PodKind.WORKLOAD}
                if late:
                    self._world.signal(cluster.cluster_id, node.uid, late)
                    return False
            return self._world.remove(cluster.cluster_id, node.uid)


def _node(view: NodeView) -> NodeSeen:
    return NodeSeen(
        uid=view.uid,
        name=view.name,
        ready=view.ready,
        gpus=view.gpus,
        cordoned=view.cordoned,
        workload_pods=view.workload_pods,
        first_pod_at=view.first_pod_at,
        deleting=view.deleting,
    )
