"""A system whose loops are stepped by hand, over the simulated world and a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.playground.flaky import Flaky
from ebbtide.playground.world import World
from ebbtide.services.details import Caller, ClusterDetails, NodeDetails, Replay
from ebbtide.services.fleet_file import FleetFile
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation
from ebbtide.store.visits import Loop
from tests.builders import a_fleet, an_order, rows


@dataclass
class Rig:
    """`sim.system` is the system; `flaky` lets calls to provider and driver fail."""

    sim: Simulation
    flaky: Flaky
    callers: dict[str, Caller] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.sim.world

    async def caller(self, slug: str = "acme") -> Caller:
        if slug not in self.callers:
            self.callers[slug] = await self.sim.caller(slug)
        return self.callers[slug]

    async def cluster(self, name: str = "demo", gpus: int = 8, target: int = 0, slug: str = "acme") -> str:
        """Order a cluster; nothing is visited yet."""
        caller = await self.caller(slug)
        made = await self.sim.system.services.clusters.create(
            caller, an_order(name, gpus, target), Replay(name)
        )
        return made.id

    async def running(self, name: str = "demo", gpus: int = 8, target: int = 0, slug: str = "acme") -> str:
        """A cluster all of whose nodes joined, as far as there are hosts."""
        cluster_id = await self.cluster(name, gpus, target, slug)
        await self.sim.run_for(40)
        return cluster_id

    async def visit(self, loop: Loop = Loop.LIFECYCLE) -> list[str]:
        """Carry out one batch of the loop's due visits; their sentences."""
        return [outcome.sentence for outcome in await self.sim.system.runner.step(loop)]

    async def one(self, loop: Loop = Loop.LIFECYCLE) -> str:
        """The same, where exactly one is due."""
        (sentence,) = await self.visit(loop)
        return sentence

    def wait(self, seconds: float) -> None:
        """Time passes, and nobody visits anything."""
        self.sim.clock.advance(seconds)

    async def seen(self, cluster_id: str, slug: str = "acme") -> ClusterDetails:
        return await self.sim.system.services.clusters.retrieve(await self.caller(slug), cluster_id)

    async def node(
        self, cluster_id: str, compute_class: ComputeClass = ComputeClass.STANDARD, slug: str = "acme"
    ) -> NodeDetails:
        """The one node of that class that the cluster shows, gone ones included."""
        seen = await self.seen(cluster_id, slug)
        (node,) = [one for one in (*seen.nodes, *seen.deleted_nodes) if one.compute_class is compute_class]
        return node

    async def phase(self, cluster_id: str, compute_class: ComputeClass = ComputeClass.STANDARD) -> Phase:
        return (await self.node(cluster_id, compute_class)).phase

    async def order(self, hosts: int = 1, name: str = "order") -> str:
        """A standard order by another tenant, which may take preemptible nodes."""
        return await self.cluster(name, gpus=8 * hosts, slug="buyer")

    async def stored(self, table: str, where: str = "true", **values: object) -> list[dict[str, object]]:
        async with self.sim.system.db.read() as tx:
            return await rows(tx, table, where, **values)


class Make:
    """make(file=..., settings...): a rig over a fleet, by default one pool of four hosts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.made: list[Rig] = []

    async def __call__(self, file: FleetFile | None = None, **settings: int) -> Rig:
        flaky = Flaky()
        chosen = Settings(**settings)  # type: ignore[arg-type]  # the class checks the names
        sim = Simulation(self._url, settings=chosen, provider=flaky.wrap, driver=flaky.wrap, inline=True)
        rig = Rig(sim, flaky)
        self.made.append(rig)
        await sim.begin(file or a_fleet())
        return rig


@pytest.fixture
async def make(database_url: str) -> AsyncIterator[Make]:
    maker = Make(database_url)
    yield maker
    for rig in maker.made:
        assert rig.world.violations == []
        await rig.sim.system.close()


@pytest.fixture
async def rig(make: Make) -> Rig:
    return await make()
