"""A fleet to tell a story with; whatever the story was, its end is judged too."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import pytest_asyncio

from ebbtide.settings import Settings
from ebbtide.store.embedded import EmbeddedPostgres
from tests.scenarios.story import Story, fleet

Begin = Callable[..., Awaitable[Story]]


Databases = Callable[[], AbstractContextManager[str]]
_numbers = itertools.count(1)


@pytest.fixture
def databases(postgres_server: EmbeddedPostgres, database_url: str) -> Databases:
    """Further fresh databases for one test: `with databases() as url`."""
    parts = urlsplit(postgres_server.url.replace("+psycopg", ""))
    plain = urlunsplit(parts._replace(path="/postgres"))

    @contextmanager
    def another() -> Iterator[str]:
        name = f"story_{next(_numbers)}"
        with psycopg.connect(plain, autocommit=True) as server:
            server.execute(f"CREATE DATABASE {name} TEMPLATE ebbtide_template".encode())
            yield urlunsplit(urlsplit(database_url)._replace(path=f"/{name}"))
            server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    return another


@pytest_asyncio.fixture
async def given(database_url: str, seed: int) -> AsyncIterator[Begin]:
    """given(hosts=4, headroom=0, blocks=1, side_by_side=False, **settings): a system over such a fleet."""
    begun: list[Story] = []

    async def begin(
        hosts: int = 4, *, headroom: int = 0, blocks: int = 1, side_by_side: bool = False, **settings: int
    ) -> Story:
        chosen = Settings(**settings)  # type: ignore[arg-type]  # the class checks the names
        story = Story(database_url, seed=seed, settings=chosen, side_by_side=side_by_side)
        begun.append(story)
        return await story.begin(fleet(hosts, headroom=headroom, blocks=blocks))

    yield begin
    for story in begun:
        await story.end()
