"""Reads that many may ask for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Fresh(Generic[T]):
    """One read at a time, for everybody who asked before it began.

    What is answered was read after it was asked for, as if each had read by itself; a hundred who ask at once
    cost two reads.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or what the read raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(_noticed)
        return await asyncio.shield(self._next)  # whoever is cancelled takes nobody else's answer along

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._read()


def _noticed(task: asyncio.Task[T]) -> None:
    """An error that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
