"""A backend's parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.clock import Clock
from ebbtide.drivers.base import Driver, Watcher
from ebbtide.ids import Ids
from ebbtide.kube.way_in import way_in
from ebbtide.playground.world import World
from ebbtide.providers.base import Provider
from ebbtide.providers.storage import Storage
from ebbtide.services.fleet_file import FleetFile
from ebbtide.services.imports import CheckKubeconfig, no_imports
from ebbtide.settings import Settings
from ebbtide.store.db import Database


@dataclass(frozen=True, slots=True)
class Setup:
    """What a backend may use.

    data_dir: a folder that outlives the process, None in tests and simulations
    journal:  where a simulated world keeps its acts; None keeps them in memory
    world:    a world that is there already
    """

    settings: Settings
    clock: Clock
    ids: Ids
    db: Database
    data_dir: Path | None = None
    journal: Path | None = None
    world: World | None = None


async def _nothing() -> None:
    return


def _no_habits(_file: FleetFile) -> None:
    return


def server_of(kubeconfig: str) -> str:
    """The API server of a kubeconfig that we could use: a `check_kubeconfig` for real clusters. Raises
    BadInput.
    """
    return way_in(kubeconfig).server


@dataclass(slots=True)
class Backend:
    """world:    the simulated fleet, where there is one
    watcher:  tells changes in clusters early, where the driver can; without one, looks are timed only
    on_fleet: told of each fleet file that is applied
    check_kubeconfig: looks at a kubeconfig of a cluster to import: answers its server, or raises BadInput
    begin:    awaited once before the loops start
    close:    awaited after the loops have ended; stops what the backend started
    """

    provider: Provider
    driver: Driver
    storage: Storage
    world: World | None = None
    watcher: Watcher | None = None
    on_fleet: Callable[[FleetFile], None] = _no_habits
    check_kubeconfig: CheckKubeconfig = no_imports
    begin: Callable[[], Awaitable[None]] = field(default=_nothing)
    close: Callable[[], Awaitable[None]] = field(default=_nothing)
