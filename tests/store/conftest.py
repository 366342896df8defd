"""A database with the ground that most tests of the store need."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ebbtide.clock import ManualClock
from ebbtide.store.db import Database
from tests.builders import START, Rows, a_database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def db(database_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    database = a_database(database_url, clock)
    yield database
    await database.close()


@pytest.fixture
async def rows(db: Database) -> Rows:
    """A pool of four hosts, a project and a READY cluster."""
    made = Rows()
    async with db.transaction() as tx:
        await made.ground(tx)
    return made
