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

TYPE_CHECKING = False  # importing typing takes longer than all the rest; checkers know the name
if TYPE_CHECKING:
    from .checkpoint import Checkpoint as Checkpoint
    from .checkpoint import Checkpoints as Checkpoints
    from .checkpoint_lock import AnotherWriter as AnotherWriter
    from .checkpoint_lock import Fenced as Fenced
    from .checkpoint_manifest import Incomplete as Incomplete
    from .checkpoint_objects import ObjectCheckpoints as ObjectCheckpoints
    from .errors import RanksApart as RanksApart
    from .exits import EXIT_PREEMPTED_SAVED as EXIT_PREEMPTED_SAVED
    from .exits import EXIT_PREEMPTED_UNSAVED as EXIT_PREEMPTED_UNSAVED
    from .guard import Guard as Guard
    from .guard import Preempted as Preempted
    from .notice import Notice as Notice

__version__ = "0.1.0"

_HOMES = {
    "AnotherWriter": "checkpoint_lock",
    "Checkpoint": "checkpoint",
    "Checkpoints": "checkpoint",
    "EXIT_PREEMPTED_SAVED": "exits",
    "EXIT_PREEMPTED_UNSAVED": "exits",
    "Fenced": "checkpoint_lock",
    "Guard": "guard",
    "Incomplete": "checkpoint_manifest",
    "Notice": "notice",
    "ObjectCheckpoints": "checkpoint_objects",
    "Preempted": "guard",
    "RanksApart": "errors",
}

__all__ = [
    "EXIT_PREEMPTED_SAVED",
    "EXIT_PREEMPTED_UNSAVED",
    "AnotherWriter",
    "Checkpoint",
    "Checkpoints",
    "Fenced",
    "Guard",
    "Incomplete",
    "Notice",
    "ObjectCheckpoints",
    "Preempted",
    "RanksApart",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
