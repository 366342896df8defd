"""Drains killed and restarted at their steps, and with every visit made twice: the same receipts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from ebbtide.playground.behaviours import KubeletDoublesGrace, Obeys
from tests.scenarios.conftest import Databases
from tests.scenarios.core_stories import HOSTS, SETTINGS, WINDOW_S
from tests.scenarios.doubling import How
from tests.scenarios.killing import Moment, Plan, at, everywhere, never
from tests.scenarios.story import GPUS, JOINED_BY_S, Cluster, Story, fleet

SHORT = replace(SETTINGS, late_notice_s=10, critical_reserve_s=5)  # leaves room for a warning
Rows = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class Drain:
    """warn_first_s: what the cluster wants; then: what happens to its two running nodes."""

    then: Callable[[Story, Cluster], Awaitable[None]]
    warn_first_s: int = 0


async def _reclaim(story: Story, acme: Cluster) -> None:
    """A budget in the way, a pod that comes back, one that its kubelet does not end, one that was going."""
    first, second = await acme.running()
    acme.runs(first, Obeys(12), name="guarded", count=2)
    story.world.run_pods(
        acme.id, first.uid, 1, Obeys(8), 30, "clingy", reschedule=True, tolerates_everything=True
    )
    acme.runs(second, KubeletDoublesGrace(), name="stuck")
    story.world.budget(acme.id, "keep-all", "guarded")
    await story.orders("beta", "standard", gpus=3 * GPUS)
    await story.passes(WINDOW_S + 2 * JOINED_BY_S)


async def _release(story: Story, acme: Cluster) -> None:
    guarded, open_ = await acme.running()
    acme.runs(guarded, Obeys(5), grace_s=10, name="guarded")
    acme.runs(open_, Obeys(8), grace_s=20, name="open")
    story.world.budget(acme.id, "keep-all", "guarded")
    await acme.changes(target=0)
    await story.passes(WINDOW_S + JOINED_BY_S)


DRAINS = {
    "reclaim": Drain(_reclaim),
    "reclaim with a warning": Drain(_reclaim, warn_first_s=10),
    "release": Drain(_release),
}

_RECEIPTS = """
SELECT regexp_replace(p.name, '-[0-9]+$', '') AS pod, p.arrived, p.tolerates, p.grace_asked_s,
       p.told_by, p.overrode, p.refused IS NOT NULL AS was_refused, p.killed, p.gone_at IS NOT NULL AS went,
       extract(epoch FROM p.told_at - n.draining_at)::int AS told_s,
       p.grace_given_s, extract(epoch FROM p.gone_at - n.draining_at)::int AS gone_s
FROM drain_pods p JOIN nodes n ON n.uid = p.node_uid ORDER BY 1, 2, p.first_seen_at, p.name
"""
_EVENTS = """
SELECT reason, count(*) AS n FROM lifecycle_events
WHERE reason IN ('EbbtideBudgetOverridden', 'EbbtidePodArrived', 'EbbtideGraceExpired') GROUP BY 1 ORDER BY 1
"""


def told_of(story: Story) -> dict[str, Rows]:
    """What the receipts say, in seconds after the notice; and the events that go with them."""
    closings: Rows = [
        {"closing": fact.detail}
        for fact in sorted(story.world.facts(), key=lambda fact: fact.detail)
        if fact.what.value == "closing"
    ]
    return {
        "pods": story.watch.ask(_RECEIPTS),
        "events": story.watch.ask(_EVENTS),
        "closings": closings,
        "ledger": story.watch.ask("SELECT kind, count(*) AS n FROM ledger_entries GROUP BY 1"),
    }


@asynccontextmanager
async def drained(
    databases: Databases, name: str, *, plan: Plan = never, how: How | None = None
) -> AsyncIterator[Story]:
    with databases() as url:
        story = Story(url, settings=SHORT, side_by_side=how is How.SIDE_BY_SIDE)
        try:
            await story.begin(fleet(HOSTS))
            acme = await story.orders("acme", target=2 * GPUS)
            await story.caller("beta")
            await story.passes(JOINED_BY_S)
            if DRAINS[name].warn_first_s:
                services = story.sim.system.services
                await services.cluster_settings.update(
                    await story.caller("acme"), acme.id, warn_first_s=DRAINS[name].warn_first_s
                )
            story.killer.plan, story.killer.armed, story.revives = plan, True, True
            if how:
                story.doubles(how)
            await DRAINS[name].then(story, acme)
            story.killer.armed = False
            yield story
        finally:
            await story.end()


_undisturbed: dict[str, tuple[dict[str, Rows], int]] = {}


async def undisturbed(databases: Databases, name: str) -> tuple[dict[str, Rows], int]:
    if name not in _undisturbed:
        async with drained(databases, name) as story:
            _undisturbed[name] = told_of(story), story.killer.points
    found = _undisturbed[name]
    assert len(found[0]["pods"]) >= 2
    return found


@pytest.mark.parametrize("name", DRAINS)
async def test_killed_after_every_kind_of_step_the_receipts_are_the_same(
    databases: Databases, name: str
) -> None:
    expected, _ = await undisturbed(databases, name)
    async with drained(databases, name, plan=everywhere) as story:
        assert story.killer.kills > 20
        assert told_of(story) == expected


@pytest.mark.parametrize(("name", "sample"), [(name, sample) for name in DRAINS for sample in (1, 2)])
async def test_killed_once_the_receipts_are_the_same(
    databases: Databases, name: str, sample: int, rng: random.Random
) -> None:
    """A sample, by the printed seed, of all single points before and after which it can be killed."""
    expected, points = await undisturbed(databases, name)
    number, moment = rng.randint(1, points), rng.choice(list(Moment))
    print(f"{name}: killed {moment} point {number} of {points}")
    async with drained(databases, name, plan=at(number, moment)) as story:
        assert story.killer.kills == 1
        assert told_of(story) == expected


@pytest.mark.parametrize(("name", "how"), [(name, how) for name in DRAINS for how in How])
async def test_with_every_visit_made_twice_the_receipts_are_the_same(
    databases: Databases, name: str, how: How
) -> None:
    expected, _ = await undisturbed(databases, name)
    async with drained(databases, name, how=how) as story:
        assert told_of(story) == expected
