"""A cluster whose API server takes calls and never answers keeps no other waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ebbtide import assembly
from ebbtide.drivers.base import ClusterRef, Driver
from ebbtide.drivers.simulated import SimulatedDriver
from ebbtide.playground.behaviours import Obeys
from ebbtide.services.details import Role
from tests.builders import a_fleet, a_pool, rows
from tests.workers.conftest import Make

SICK_NODES = 200
WELL_NODES = 8


class Hangs:
    """A driver whose every call about one cluster hangs."""

    def __init__(self, driver: Driver, cluster_id: str) -> None:
        self._driver = driver
        self._cluster_id = cluster_id

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._driver, name)

        async def call(cluster: ClusterRef, *rest: Any) -> Any:
            if cluster.cluster_id == self._cluster_id:
                await asyncio.Event().wait()
            return await method(cluster, *rest)

        return call


async def test_200_nodes_that_cannot_be_drained_hold_up_no_drain_of_another_cluster(
    make: Make, database_url: str
) -> None:
    rig = await make(a_fleet(a_pool(SICK_NODES + WELL_NODES + 2)), max_joining=SICK_NODES)
    sick = await rig.running("sick", target=8 * SICK_NODES)
    well = await rig.running("well", target=8 * WELL_NODES)
    seen = await rig.seen(well)
    for node in seen.nodes:
        rig.world.run_pods(well, node.name, 1, Obeys(2), 30, "job")
    operator = await rig.sim.caller("ops", role=Role.OPERATOR)
    taken = await rig.sim.system.services.fleet.reclaim(
        operator, "h100", SICK_NODES + WELL_NODES, "all of it"
    )
    assert len(taken) == SICK_NODES + WELL_NODES
    driver = Hangs(SimulatedDriver(rig.world), sick)
    system = assembly.build(
        rig.sim.settings,
        database_url,
        clock=rig.sim.clock,
        world=rig.world,
        driver=driver,  # type: ignore[arg-type]  # it answers whatever a driver is asked
        alone=True,
        secret_keys=rig.sim.secret_keys,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(system.run(stop))
    try:
        async with asyncio.timeout(60):
            while await _told(system, well) < WELL_NODES or not await _looked_at(system, well):
                assert not running.done()
                await asyncio.sleep(0.1)
        assert await _told(system, sick) == 0
    finally:
        stop.set()
        await running
        await system.close()


async def _told(system: assembly.System, cluster_id: str) -> int:
    async with system.db.read() as tx:
        return len(await rows(tx, "nodes", "cluster_id = :id AND first_signal_at IS NOT NULL", id=cluster_id))


async def _looked_at(system: assembly.System, cluster_id: str) -> bool:
    async with system.db.read() as tx:
        (visit,) = await rows(tx, "visits", "loop = 'observation' AND key = :id", id=cluster_id)
    return "nodes seen" in str(visit["outcome"]) and visit["lease_until"] is None
