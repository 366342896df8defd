"""What an API server's clock shows, from the Date of its answers.

Its instants (a pod's deletionTimestamp, say) are by its own clock. To compare them with ours, the difference
must be known; Date has whole seconds, so what is known are bounds, and they narrow with each answer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache

from ebbtide.clock import monotonic

# What is later is nonsense, and cannot be reckoned with.
_LAST_S = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class ServerTime:
    """Bounds of the difference between one server's clock and our monotonic one."""

    def __init__(self) -> None:
        self._bounds: tuple[float, float] | None = None

    def saw(self, date: str | None, sent_at: float, received_at: float) -> None:
        """Take the Date of an answer to what was sent then. Nonsense is ignored."""
        said_s = _seconds(date or "")
        if said_s is None:
            return
        low, high = said_s - received_at, said_s + 1 - sent_at
        if self._bounds is not None:
            narrowed = max(low, self._bounds[0]), min(high, self._bounds[1])
            if narrowed[0] <= narrowed[1]:
                low, high = narrowed  # else a clock was set: what was known before is over
        self._bounds = low, high

    def difference(self, ours: datetime, at: float | None = None) -> timedelta:
        """What to add to the server's instants to have them by the clock that shows `ours` at this moment.

        Nothing as long as the clocks may agree: a difference is only taken for one when it is proven.
        """
        if self._bounds is None:
            return timedelta(0)
        at = monotonic() if at is None else at
        low, high = (datetime.fromtimestamp(bound + at, UTC) for bound in self._bounds)
        return ours - min(max(ours, low), high)


@lru_cache(maxsize=16)  # many answers come within one second
def _seconds(date: str) -> float | None:
    try:
        said_s = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return said_s if 0 <= said_s < _LAST_S else None
