"""How long saves take, kept across runs, and what follows from it: does the window fit, how often to save."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

KEPT = 50
SAFETY = 1.1
"""A p95 of 280 s in a window of 297 s is no promise: one save in twenty is longer."""

UNKNOWN_LIFE_S = 7200.0
"""Mean time between preemptions assumed until one was seen: two hours."""


class Fit(NamedTuple):
    """Whether a save that begins at the next step boundary ends before the kill. `known` is False without
    history."""

    known: bool
    needed_s: float
    grace_s: float

    @property
    def fits(self) -> bool:
        return not self.known or self.needed_s <= self.grace_s


class SaveTimes:
    """The last saves' seconds and bytes, in a small file beside the checkpoints; a torn file counts as
    empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saves: list[tuple[float, int]] = _read(path)

    def add(self, seconds: float, count: int) -> None:
        """Remember one save. Raises OSError when it cannot be written."""
        self._saves = [*self._saves, (seconds, count)][-KEPT:]
        temp = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        saves = [{"seconds": round(s, 3), "bytes": b} for s, b in self._saves]
        temp.write_text(json.dumps({"saves": saves}) + "\n", encoding="utf-8")
        temp.replace(self._path)

    def __len__(self) -> int:
        return len(self._saves)

    @property
    def p95_s(self) -> float | None:
        """The time that 95 of 100 saves stay within (nearest rank); None without history."""
        if not self._saves:
            return None
        ordered = sorted(seconds for seconds, _ in self._saves)
        return ordered[math.ceil(0.95 * len(ordered)) - 1]

    @property
    def last_bytes(self) -> int:
        """Size of the last save, 0 without history."""
        return self._saves[-1][1] if self._saves else 0

    def fit(self, grace_s: float, step_s: float) -> Fit:
        """Whether finishing the step in progress (`step_s`) and a slow save fit in `grace_s`."""
        p95 = self.p95_s
        if p95 is None:
            return Fit(False, 0.0, grace_s)
        return Fit(True, SAFETY * p95 + step_s, grace_s)


def interval_s(wanted_s: float, fit: Fit, save_s: float | None, life_s: float = UNKNOWN_LIFE_S) -> float:
    """Seconds between saves. Where the save at the notice can be counted on, as often as the caller wants.

    Where not, a preemption costs all since the last save: then at least twice as often, down to Young's
    optimum sqrt(2 * save * life), but never spending more than a third of the time on saving, and never less
    often than wanted.
    """
    if fit.fits or save_s is None:
        return wanted_s
    optimum_s = math.sqrt(2 * save_s * life_s)
    return min(wanted_s, max(2 * save_s, min(wanted_s / 2, optimum_s)))


def _read(path: Path) -> list[tuple[float, int]]:
    try:
        saves = json.loads(path.read_text(encoding="utf-8"))["saves"]
        return [(float(save["seconds"]), int(save["bytes"])) for save in saves][-KEPT:]
    except (OSError, ValueError, KeyError, TypeError):
        return []
