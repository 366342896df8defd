"""What a node and its pods are told to look like: the cordon, annotations, the condition, events."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.clock import Clock
from ebbtide.core import marks
from ebbtide.core.drain import PodOrder
from ebbtide.core.events import Reason, rfc3339
from ebbtide.drivers.base import NodeRef, Notice
from ebbtide.drivers.kubernetes import events, nodes, objects
from ebbtide.drivers.kubernetes.access import NodeAccess, all_of, is_refusal, log
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Conflict, KubeError

_REMEMBERED = 10_000  # nodes whose pods' events are counted


class Announcing:
    """Events are never worth a drain: where a cluster's own rules refuse one, the drain goes on."""

    def __init__(self, clock: Clock, *, aliases: bool, pod_events: int) -> None:
        self._clock = clock
        self._aliases = aliases
        self._pod_events = pod_events
        self._told_pods: dict[str, int] = {}  # by node uid; a restart begins anew

    async def notify(self, client: KubeClient, ref: NodeRef, notice: Notice) -> None:
        """The cordon first, then the event, then the condition.

        Raises KubeError; whoever gets one asks again, and what was done is done.
        """
        access = NodeAccess(client, ref)
        node = await access.change(lambda found: nodes.announcement(found, notice))
        if node is None:
            return
        condition = nodes.draining(node, notice, self._clock.now())
        if condition is None:  # it comes last, so all the rest is there
            return
        message, key = nodes.sentence(notice), f"{ref.uid}/{rfc3339(notice.deadline)}"
        for reason in events.reasons(notice.reason, aliases=self._aliases):
            await self._post(client, node, "Node", reason, message, key)
        await access.mark(condition)

    async def joined(self, client: KubeClient, ref: NodeRef, node: Json) -> None:
        """Work may come."""
        message = "the node is ready with all its GPUs: work may come"
        for reason in events.reasons(Reason.SCALED_UP, aliases=self._aliases):
            await self._post(client, node, "Node", reason, message, ref.uid, warning=False)

    async def conclude(self, client: KubeClient, ref: NodeRef, reason: str, message: str) -> None:
        """The last event, as long as the node is there to have one."""
        node = await NodeAccess(client, ref).read()
        if node is not None:
            await self._post(client, node, "Node", reason, message, f"{ref.uid}/end", warning=False)

    async def take_back(self, client: KubeClient, ref: NodeRef, reason: str) -> None:
        """The condition first: as long as the annotation is there, the next try finds what is left to do."""
        access = NodeAccess(client, ref)
        node = await access.read()
        if node is None or not nodes.announced_for(node, reason):
            return
        if objects.condition(node, marks.CONDITION_DRAINING):
            await access.mark(dict(nodes.NOT_DRAINING))
        await access.change(lambda found: nodes.taken_back(found, reason))

    async def to_pods(self, client: KubeClient, ref: NodeRef, orders: Sequence[PodOrder]) -> None:
        """Events about pods that were told, in their namespaces, up to the node's cap. Trouble with them
        holds nothing up.
        """
        left = self._pod_events - self._told_pods.get(ref.uid, 0)
        chosen = [order for order in orders if not order.shorten][: max(0, left)]
        if not chosen:
            return
        if len(self._told_pods) >= _REMEMBERED:
            self._told_pods.clear()
        self._told_pods[ref.uid] = self._told_pods.get(ref.uid, 0) + len(chosen)
        try:
            node = await NodeAccess(client, ref).read()
            why = nodes.announced(node) if node else None
            if why is None:
                return
            await all_of(self._about_pod(client, order, *why) for order in chosen)
        except KubeError as error:
            log.info("pods were sent no events", node=ref.name, why=error.message)

    async def _about_pod(self, client: KubeClient, order: PodOrder, reason: str, message: str) -> None:
        namespace = order.namespace or events.NAMESPACE
        pod: Json = {"metadata": {"name": order.name, "namespace": namespace, "uid": order.uid}}
        told = f"SIGTERM with {order.grace_s} s of grace: {message}"
        await self._post(client, pod, "Pod", reason, told, order.uid)

    async def _post(
        self,
        client: KubeClient,
        thing: Json,
        kind: str,
        reason: str,
        message: str,
        key: str,
        *,
        warning: bool = True,
    ) -> None:
        body = events.about(thing, kind, reason, message, self._clock.now(), key, warning=warning)
        try:
            await client.create(events.path(body["metadata"]["namespace"]), body)
        except Conflict:
            return  # it was sent before
        except KubeError as error:
            if not is_refusal(error):
                raise
            log.warning("an event is refused", about=objects.name(thing), reason=reason, why=error.message)
