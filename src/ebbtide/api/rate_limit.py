"""A token bucket per key: so many requests a second, and a burst on top. In this process's memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ebbtide.errors import TooManyRequests

_MOST_KEYS = 10_000  # buckets kept; full ones are forgotten first, which changes nothing


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimit:
    """limits: tokens that come back each second, 0 for no limit; and what a rested key may spend at once.
    Asked for each time, because they may change.

    now_s: a clock that only measures spans
    """

    def __init__(self, limits: Callable[[], tuple[int, int]], now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self._buckets: dict[str, _Bucket] = {}

    def spend(self, key_id: str) -> int | None:
        """Take a token of the key and answer how many are left (None: no limit). Raises TooManyRequests."""
        if not self._rate:
            return None
        now_s = self._now_s()
        bucket = self._buckets.get(key_id)
        if bucket is None:
            self._make_room(now_s)
            bucket = self._buckets[key_id] = _Bucket(float(self.burst), now_s)
        bucket.tokens = self._refilled(bucket, now_s)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            wait_s = math.ceil((1 - bucket.tokens) / self._rate)
            raise TooManyRequests(
                f"this key sends more than {self._rate} requests a second; wait {wait_s} s",
                retry_after_s=wait_s,
            )
        bucket.tokens -= 1
        return int(bucket.tokens)

    @property
    def burst(self) -> int:
        return max(self._limits()[1], 1)

    @property
    def _rate(self) -> int:
        return self._limits()[0]

    def _refilled(self, bucket: _Bucket, now_s: float) -> float:
        return min(float(self.burst), bucket.tokens + (now_s - bucket.at_s) * self._rate)

    def _make_room(self, now_s: float) -> None:
        if len(self._buckets) < _MOST_KEYS:
            return
        for key_id in [key for key, one in self._buckets.items() if self._refilled(one, now_s) >= self.burst]:
            del self._buckets[key_id]
