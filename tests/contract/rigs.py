"""What a contract suite needs of an implementation besides the seam itself. A further implementation adds a
rig here.

A rig lets time pass (moves a clock, or waits for the real thing), makes orders that its machines understand,
and can do to the world what only an operator or a tenant can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from ebbtide.clock import ManualClock
from ebbtide.drivers.base import ClusterRef, Driver, NodeRef
from ebbtide.drivers.simulated import SimulatedDriver
from ebbtide.ids import SeededIds
from ebbtide.playground.behaviours import Boots, Habits, IgnoresSigterm, Obeys
from ebbtide.playground.facts import What
from ebbtide.playground.world import World
from ebbtide.providers.base import InstanceOrder, Provider
from ebbtide.providers.simulated import SimulatedProvider
from tests.contract.exec_rig import ExecProviderRig

POOL = "h100"
_LOOKS = 60


class ProviderRig(Protocol):
    provider: Provider

    def new_id(self) -> str: ...

    def order(self, host_name: str, *, node_uid: str | None = None, pool: str = POOL) -> InstanceOrder: ...

    async def pass_time(self, seconds: float) -> None: ...


class DriverRig(Protocol):
    driver: Driver
    cluster: ClusterRef

    async def pass_time(self, seconds: float) -> None: ...

    async def add_node(self) -> NodeRef:
        """A node that is Ready with its GPUs and admitted."""

    async def add_pod(
        self, node: NodeRef, *, grace_s: int = 30, obeys: bool = True, name: str = "job"
    ) -> str:
        """A workload pod that runs on the node; its uid. One that does not obey ends only by SIGKILL."""

    async def forbid_evictions(self, name: str) -> None:
        """A disruption budget over the pods of that name that allows none."""

    async def notices(self, node: NodeRef) -> int:
        """How many events about its removal were put onto the node."""

    async def power_off(self, node: NodeRef) -> None:
        """The machine is off; its node object is still there."""

    async def delete_node(self, node: NodeRef) -> None:
        """Its tenant deletes the Node object."""

    async def cut_off(self, seconds: float) -> None:
        """The cluster does not answer for so long from now."""


async def eventually(
    rig: ProviderRig | DriverRig, holds: Callable[[], Awaitable[bool]], every_s: float = 5.0
) -> None:
    """Let time pass until it holds; fail if it never does."""
    for _ in range(_LOOKS):
        if await holds():
            return
        await rig.pass_time(every_s)
    raise AssertionError("it did not come true in time")


class SimulatedProviderRig:
    def __init__(self) -> None:
        self._clock = ManualClock()
        self._ids = SeededIds(1)
        self.world = World(self._clock, seed=1, habits=Habits(wipe_s=20))
        self.provider: Provider = SimulatedProvider(self.world)

    def new_id(self) -> str:
        return self._ids.uuid4()

    def order(self, host_name: str, *, node_uid: str | None = None, pool: str = POOL) -> InstanceOrder:
        return InstanceOrder(
            node_uid=node_uid or self._ids.uuid4(),
            node_name=f"gpu-dp-{self._ids.name_part()}-{self._ids.name_part()}",
            compute_class="standard",
            cluster_id="00000000-0000-4000-8000-000000000001",
            project_id="project",
            pool=pool,
            host_id=self._ids.uuid4(),
            host_name=host_name,
            gpus=8,
        )

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)


class SimulatedDriverRig:
    def __init__(self) -> None:
        self._clock = ManualClock()
        boot = Boots(boot_s=(30, 30), join_s=5, gpus_s=5)
        self.world = World(self._clock, seed=1, habits=Habits(boot=boot, control_plane_s=5))
        self.driver: Driver = SimulatedDriver(self.world)
        self.cluster = ClusterRef("00000000-0000-4000-8000-000000000001", "alpha")
        self._provider_rig = SimulatedProviderRig()
        self._provider = SimulatedProvider(self.world)
        self._hosts = 0

    async def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def add_node(self) -> NodeRef:
        await self._provider.create_control_plane(self.cluster.cluster_id, self.cluster.name)
        self._hosts += 1
        order = replace(self._provider_rig.order(f"host-{self._hosts}"), compute_class="preemptible")
        await self._provider.create(order)
        self._clock.advance(60)
        node = NodeRef(order.node_uid, order.node_name)
        await self.driver.admit(self.cluster, node)
        return node

    async def add_pod(
        self, node: NodeRef, *, grace_s: int = 30, obeys: bool = True, name: str = "job"
    ) -> str:
        behaviour = Obeys(2) if obeys else IgnoresSigterm()
        (uid,) = self.world.run_pods(self.cluster.cluster_id, node.name, 1, behaviour, grace_s, name)
        return uid

    async def forbid_evictions(self, name: str) -> None:
        self.world.budget(self.cluster.cluster_id, f"keep-{name}", name)

    async def notices(self, node: NodeRef) -> int:
        return len(self.world.facts(what=What.NOTICE, node_uid=node.uid))

    async def power_off(self, node: NodeRef) -> None:
        assert await self._provider.stop(node.uid)

    async def delete_node(self, node: NodeRef) -> None:
        self.world.delete_node(self.cluster.cluster_id, node.name)

    async def cut_off(self, seconds: float) -> None:
        now = self._clock.now()
        self.world.unreachable(self.cluster.cluster_id, now, now + timedelta(seconds=seconds))


PROVIDERS: dict[str, Callable[[], ProviderRig]] = {"simulated": SimulatedProviderRig, "exec": ExecProviderRig}
WITHOUT_CONTROL_PLANES = frozenset({"exec"})  # clusters are imported there
DRIVERS: dict[str, Callable[[], DriverRig]] = {"simulated": SimulatedDriverRig}
