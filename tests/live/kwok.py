"""Provider `kwok` for tests: everything fast, each in a folder of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.clock import AnchoredClock
from ebbtide.core import marks
from ebbtide.core.nodes import ComputeClass
from ebbtide.ids import SystemIds
from ebbtide.providers.base import InstanceOrder, InstanceState, Provider
from ebbtide.providers.kwok import KwokProvider
from ebbtide.providers.kwok.machines import Habits
from tests.contract.rigs import POOL
from tests.live.kubectl import Kubectl

FAST = Habits(boot_s=0.3, turn_over_s=0.5)
# Else a node whose machine is off is taken for ready for most of a minute.
ARGUMENTS = {"kube-controller-manager": ("--node-monitor-grace-period=14s", "--node-monitor-period=1s")}
_START_LIMIT_S = 90


@dataclass
class KwokRig:
    """A provider in a folder. See `tests.contract.rigs.ProviderRig`."""

    folder: Path
    most: int = 4
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = SystemIds()
        self.kwok = KwokProvider(
            self.folder,
            AnchoredClock(),
            most_clusters=self.most,
            on_ready=self.told.append,
            durable=False,
            arguments=ARGUMENTS,
        )
        self.kwok.set_habits({POOL: FAST, "another": FAST})
        self.provider: Provider = self.kwok

    def new_id(self) -> str:
        return self._ids.uuid4()

    def order(
        self,
        host_name: str,
        *,
        node_uid: str | None = None,
        pool: str = POOL,
        cluster_id: str = "00000000-0000-4000-8000-000000000001",
    ) -> InstanceOrder:
        uid = node_uid or self.new_id()
        kind = ComputeClass.PREEMPTIBLE
        return InstanceOrder(
            node_uid=uid,
            node_name=f"gpu-preemptible-dp-{self._ids.name_part()}-{self._ids.name_part()}",
            compute_class=str(kind),
            cluster_id=cluster_id,
            project_id="project",
            pool=pool,
            host_id=self.new_id(),
            host_name=host_name,
            gpus=8,
            labels=marks.labels(uid, kind, region="here", gpu_type="H100_SXM", fabric_block=None),
            taints=marks.taints(kind, explicit=False),
        )

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.5))

    async def cluster(self, name: str = "tidal") -> str:
        """A cluster whose control plane is ready; its id."""
        cluster_id = self.new_id()
        await self.provider.create_control_plane(cluster_id, name)
        await self.until_ready(cluster_id)
        return cluster_id

    async def until_ready(self, cluster_id: str) -> None:
        for _ in range(_START_LIMIT_S * 5):
            plane = await self.provider.control_plane(cluster_id)
            assert plane is not None
            if plane.ready:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"not ready: {plane.why}")

    async def node(self, cluster_id: str, host_name: str) -> InstanceOrder:
        """A machine that is up and registered."""
        order = self.order(host_name, cluster_id=cluster_id)
        await self.provider.create(order)
        for _ in range(100):
            machine = self.kwok._machines.get(order.node_uid, self.kwok._clock.now())
            if machine is not None and machine.registered:
                instance = await self.provider.status(order.node_uid)
                assert instance is not None
                assert instance.state is InstanceState.UP
                return order
            await asyncio.sleep(0.1)
        raise AssertionError("its kubelet did not register")

    async def kubectl(self, program: Path, cluster_id: str, path: Path) -> Kubectl:
        """kubectl as the tenant, whose kubeconfig is written to `path`."""
        plane = await self.provider.control_plane(cluster_id)
        assert plane is not None
        assert plane.kubeconfig is not None
        await asyncio.to_thread(path.write_text, plane.kubeconfig)
        return Kubectl(program, path)
