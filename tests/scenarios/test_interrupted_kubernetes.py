"""Killed at each single call to Kubernetes: the drain ends as if nothing had been, with one notice.

The whole system on a manual clock, its driver for Kubernetes in earnest, the API server in memory.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.playground.world import World
from ebbtide.providers.base import Instance, InstanceOrder, InstanceState, Provider
from ebbtide.services.details import Caller, ClusterOrder, NodeDetails, Replay, Role
from ebbtide.simulation import Simulation
from tests.drivers.fake_api import PODS, Call, FakeApi
from tests.scenarios.killing import Killed
from tests.scenarios.story import GPU_TYPE, GPUS, POOL, REGION, fleet

pytestmark = pytest.mark.slow

ONCE = [
    "EbbtideNodeDrained",
    "TogetherNodeAdded",
    "TogetherPreempted",
    "TogetherPreemptionNotified",
    "TogetherScaledUp",
]


class Kubelets:
    """The playground's machines, whose kubelets register with the API server in memory."""

    def __init__(self, plain: Provider, api: FakeApi) -> None:
        self._plain = plain
        self._api = api
        self._orders: dict[str, InstanceOrder] = {}
        self._registered: set[str] = set()

    async def create(self, order: InstanceOrder) -> Instance:
        self._orders[order.node_uid] = order
        return await self._plain.create(order)

    async def status(self, node_uid: str) -> Instance | None:
        instance = await self._plain.status(node_uid)
        if instance and instance.state is InstanceState.UP and node_uid not in self._registered:
            self._registered.add(node_uid)
            order = self._orders[node_uid]
            self._api.node(node_uid, order.node_name, ComputeClass(order.compute_class), order.gpus)
        return instance

    async def stop(self, node_uid: str) -> bool:
        confirmed = await self._plain.stop(node_uid)
        if confirmed and node_uid in self._orders:
            self._api.off.add(self._orders[node_uid].node_name)
        return confirmed

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._plain, verb)


class Rig:
    def __init__(self, database_url: str) -> None:
        self.kubelets: Kubelets | None = None
        self.kills = 0
        self.sim = Simulation(database_url, provider=self._machines, driver=self._driver, inline=True)

    def _machines(self, plain: Provider) -> Provider:
        world: World = plain._world  # type: ignore[attr-defined]  # there is no sim yet when this is called
        if self.kubelets is None:
            self.api = FakeApi(world._clock)
            self.kubelets = Kubelets(plain, self.api)
        self.kubelets._plain = plain
        return cast(Provider, self.kubelets)

    def _driver(self, plain: object) -> KubernetesDriver:
        return KubernetesDriver(self.api.clients(), self.api.clock, joins=False)

    async def begin(self) -> None:
        await self.sim.begin(fleet(2))
        self.tenant: Caller = await self.sim.caller("acme")
        self.operator: Caller = await self.sim.caller("ops", Role.OPERATOR)
        order = ClusterOrder("train", REGION, GPU_TYPE, num_gpus=GPUS, num_preemptible_gpus=GPUS)
        made = await self.sim.system.services.clusters.create(self.tenant, order, Replay("train"))
        self.cluster_id = made.id

    async def node(self, phase: Phase = Phase.RUNNING) -> NodeDetails:
        """The preemptible node, when it is there."""
        for _ in range(60):
            seen = await self.sim.system.services.clusters.retrieve(self.tenant, self.cluster_id)
            for one in seen.nodes:
                if one.compute_class is ComputeClass.PREEMPTIBLE and one.phase is phase:
                    return one
            await self.sim.run_for(10)
        raise AssertionError("it never ran")

    async def drain(self, number: int) -> tuple[NodeDetails, int]:
        """Take the node, and die after that call; the node as it ended, and how many calls there were."""
        node = await self.node()
        self.api.calls.clear()
        self.api.pod(node.name, f"job-{number}", grace_s=900, exits_after_s=20)
        began = self.kills

        def strike(call: Call) -> None:
            if len(self.api.calls) == number and self.kills == began:
                self.kills += 1
                raise Killed(call.what)

        self.api.after = strike
        await self._survived(self._take(number))
        await self._survived(self.sim.run_for(90))
        self.api.after = lambda call: None
        seen = await self.sim.system.services.clusters.retrieve(self.tenant, self.cluster_id)
        (ended,) = [one for one in seen.deleted_nodes if one.uid == node.uid]
        calls = len(self.api.calls)
        await self.sim.system.services.claims.give_back(self.operator, f"ref-{number}")
        return ended, calls

    async def _take(self, number: int) -> None:
        await self.sim.system.services.claims.create(
            self.operator, POOL, 1, f"ref-{number}", "another platform"
        )

    async def _survived(self, work: Any) -> None:
        try:
            await work
        except Killed:
            await self.sim.restart()
            await self.sim.run_for(90)


async def test_killed_after_any_call_a_drain_ends_the_same_with_one_notice(database_url: str) -> None:
    rig = Rig(database_url)
    await rig.begin()
    try:
        number, calls = 0, 1  # the first one dies nowhere, and says how many calls there are
        while number <= calls:
            ended, counted = await rig.drain(number)
            calls = max(calls, counted) if number == 0 else calls
            said = f"killed after call {number} of {calls}"
            assert (ended.phase, ended.end_reason) == (Phase.REMOVED, EndReason.PREEMPTED), said
            assert sorted(rig.api.reasons(ended.name)) == ONCE, said
            assert ended.name not in rig.api.names("/api/v1/nodes"), said
            assert f"job-{number}" not in rig.api.names(PODS), said
            graces = {call.grace_s for call in rig.api.calls if call.what == f"DELETE {PODS}/job-{number}"}
            assert graces == {297}, said
            receipt = await rig.sim.system.services.receipts.retrieve(rig.tenant, rig.cluster_id, ended.name)
            assert receipt.used_s is not None, said
            assert receipt.used_s <= 30, said
            number += 1
        # What finds nothing (a token that was never made) has no moment after it.
        assert rig.kills >= calls - 2 > 15, (rig.kills, calls)
    finally:
        await rig.sim.system.close()
