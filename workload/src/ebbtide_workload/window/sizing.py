"""How many bytes a checkpoint has, from what is trained and how."""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ("bf16", "fp16", "fp32", "bf16-pure")

# Values the optimizer keeps per parameter, and the bytes of each when they do not follow the precision.
_STATES: dict[str, tuple[float, float]] = {
    "adamw": (2, 4),
    "adam": (2, 4),
    "adamw-8bit": (2, 1),
    "lion": (1, 4),
    "muon": (1, 4),
    "momentum": (1, 4),
    "sgd": (0, 4),
    "adafactor": (0.01, 4),
    "none": (0, 4),
}
OPTIMIZERS = tuple(_STATES)


@dataclass(frozen=True)
class Parts:
    """Bytes per parameter of each part of a checkpoint."""

    weights: float
    master: float
    states: float

    @property
    def total(self) -> float:
        return self.weights + self.master + self.states


def per_parameter(optimizer: str, precision: str) -> Parts:
    """Mixed precision (bf16, fp16) keeps fp32 master weights beside the weights; "bf16-pure" keeps
    everything in two bytes; the optimizer "none" stands for weights alone, which resume without the
    optimizer's memory."""
    weights = 4.0 if precision == "fp32" else 2.0
    master = 4.0 if precision in ("bf16", "fp16") and optimizer != "none" else 0.0
    count, size = _STATES[optimizer]
    if precision == "bf16-pure":
        size = min(size, 2)
    return Parts(weights, master, count * size)


def checkpoint_bytes(parameters: int, optimizer: str, precision: str) -> int:
    """Bytes of one checkpoint."""
    return round(parameters * per_parameter(optimizer, precision).total)
