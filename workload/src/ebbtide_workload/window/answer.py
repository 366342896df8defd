"""Everything `ebb window` says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from .measure import Measured
from .observed import Rate
from .plan import Cost, Fit


@dataclass(frozen=True)
class Answer:
    """None where nothing was given to work it out from."""

    bytes: int | None
    bytes_per_s: int | None
    needed_bytes_per_s: int | None
    usable_s: float
    restart_s: float
    fit: Fit | None
    measured: Measured | None
    nodes: int
    rate: Rate | None
    cost: Cost | None
    gpus: int | None
    micro_dollars_per_gpu_hour: int | None
