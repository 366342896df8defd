"""When we must be gone, as several messengers say it: they merge into the earliest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from . import clock


class Heard(NamedTuple):
    """One message of preemption: who brought it, until when, why, and when it was heard (UTC)."""

    source: str
    deadline: datetime
    reason: str
    heard_at: datetime


class Attention:
    """A flag that a signal handler may raise: plain attribute writes, no lock."""

    __slots__ = ("up",)

    def __init__(self) -> None:
        self.up = False


class Merged:
    """All messages heard so far, as one notice. Safe to use from any thread, but not from a signal handler.

    The deadline is the earliest one told, so it never moves later. Each source counts once unless it brings
    an earlier deadline.
    """

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._lock = threading.RLock()
        self._heard: dict[str, Heard] = {}
        self._listeners: list[Callable[[Heard], None]] = []

    def tell(self, heard: Heard) -> bool:
        """Add a message; True when it says something new (a new source or an earlier deadline)."""
        with self._lock:
            known = self._heard.get(heard.source)
            if known is not None and known.deadline <= heard.deadline:
                return False
            self._heard[heard.source] = heard
            self._attention.up = True
            # within the lock: whoever sees the notice finds it written down already
            for listener in list(self._listeners):
                listener(heard)
        return True

    def listen(self, listener: Callable[[Heard], None]) -> None:
        """Call `listener` for each new message, from the thread that heard it."""
        with self._lock:
            self._listeners.append(listener)

    def all(self) -> tuple[Heard, ...]:
        """Every message, in the order heard."""
        with self._lock:
            return tuple(self._heard.values())

    def deadline(self) -> datetime | None:
        """The earliest deadline, None while nothing was heard."""
        return min((heard.deadline for heard in self.all()), default=None)

    def reason(self) -> str:
        """The reasons given, each once, joined by "; "."""
        return "; ".join(dict.fromkeys(heard.reason for heard in self.all() if heard.reason))


def after(seconds: float, now: datetime | None = None) -> datetime:
    """The instant `seconds` from now."""
    return (now or clock.utc_now()) + timedelta(seconds=seconds)


def parse_instant(text: str) -> datetime:
    """An RFC 3339 instant as UTC-aware datetime. Raises ValueError, also when the offset is missing."""
    cleaned = text.strip()
    if cleaned[-1:] in ("Z", "z"):
        cleaned = cleaned[:-1] + "+00:00"
    cleaned = _six_digits(cleaned)
    instant = datetime.fromisoformat(cleaned)
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return instant


def _six_digits(text: str) -> str:
    """Python before 3.11 reads fractions of exactly 3 or 6 digits; RFC 3339 allows any number."""
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
