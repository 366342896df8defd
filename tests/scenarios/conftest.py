"""A fleet to tell a story with; whatever the story was, its end is judged too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from ebbtide.settings import Settings
from tests.scenarios.story import Story, fleet

Begin = Callable[..., Awaitable[Story]]


@pytest_asyncio.fixture
async def given(database_url: str, seed: int) -> AsyncIterator[Begin]:
    """given(hosts=4, headroom=0, blocks=1, **settings): a begun system over a fleet of so many hosts."""
    begun: list[Story] = []

    async def begin(hosts: int = 4, *, headroom: int = 0, blocks: int = 1, **settings: int) -> Story:
        story = Story(database_url, seed=seed, settings=replace(Settings(), **settings))  # type: ignore[arg-type]  # names are checked by replace
        begun.append(story)
        return await story.begin(fleet(hosts, headroom=headroom, blocks=blocks))

    yield begin
    for story in begun:
        await story.end()


@pytest.fixture
def short() -> dict[str, int]:
    """Settings for stories whose times do not matter: everything happens sooner."""
    return {"drain_window_s": 30, "join_limit_s": 120, "cooldown_s": 10, "min_life_s": 60}
