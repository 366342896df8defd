"""All of Ebbtide, with its loops running, over the one cluster that tests of drains share.

Time is real, so spans are short: a drain has `WINDOW_S` from its notice to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from ebbtide import assembly
from ebbtide.assembly import System
from ebbtide.clock import AnchoredClock
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import Driver, NodeRef, Watcher
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients, KubeClient
from ebbtide.providers.base import ControlPlane, Instance, InstanceOrder, Provider
from ebbtide.services.details import Caller, ClusterOrder, NodeDetails, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.services.receipts import Receipt
from ebbtide.settings import Settings
from tests.live.drains import Json, Place
from tests.live.kwok import FAST

WINDOW_S = 12
DETACH_S = 4
GPUS = 8
POOL = "live-pool"
SETTINGS = Settings(
    drain_window_s=WINDOW_S,
    kill_margin_s=2,
    late_notice_s=4,
    critical_reserve_s=3,
    release_margin_s=2,
    detach_limit_s=DETACH_S,
    drain_look_every_s=1,
    observe_every_s=2,
    lost_after_s=6,
    retry_s=1,
    retry_limit_s=2,
    cooldown_s=0,
    fill_every_s=1,
    fill_backoff_s=1,
    min_life_s=0,
)


class _OnePlane:
    """The machines of provider `kwok`, all in the one control plane that is there already."""

    def __init__(self, place: Place, door: Callable[[str], str]) -> None:
        self._kwok = place.machines.kwok
        self._place = place
        self._door = door

    async def create(self, order: InstanceOrder) -> Instance:
        self._place.orders[order.node_uid] = order
        return await self._kwok.create(replace(order, cluster_id=self._place.cluster.cluster_id))

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        found = await self.control_plane(cluster_id)
        assert found is not None
        return found

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        found = await self._kwok.control_plane(self._place.cluster.cluster_id)
        if found is None:
            return None
        ours = self._door(found.driver_kubeconfig) if found.driver_kubeconfig else None
        return replace(found, cluster_id=cluster_id, driver_kubeconfig=ours)

    async def delete_control_plane(self, cluster_id: str) -> bool:
        return True

    async def list_control_planes(self) -> list[str]:
        return []

    def __getattr__(self, verb: str) -> object:
        return getattr(self._kwok, verb)


@dataclass(frozen=True, slots=True)
class Glance:
    """What was there at one instant, by name."""

    at: datetime
    nodes: dict[str, Json]
    pods: dict[str, Json]


@dataclass
class Live:
    """The system, its one cluster `tidal`, and what was seen of the real one all the while."""

    place: Place
    system: System
    tenant: Caller
    operator: Caller
    cluster_id: str
    driver: Driver
    glances: list[Glance] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return self.system.db.clock.now()

    async def nodes(self, phase: Phase = Phase.RUNNING) -> list[NodeDetails]:
        """The cluster's preemptible nodes in that phase."""
        seen = await self.system.services.clusters.retrieve(self.tenant, self.cluster_id)
        return [
            one
            for one in (*seen.nodes, *seen.deleted_nodes)
            if one.compute_class is ComputeClass.PREEMPTIBLE and one.phase is phase
        ]

    async def node(self, uid: str) -> NodeDetails:
        seen = await self.system.services.clusters.retrieve(self.tenant, self.cluster_id)
        return next(one for one in (*seen.nodes, *seen.deleted_nodes) if one.uid == uid)

    async def reasons(self, uid: str) -> list[str]:
        """The lifecycle events of a node."""
        seen = await self.system.services.clusters.retrieve(self.tenant, self.cluster_id)
        return [event.reason for event in seen.events if event.node_uid == uid]

    async def receipt(self, node: NodeRef) -> Receipt:
        return await self.system.services.receipts.retrieve(self.tenant, self.cluster_id, node.name)

    async def claims(self, hosts: int, ref: str) -> None:
        """Somebody who may displace wants so many hosts; T+0 is when this returns."""
        await self.system.services.claims.create(self.operator, POOL, hosts, ref, "another platform")

    async def gives_back(self, ref: str) -> None:
        await self.system.services.claims.give_back(self.operator, ref)

    async def until(self, holds: Callable[[], Awaitable[bool]], limit_s: float = 40) -> None:
        for _ in range(int(limit_s * 4)):
            if await holds():
                return
            await asyncio.sleep(0.25)
        raise AssertionError(f"not so within {limit_s} s")

    async def whole(self, hosts: int) -> list[NodeRef]:
        """So many preemptible nodes run; all of them."""

        async def enough() -> bool:
            return len(await self.nodes()) == hosts

        await self.until(enough)
        return [NodeRef(one.uid, one.name) for one in await self.nodes()]

    async def watch(self) -> None:
        """Look at the cluster a few times a second, for ever."""
        while True:
            nodes = (await self.place.admin.list("/api/v1/nodes")).items
            pods = (await self.place.admin.list("/api/v1/pods")).items
            self.glances.append(Glance(self.now, _named(nodes), _named(pods)))
            await asyncio.sleep(0.3)

    def pod_seen(self, name: str) -> list[tuple[datetime, Json]]:
        """The pod as it was seen, in order, as long as it was there."""
        return [(one.at, one.pods[name]) for one in self.glances if name in one.pods]

    def node_seen(self, node: NodeRef) -> list[tuple[datetime, Json]]:
        return [(one.at, one.nodes[node.name]) for one in self.glances if node.name in one.nodes]


def _named(things: list[Json]) -> dict[str, Json]:
    return {thing["metadata"]["name"]: thing for thing in things}


@asynccontextmanager
async def running(
    place: Place,
    database_url: str,
    *,
    hosts: int,
    target: int,
    driver: Callable[[Driver], Driver] = lambda plain: plain,
    settings: Settings = SETTINGS,
    watcher: Callable[[Clients], Watcher] | None = None,
    door: Callable[[str], str] = lambda kubeconfig: kubeconfig,
    client: Callable[[str], KubeClient] = KubeClient,
) -> AsyncIterator[Live]:
    """A system with so many hosts and a cluster that wants so many preemptible nodes besides one standard.

    watcher: what it hears of the cluster early; nothing if not given
    door, client: the kubeconfig with which our account comes in, and the client that uses it
    """
    await place.clear()
    place.machines.kwok.set_habits({POOL: FAST})
    clients, clock = Clients(client), AnchoredClock()
    driven = driver(KubernetesDriver(clients, clock))
    provider: Provider = _OnePlane(place, door)  # type: ignore[assignment]  # the rest is the other's
    system = assembly.build(settings, database_url, clock=clock, provider=provider, driver=driven, alone=True)
    system.backend.watcher = watcher(clients) if watcher else None
    stop = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    try:
        await system.apply_fleet(
            parse(f"""
regions: {{here: {{}}}}
pools:
  {POOL}: {{region: here, gpu_type: H100_SXM, price_per_gpu_hour: 2.00, blocks: {{b0: {hosts}}}}}
""")
        )
        await system.begin()
        tasks.append(asyncio.create_task(system.run(stop)))
        tenant, operator = await _caller(system, Role.MEMBER), await _caller(system, Role.OPERATOR)
        order = ClusterOrder("tidal", "here", "H100_SXM", num_gpus=GPUS, num_preemptible_gpus=target * GPUS)
        made = await system.services.clusters.create(tenant, order, Replay("tidal"))
        live = Live(place, system, tenant, operator, made.id, driven)
        tasks.append(asyncio.create_task(live.watch()))
        yield live
    finally:
        stop.set()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await system.close()
        await clients.close()


async def _caller(system: System, role: Role) -> Caller:
    key = await system.first_key(role, role.value, role.value)
    return await system.services.access.authenticate(key.secret)
