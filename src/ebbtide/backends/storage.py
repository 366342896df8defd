"""Where volumes come from, whatever the machines come from."""

from __future__ import annotations

from ebbtide.errors import StartupError
from ebbtide.playground.world import World
from ebbtide.providers.program_storage import ProgramStorage
from ebbtide.providers.simulated_storage import SimulatedStorage
from ebbtide.providers.storage import Storage
from ebbtide.settings import Settings


def storage_of(settings: Settings, world: World) -> Storage:
    """The storage system that is set; the simulated one keeps its volumes in `world`. With `none` no new ones
    can be ordered. Raises StartupError.
    """
    if settings.storage == "program":
        if settings.storage_program_limit_s >= settings.lease_s:
            raise StartupError(
                f"EBBTIDE_STORAGE_PROGRAM_LIMIT_S={settings.storage_program_limit_s} must be below the lease "
                f"of a visit, EBBTIDE_LEASE_S={settings.lease_s}"
            )
        return ProgramStorage(
            settings.storage_provision_program,
            settings.storage_delete_program,
            settings.storage_program_limit_s,
        )
    if settings.storage not in ("simulated", "none"):
        raise StartupError(f"EBBTIDE_STORAGE={settings.storage!r}: write simulated, program or none")
    return SimulatedStorage(world)
