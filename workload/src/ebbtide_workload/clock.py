"""The only place that asks for the time or waits for it to pass."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def utc_now() -> datetime:
    """The current instant, timezone-aware, UTC."""
    return datetime.now(timezone.utc)


monotonic = time.monotonic
"""Seconds on a clock that never jumps; only differences mean something."""

sleep = time.sleep
"""Wait for that many seconds."""
