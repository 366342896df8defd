"""Real Kubernetes control planes on this machine, one for each cluster, with nodes that kwok plays."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import structlog

from ebbtide.backends.base import Backend, Setup
from ebbtide.backends.clusters import kubernetes
from ebbtide.backends.storage import storage_of
from ebbtide.core.nodes import Phase
from ebbtide.drivers.kubernetes.watcher import KubernetesWatcher
from ebbtide.errors import StartupError, Unavailable
from ebbtide.kube.client import Clients
from ebbtide.kube.places import places
from ebbtide.kube.programs import CONTROL_PLANE
from ebbtide.playground.world import World
from ebbtide.providers.kwok import KwokProvider
from ebbtide.providers.kwok.machines import Habits
from ebbtide.services.fleet_file import FleetFile
from ebbtide.store import nodes, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop

log = structlog.get_logger()

FOLDER = "kwok"
_MOVING = (Phase.BOOTSTRAPPING, Phase.DRAINING, Phase.REMOVING)
_TELL_AGAIN_S = 2.0
_VOLUMES = "volumes.jsonl"  # acts of the simulated storage


def check() -> None:
    """Raises MissingPrograms, which says how to get them."""
    places().require((*CONTROL_PLANE, "kwok"))


def make(setup: Setup) -> Backend:
    """Everything in the folder `kwok` of the data folder.

    Without a data folder (a process that runs no loops) it cannot begin.
    """
    folder = (setup.data_dir or Path()) / FOLDER
    telling = _Telling(setup.db)
    provider = KwokProvider(
        folder,
        setup.clock,
        most_clusters=setup.settings.kwok_clusters_limit,
        on_ready=telling.ready,
    )
    clients = Clients()
    volumes = World(setup.clock, journal=setup.journal and setup.journal.with_name(_VOLUMES))

    async def begin() -> None:
        if setup.data_dir is None:
            raise StartupError("EBBTIDE_PROVIDER=kwok needs a data folder for its control planes")
        await provider.begin()

    async def close() -> None:
        await provider.close()
        await telling.close()
        await clients.close()
        volumes.close()

    return Backend(
        provider,
        kubernetes(clients, setup, joins=False),
        storage_of(setup.settings, volumes),
        watcher=KubernetesWatcher(clients),
        on_fleet=partial(_set_habits, provider),
        begin=begin,
        close=close,
    )


class _Telling:
    """Makes visits due when a control plane is up: it may have another address than before, and whoever met
    none for a while comes back at growing intervals only.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._tasks: set[asyncio.Task[None]] = set()

    def ready(self, cluster_id: str) -> None:
        task = asyncio.create_task(self._hint(cluster_id), name=f"hint for {cluster_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hint(self, cluster_id: str) -> None:
        while True:
            try:
                return await self._db.run(partial(_wake_all, cluster_id=cluster_id))
            except Unavailable as error:
                log.warning("could not tell of a control plane", cluster=cluster_id, why=error.message)
                await asyncio.sleep(_TELL_AGAIN_S)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _wake_all(tx: Tx, cluster_id: str) -> None:
    await visits.hint(tx, Loop.CLUSTER, [cluster_id])
    await visits.wake_existing(tx, Loop.OBSERVATION, [cluster_id])
    uids = [node.uid for node in await nodes.of_clusters(tx, [cluster_id], _MOVING)]
    await visits.hint(tx, Loop.LIFECYCLE, uids, clusters=[cluster_id] * len(uids))


def _set_habits(provider: KwokProvider, file: FleetFile) -> None:
    """Boot and turn-over times of a file's pools, and what their machines have."""
    provider.set_habits(
        {
            pool.name: Habits(pool.boot_s, pool.turn_over_s, pool.cpu_cores, pool.memory_gib)
            for pool in file.pools
        }
    )
