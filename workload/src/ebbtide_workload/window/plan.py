"""Will the save fit, how often to save, what it costs. Pure arithmetic; times are seconds, money is
micro-dollars."""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 300.0
KILL_MARGIN_S = 3.0
MARGIN_S = 30.0
FITS, TIGHT, TOO_LONG = "fits", "tight", "does not fit"
_HOUR_S = 3600


@dataclass(frozen=True)
class Fit:
    """One save against the window. `usable_s` is the window less the margin (the kill margin included)."""

    takes_s: float
    window_s: float
    usable_s: float
    verdict: str


def fit(takes_s: float, window_s: float = WINDOW_S, margin_s: float = MARGIN_S, step_s: float = 0.0) -> Fit:
    """`step_s`: the save begins only when the step in progress has ended."""
    usable_s = window_s - margin_s - step_s
    longest_s = window_s - KILL_MARGIN_S - step_s
    verdict = FITS if takes_s <= usable_s else TIGHT if takes_s <= longest_s else TOO_LONG
    return Fit(takes_s, window_s, usable_s, verdict)


def young_s(save_s: float, life_s: float) -> float:
    """Young's interval between saves: the square root of twice the save times the mean life."""
    return math.sqrt(2 * save_s * life_s)


def daly_s(save_s: float, life_s: float) -> float:
    """Daly's refinement, which stays right when saves are not short against the mean life."""
    if save_s >= 2 * life_s:
        return life_s
    ratio = save_s / (2 * life_s)
    return young_s(save_s, life_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


@dataclass(frozen=True)
class Cost:
    """What preemptions take from the training, as shares of all its time.

    `periodic`: saving every `interval_s`, and doing again half an interval and one restart per preemption.
    `noticed`: saving once at each notice, and one restart; None where that save does not fit.
    """

    interval_s: float
    young_s: float
    periodic: float
    noticed: float | None


def cost(save_s: float, life_s: float, restart_s: float, fits: bool) -> Cost:
    """`life_s` is the mean time between preemptions of the job, `restart_s` from the kill to the next
    step."""
    interval_s = daly_s(save_s, life_s)
    periodic = min(1.0, save_s / (interval_s + save_s) + (interval_s / 2 + restart_s) / life_s)
    noticed = min(1.0, (save_s + restart_s) / life_s) if fits else None
    return Cost(interval_s, young_s(save_s, life_s), periodic, noticed)


def micro_dollars_a_day(share: float, gpus: int, micro_dollars_per_gpu_hour: int) -> int:
    """The price of a share of all GPU time, per day."""
    return round(share * 24 * gpus * micro_dollars_per_gpu_hour)


def show_dollars(micro_dollars: int) -> str:
    """Dollars and cents."""
    cents = round(micro_dollars / 10_000)
    return f"${cents // 100:,}.{cents % 100:02d}"
