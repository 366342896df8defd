"""The database of a simulation that is alone with it: statements run at once, one after the other.

Nothing in a simulation waits for anything but its own statements, so an event loop between them buys nothing
and costs most of the time. Plain SQL goes straight to the driver, for the same reason. The same work takes a
fraction of the time, and always happens in the same order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from ebbtide.clock import Clock
from ebbtide.store.db import Database, Tx
from ebbtide.store.seal import Sealer


class InlineDatabase(Database):
    """As `Database`, for one task that shares the database with nobody. It blocks the event loop.

    What is read in several statements is one picture all the same: nobody writes between them.
    """

    def __init__(self, url: str, clock: Clock, sealer: Sealer) -> None:
        super().__init__(url, clock, sealer=sealer)
        self._writes = sa.create_engine(url)
        self._reads = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        with self._writes.begin() as conn:
            tx = self._tx(_as_async(conn))
            yield tx
            for work in list(tx.before_commit.values()):
                await work(tx)
        for loop in tx.loops:
            for listener in self._listeners:
                listener(loop)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Tx]:
        with self._reads.connect() as conn:
            yield self._tx(_as_async(conn))

    async def database_now(self) -> datetime:
        with self._reads.connect() as conn:
            now: datetime = conn.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
            return now

    async def close(self) -> None:
        self._writes.dispose()
        self._reads.dispose()
        await super().close()


class _Connection:
    """A connection whose statements are over before anybody could wait for them."""

    __slots__ = ("_conn", "_driver")

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn
        self._driver = conn.connection.driver_connection

    async def execute(self, statement: sa.Executable, parameters: Any = None) -> Any:
        if type(statement) is not sa.TextClause or isinstance(parameters, list):
            return self._conn.execute(statement, parameters)
        assert self._driver is not None
        cursor = self._driver.execute(_driver_sql(statement.text), parameters)
        row = _ROWS.get(statement.text)
        if row is None:
            names = [column.name for column in cursor.description or ()]
            row = _ROWS[statement.text] = _row_type(names) if names else None
        return _Result(row, cursor.fetchall() if row else [], cursor.rowcount)


def _as_async(conn: sa.Connection) -> AsyncConnection:
    # The store asks nothing of a connection but `await conn.execute(...)`.
    return cast(AsyncConnection, _Connection(conn))


# What a statement answers with, by its text: to ask the driver each time would cost as much as the statement.
_ROWS: dict[str, Any] = {}


@cache
def _driver_sql(text: str) -> str:
    plain: Any = psycopg.dialect
    return str(sa.text(text).compile(dialect=plain()))


def _row_type(names: list[str]) -> Any:
    """A tuple that answers its columns by name, and `_mapping`, as SQLAlchemy's rows do."""
    columns = {name: property(itemgetter(at)) for at, name in enumerate(names)}
    mapping = property(lambda row: dict(zip(names, row, strict=True)))
    return type("Row", (tuple,), {"__slots__": (), **columns, "_mapping": mapping})


class _Result:
    """What the store asks of a result, over rows that are all there."""

    __slots__ = ("_row", "_rows", "rowcount")

    def __init__(self, row: Any, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._row = row
        self._rows = rows
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Any]:
        return map(self._row, self._rows)

    def all(self) -> list[Any]:
        return list(self)

    def first(self) -> Any:
        return next(iter(self), None)

    def one(self) -> Any:
        if len(self._rows) != 1:
            raise sa.exc.NoResultFound(f"{len(self._rows)} rows where there is always one")
        return next(iter(self))

    def mappings(self) -> list[Mapping[str, Any]]:
        return [row._mapping for row in self]

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        return self.one()[0] if self._rows else None

    def scalars(self) -> _Scalars:
        return _Scalars([row[0] for row in self._rows])


class _Scalars(list[Any]):
    """The first column."""

    def all(self) -> list[Any]:
        return self

    def first(self) -> Any:
        return self[0] if self else None
