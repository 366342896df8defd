"""Services over a fresh database, with a tenant and an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ebbtide.services.details import Caller
from tests.builders import Office, a_fleet, an_office


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    """Four hosts in one pool."""
    async with an_office(database_url, a_fleet()) as made:
        yield made


@pytest.fixture
async def tenant(office: Office) -> Caller:
    return await office.caller("acme")


@pytest.fixture
async def other(office: Office) -> Caller:
    return await office.caller("beta")


@pytest.fixture
async def operator(office: Office) -> Caller:
    return await office.operator()
