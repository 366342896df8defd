"""The simulated fleet: everything in one world in this process."""

from __future__ import annotations

from functools import partial

from ebbtide.backends.base import Backend, Setup
from ebbtide.backends.storage import storage_of
from ebbtide.drivers.simulated import SimulatedDriver
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
    )


def _set_habits(world: World, file: FleetFile) -> None:
    """Boot and turn-over times of a file's pools."""
    for pool in file.pools:
        boots = Boots((pool.boot_s, pool.boot_s), join_s=2.0, gpus_s=1.0)
        world.set_behaviour(boots, Wipes(pool.turn_over_s), pool=pool.name)
