"""A database for what backends keep in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ebbtide.clock import ManualClock
from ebbtide.store.db import Database
from tests.builders import START, a_database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def db(database_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    database = a_database(database_url, clock)
    yield database
    await database.close()
