"""What stands behind an Ebbtide: one file for each choice of EBBTIDE_PROVIDER.

A backend is a provider (machines, control planes), a driver (what runs in clusters) and a storage system that
fit
together, and what has to run beside the loops for them.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.backends import exec as exec_
from ebbtide.backends import kwok, simulated
from ebbtide.backends.base import Backend, Setup
from ebbtide.errors import StartupError
from ebbtide.settings import Settings

BACKENDS: dict[str, Callable[[Setup], Backend]] = {
    "exec": exec_.make,
    "kwok": kwok.make,
    "simulated": simulated.make,
}


def backend(setup: Setup) -> Backend:
    """The backend that the settings name. Raises StartupError."""
    check(setup.settings)
    return BACKENDS[setup.settings.provider](setup)


def check(settings: Settings) -> None:
    """Raises StartupError when the settings name no backend, or one whose programs are not here."""
    if settings.provider not in BACKENDS:
        names = ", ".join(sorted(BACKENDS))
        raise StartupError(f"EBBTIDE_PROVIDER={settings.provider!r}: write one of {names}")
    if settings.provider == "kwok":
        kwok.check()
