"""A fleet to tell a story with; whatever the story was, its end is judged too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from ebbtide.settings import Settings
from tests.scenarios.story import Story, fleet

Begin = Callable[..., Awaitable[Story]]


@pytest_asyncio.fixture
async def given(database_url: str, seed: int) -> AsyncIterator[Begin]:
    """given(hosts=4, headroom=0, blocks=1, side_by_side=False, **settings): a begun system over such a fleet."""
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
