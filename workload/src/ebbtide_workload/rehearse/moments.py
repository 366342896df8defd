"""When to preempt: chosen from a seed, so that a bad grade can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .model import RehearsalError


@dataclass(frozen=True)
class Moment:
    """`after_s` seconds after the first step; or, if `in_save`, when the next save begins, at the latest
    then."""

    after_s: float
    in_save: bool

    def describe(self) -> str:
        at = f"{self.after_s:.1f} s after the first step"
        return f"at the next save, or {at}" if self.in_save else at


def choose(seed: int, rounds: int, low_s: float, high_s: float) -> tuple[Moment, ...]:
    """One moment per round, anywhere in [low_s, high_s]; every third aims at a save the job makes on its
    own."""
    chance = random.Random(seed)
    return tuple(Moment(chance.uniform(low_s, high_s), in_save=number % 3 == 1) for number in range(rounds))


def parse_range(text: str) -> tuple[float, float]:
    """ "5..30" or "5" in seconds. Raises RehearsalError when it is neither, or backwards."""
    low, dots, high = text.partition("..")
    try:
        low_s = float(low)
        high_s = float(high) if dots else low_s
    except ValueError as error:
        raise RehearsalError(f"{text!r} is not a range of seconds such as 5..30") from error
    if low_s < 0 or high_s < low_s:
        raise RehearsalError(f"{text!r} must go from low to high")
    return low_s, high_s
