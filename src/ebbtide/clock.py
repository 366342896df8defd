"""The only place that reads the machine's clock. Everything else is told the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, as an aware UTC datetime."""

    def now(self) -> datetime: ...


class AnchoredClock:
    """The database's time, carried forward by this machine's monotonic clock between two anchorings.

    Several servers thus agree on the time to within a round trip, and a wall clock that is set back cannot
    move a
    deadline. Never runs backwards: an anchoring that would go back is absorbed by standing still.
    """

    def __init__(self) -> None:
        self._base = datetime.now(UTC)
        self._at = time.monotonic()
        self._last = self._base

    def anchor(self, database_now: datetime) -> None:
        """Take `database_now` (just read from the database) as the present."""
        self._base = database_now.astimezone(UTC)
        self._at = time.monotonic()

    def now(self) -> datetime:
        present = self._base + timedelta(seconds=time.monotonic() - self._at)
        self._last = max(self._last, present)
        return self._last


class ManualClock:
    """A clock that stands still until it is moved. For tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> datetime:
        return self.set(self._now + timedelta(seconds=seconds))

    def set(self, instant: datetime) -> datetime:
        if instant < self._now:
            raise ValueError(f"time does not go back: {instant} is before {self._now}")
        self._now = instant
        return instant


def monotonic() -> float:
    """Seconds on a clock that only measures spans (for durations in logs and metrics, never for
    deadlines).
    """
    return time.monotonic()
