"""The simulated fleet: everything in one world in this process."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

from ebbtide.backends.base import Backend, Setup
from ebbtide.backends.storage import storage_of
from ebbtide.drivers.simulated import SimulatedDriver
from ebbtide.errors import BadInput
from ebbtide.playground.behaviours import Boots, Wipes
from ebbtide.playground.world import World
from ebbtide.providers.simulated import SimulatedProvider
from ebbtide.services.fleet_file import FleetFile


def make(setup: Setup) -> Backend:
    """A world that keeps its acts in the setup's journal, or in memory."""
    world = setup.world or World(setup.clock, journal=setup.journal)
    return Backend(
        SimulatedProvider(world),
        SimulatedDriver(world),
        storage_of(setup.settings, world),
        world=world,
        on_fleet=partial(_set_habits, world),
        check_kubeconfig=_of_the_playground,
    )


def _of_the_playground(kubeconfig: str) -> str:
    """The server of a simulated cluster that `World.stand_up` made. Raises BadInput for any other."""
    server = next((word for word in kubeconfig.split() if word.startswith("https://")), "")
    if not (urlsplit(server).hostname or "").endswith(".playground.invalid"):
        raise BadInput(
            "this fleet is simulated: its machines can join no real cluster; start the server with "
            "EBBTIDE_PROVIDER=exec to import one",
            param="kubeconfig",
            code="no_imports",
        )
    return server


def _set_habits(world: World, file: FleetFile) -> None:
    """Boot and turn-over times of a file's pools."""
    for pool in file.pools:
        boots = Boots((pool.boot_s, pool.boot_s), join_s=2.0, gpus_s=1.0)
        world.set_behaviour(boots, Wipes(pool.turn_over_s), pool=pool.name)
