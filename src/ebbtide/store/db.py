"""The database as the rest of the store sees it: one transaction at a time, hints delivered after commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from ebbtide.clock import Clock
from ebbtide.errors import Unavailable
from ebbtide.store.hints import CHANNEL
from ebbtide.store.seal import Sealer, new_key

T = TypeVar("T")
# PostgreSQL's words for "somebody was faster, run it again": serialization failure, deadlock.
_AGAIN = frozenset({"40001", "40P01"})
_TRIES = 5


@dataclass(slots=True)
class Tx:
    """An open transaction.

    Its connection, the time that everything in it happens at, and whom to wake after commit.
    """

    conn: AsyncConnection
    now: datetime
    clock: Clock
    sealer: Sealer
    loops: set[str] = field(default_factory=set)
    # Work put off to the end, so that every transaction locks what all of them touch in one order.
    before_commit: dict[str, Callable[[Tx], Awaitable[None]]] = field(default_factory=dict)

    def refresh_now(self) -> None:
        """Take the present again: after waiting for a lock, whoever held it may have written a later time."""
        self.now = max(self.now, self.clock.now())

    def wake(self, loop: str) -> None:
        """Tell the loop, after commit, that a visit became due.

        May be lost; due rows are found without it.
        """
        self.loops.add(loop)


class Database:
    """An async engine, and the only place that commits.

    clock:    says `now` for every transaction; the database's own time where that is wanted (see
    `AnchoredClock`)
    sealer:   for secrets at rest; without one they can be opened only as long as this object lives (tests)
    announce: tell other processes about due visits
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        sealer: Sealer | None = None,
        pool_size: int = 10,
        announce: bool = False,
    ) -> None:
        self.clock = clock
        self.sealer = sealer or Sealer([new_key()])
        self._announce = announce
        # READ COMMITTED on purpose: every decision starts by locking what it rests on with a write.
        self._engine = create_async_engine(url, pool_size=pool_size, max_overflow=10)
        # Connections of their own for reading: a hundred orders that wait for one pool keep nobody from
        # looking.
        self._reader = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=10,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
        )
        self._listeners: list[Callable[[str], None]] = []

    def on_wake(self, listener: Callable[[str], None]) -> None:
        """Call `listener(loop)` after commits that made visits of that loop due."""
        self._listeners.append(listener)

    def _tx(self, conn: AsyncConnection) -> Tx:
        return Tx(conn, self.clock.now(), self.clock, self.sealer)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """A transaction that commits when the block ends and rolls back when it raises.

        Raises Unavailable when the server cannot be reached.
        """
        async with _reached(), self._engine.begin() as conn:
            tx = self._tx(conn)
            yield tx
            for work in list(tx.before_commit.values()):
                await work(tx)
            if self._announce and tx.loops:
                said = {"channel": CHANNEL, "loops": ",".join(sorted(tx.loops))}
                await conn.execute(sa.text("SELECT pg_notify(:channel, :loops)"), said)
        for loop in tx.loops:
            for listener in self._listeners:
                listener(loop)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Tx]:
        """One consistent picture: a read-only transaction whose statements all see the same commit.

        Raises Unavailable when the server cannot be reached.
        """
        async with _reached(), self._reader.connect() as conn:
            yield self._tx(conn)

    async def run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """`work` in one transaction, run again when PostgreSQL asks for it (deadlock, serialization)."""
        for attempt in range(_TRIES):
            try:
                async with self.transaction() as tx:
                    return await work(tx)
            except DBAPIError as error:
                if attempt == _TRIES - 1 or getattr(error.orig, "sqlstate", None) not in _AGAIN:
                    raise
                await asyncio.sleep(0)
        raise AssertionError("unreachable: the last try returns or raises")

    async def database_now(self) -> datetime:
        """The database server's clock, for anchoring ours."""
        async with _reached(), self._reader.connect() as conn:
            now: datetime = (await conn.execute(sa.text("SELECT clock_timestamp()"))).scalar_one()
            return now

    async def close(self) -> None:
        await self._engine.dispose()
        await self._reader.dispose()


@asynccontextmanager
async def _reached() -> AsyncIterator[None]:
    """Turn "the server is away" into Unavailable; everything else stays what it is."""
    try:
        yield
    except DBAPIError as error:
        sqlstate = getattr(error.orig, "sqlstate", None) or ""
        # No state: the connection broke or was refused. 08: connection exceptions. 57P: the server stops or
        # starts.
        if isinstance(error, OperationalError) and (not sqlstate or sqlstate.startswith(("08", "57P"))):
            raise Unavailable(
                "the database does not answer; try again in a moment", code="database_away"
            ) from error
        raise
    except PoolTimeout as error:
        raise Unavailable(
            "too many requests wait for the database; try again", code="database_busy"
        ) from error
