"""The core scenarios killed and restarted at their steps, and with every visit made twice: the same end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.scenarios.conftest import Databases
from tests.scenarios.core_stories import CORE, HOSTS, SETTINGS, Summary, summary
from tests.scenarios.doubling import How
from tests.scenarios.killing import Moment, Plan, at, everywhere, never
from tests.scenarios.story import Story, fleet

_undisturbed: dict[str, tuple[Summary, int]] = {}


@asynccontextmanager
async def told(
    databases: Databases, name: str, *, plan: Plan = never, how: How | None = None
) -> AsyncIterator[Story]:
    """The story of that name, told to its end under interruptions."""
    with databases() as url:
        story = Story(url, settings=SETTINGS, side_by_side=how is How.SIDE_BY_SIDE)
        try:
            await story.begin(fleet(HOSTS))
            cluster = await CORE[name].given(story)
            story.killer.plan, story.killer.armed, story.revives = plan, True, True
            if how:
                story.doubles(how)
            await CORE[name].then(story, cluster)
            story.killer.armed = False
            yield story
        finally:
            await story.end()


async def undisturbed(databases: Databases, name: str) -> tuple[Summary, int]:
    """How the story ends by itself, and how many points it has."""
    if name not in _undisturbed:
        async with told(databases, name) as story:
            _undisturbed[name] = summary(story), story.killer.points
    return _undisturbed[name]


@pytest.mark.parametrize("name", CORE)
async def test_killed_after_every_kind_of_step_it_ends_the_same(databases: Databases, name: str) -> None:
    """In full: one process after the other dies, each one step further than the one before."""
    expected, _ = await undisturbed(databases, name)
    async with told(databases, name, plan=everywhere) as story:
        assert summary(story) == expected
        assert story.killer.kills > 20


@pytest.mark.parametrize(("name", "sample"), [*((name, 1) for name in CORE), ("reclaim", 2), ("reclaim", 3)])
async def test_killed_once_it_ends_the_same(
    databases: Databases, name: str, sample: int, rng: random.Random
) -> None:
    """A sample, by the printed seed, of all single points before and after which it can be killed."""
    expected, points = await undisturbed(databases, name)
    number, moment = rng.randint(1, points), rng.choice(list(Moment))
    print(f"{name}: killed {moment} point {number} of {points}")
    async with told(databases, name, plan=at(number, moment)) as story:
        assert story.killer.kills == 1
        assert summary(story) == expected


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, how) for name in CORE for how in (How.REPEATED, How.SIDE_BY_SIDE)), ("reclaim", How.OVERTAKEN)],
)
async def test_with_every_visit_made_twice_it_ends_the_same(
    databases: Databases, name: str, how: How
) -> None:
    expected, _ = await undisturbed(databases, name)
    async with told(databases, name, how=how) as story:
        assert summary(story) == expected
