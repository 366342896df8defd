"""Make a job survive preemption: hear the notice, save at the next step boundary, leave together, resume.

Three lines in a training script::

    guard = ebbtide_workload.Guard("/checkpoints")
    for step in range(guard.resume(load), total_steps):
        train_one(step)
        guard.step(step, save)

Names are loaded on first use, so importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exits import EXIT_PREEMPTED_SAVED as EXIT_PREEMPTED_SAVED
    from .exits import EXIT_PREEMPTED_UNSAVED as EXIT_PREEMPTED_UNSAVED

__version__ = "0.1.0"

_HOMES = {
    "EXIT_PREEMPTED_SAVED": "exits",
    "EXIT_PREEMPTED_UNSAVED": "exits",
}

__all__ = ["EXIT_PREEMPTED_SAVED", "EXIT_PREEMPTED_UNSAVED", "__version__"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
