"""Telling pods to go: by SIGTERM whatever budgets say, or by asking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ebbtide.core.drain import PodOrder
from ebbtide.drivers.base import NodeRef, OrderResult
from ebbtide.drivers.kubernetes import budgets, objects, pods
from ebbtide.drivers.kubernetes.access import all_of, is_another, is_refusal, log
from ebbtide.drivers.kubernetes.fresh import Fresh
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.errors import BudgetRefused, Conflict, KubeError, NotFound

_WHY = "its node leaves the cluster: see the deadline in the node's annotation ebbtide/drain-deadline"
_LONGEST_SENTENCE = 600
_TWO_BUDGETS = "more than one PodDisruptionBudget"


class Telling:
    """One round of orders to the pods of one node."""

    def __init__(
        self,
        client: KubeClient,
        node: NodeRef,
        now: datetime,
        difference: timedelta,
        listed_budgets: Fresh[list[Json]],
    ) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._difference = difference
        self._budgets = listed_budgets

    # -- by order

    async def signal(self, orders: Sequence[PodOrder]) -> list[OrderResult]:
        """The condition, then the deletion, of each pod.

        The first pod goes first: with many nodes at once, no node then waits for another's last pod. One
        that is refused holds up no other; what failed is raised when all were tried.
        """
        orders = await self._shortened(orders)
        first, rest = list(orders[:1]), list(orders[1:])
        results = await all_of([self._first_then(first, rest), self._forbidding()] if orders else [])
        if not results:
            return []
        (told, listed) = results
        return [
            OrderResult(order.uid, overrode=budgets.forbidding(listed, pod) if pod else None)
            for order, pod in zip(orders, told, strict=True)
        ]

    async def _first_then(self, first: Sequence[PodOrder], rest: Sequence[PodOrder]) -> list[Json]:
        failed: KubeError | None = None
        told: list[Json] = []
        for order in first:
            try:
                told.append(await self._signal_one(order))
            except KubeError as error:
                failed = error
        told += await all_of(self._signal_one(order) for order in rest)
        if failed is not None:
            raise failed
        return told

    async def _signal_one(self, order: PodOrder) -> Json:
        """The pod as it was when it was told, as far as budgets ask; empty where it is gone.

        Both calls in one turn: else, with thousands of pods, all would get the condition before the first
        but a few got SIGTERM.
        """
        async with self._client.turns:
            return await self._condition_then_delete(order)

    async def _condition_then_delete(self, order: PodOrder) -> Json:
        pod: Json = {}
        try:
            pod = await self._client.patch(
                pods.path(order.namespace, order.name, "status"),
                pods.disrupted(order.uid, self._now, _WHY),
                kind=PatchKind.STRATEGIC,
            )
        except (NotFound, Conflict):
            return {}
        except KubeError as error:
            if is_another(error):
                return {}
            if not is_refusal(error):
                raise
            # SIGTERM matters more than how a Job counts it.
            log.warning("a pod is told without the condition", pod=order.name, why=error.message)
        try:
            await self._client.delete(
                pods.path(order.namespace, order.name), uid=order.uid, grace_s=order.grace_s
            )
        except (NotFound, Conflict):
            return {}
        # No more of it: at a notice to thousands, whole ones would keep the garbage collector busy.
        return {
            "metadata": {
                "namespace": objects.text(pod, "metadata", "namespace"),
                "labels": objects.labels(pod),
            }
        }

    async def _shortened(self, orders: Sequence[PodOrder]) -> Sequence[PodOrder]:
        """The API server counts a grace from when the pod was told first, not from now."""
        if not any(order.shorten for order in orders):
            return orders
        listed = await self._client.list(pods.ALL, fieldSelector=pods.bound_to(self._node.name))
        told_for = {
            objects.uid(pod): pods.told_for_s(pod, self._difference, self._now) for pod in listed.items
        }
        return [
            PodOrder(
                order.uid,
                order.name,
                order.grace_s + told_for.get(order.uid, 0),
                shorten=True,
                namespace=order.namespace,
            )
            if order.shorten
            else order
            for order in orders
        ]

    async def _forbidding(self) -> list[Json]:
        """The budgets there are: for the receipt, so trouble with them holds nothing up."""
        try:
            return await self._budgets()
        except KubeError as error:
            log.info("budgets could not be read", why=error.message)
            return []

    # -- by asking

    async def evict(self, orders: Sequence[PodOrder]) -> list[OrderResult]:
        """Ask for each pod. What failed without an answer is raised when all were asked."""
        return await all_of(self._evict_one(order) for order in orders)

    async def _evict_one(self, order: PodOrder) -> OrderResult:
        try:
            await self._client.create(
                pods.path(order.namespace, order.name, "eviction"), pods.eviction(order)
            )
        except (NotFound, Conflict):
            return OrderResult(order.uid)
        except BudgetRefused as refusal:
            said = objects.plain(refusal.detail, _LONGEST_SENTENCE)
            return OrderResult(order.uid, refused=said or "a disruption budget allows none now")
        except KubeError as error:
            # Two budgets over one pod answer 500, for ever. The timetable signals in time.
            detail = objects.plain(getattr(error, "detail", ""), _LONGEST_SENTENCE)
            if is_refusal(error) or _TWO_BUDGETS in detail:
                return OrderResult(order.uid, refused=f"the eviction of {order.name} is refused: {detail}")
            raise
        return OrderResult(order.uid)
