"""Fill times and node lives as the ledger has them, against what the world shows happened."""

from __future__ import annotations

from statistics import median

import pytest

from ebbtide.errors import NotFound
from ebbtide.playground.facts import What
from ebbtide.services.supply import Observed
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, Cluster, Story, after


async def of_all(story: Story) -> Observed:
    (found,) = await story.sim.system.services.supply.history(await story.caller("beta"))
    return found


async def of(cluster: Cluster) -> Observed:
    services = cluster.story.sim.system.services
    return await services.supply.cluster_history(await cluster.story.caller(cluster.who), cluster.id)


async def test_below_the_minimum_there_is_not_enough_history(given: Begin) -> None:
    story = await given(hosts=4, history_samples=3)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    found = await of_all(story)
    assert (found.fill.samples, found.fill.ended, found.fill.enough) == (2, 2, False)
    assert (found.fill.median_s, found.life.median_s) == (None, None)
    assert (found.life.samples, found.life.ended) == (2, 0)
    await acme.changes(target=3 * GPUS)
    await story.passes(2 * JOINED_BY_S)
    found = await of_all(story)
    assert found.fill.enough
    assert found.fill.median_s is not None
    assert not found.life.enough


async def test_fill_times_are_from_the_raised_target_to_the_running_node(given: Begin) -> None:
    story = await given(hosts=4, history_samples=1)
    acme = await story.orders("acme")
    await story.passes(2 * MINUTE)
    raised = story.now
    await acme.changes(target=2 * GPUS)
    await story.passes(2 * MINUTE)
    seen = sorted(int(after(raised, node.running_at)) for node in await acme.running())
    found = await of(acme)
    assert (found.fill.samples, found.fill.ended) == (2, 2)
    assert found.fill.median_s == seen[0]
    assert found.fill.p90_s == seen[1]


async def test_a_wish_that_waits_for_capacity_is_counted_as_waiting(given: Begin) -> None:
    story = await given(hosts=2, history_samples=1)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    found = await of(acme)
    assert (found.fill.samples, found.fill.ended) == (2, 1)
    assert found.fill.p90_s is None  # half of them is all that was seen to end
    beta = await story.orders("beta", "small", gpus=GPUS)
    await story.passes(10 * MINUTE)
    await beta.is_deleted()
    await story.passes(10 * MINUTE)
    later = await of(acme)
    assert (later.fill.samples, later.fill.ended) == (2, 1), "a replacement is no raised target"


async def test_lives_end_with_a_reclaim_and_running_nodes_are_not_ended(given: Begin) -> None:
    story = await given(hosts=7, history_samples=2, min_life_s=0, cooldown_s=0)
    acme = await story.orders("acme", target=5 * GPUS)
    await story.passes(2 * JOINED_BY_S)
    nodes = {node.uid: node for node in await acme.running()}
    assert len(nodes) == 5
    await story.passes(10 * MINUTE)
    await story.orders("beta", "one", gpus=2 * GPUS)
    await story.passes(20 * MINUTE)
    await story.orders("beta", "two", gpus=1 * GPUS)
    await story.passes(MINUTE)
    await acme.changes(target=1 * GPUS)
    await story.passes(10 * MINUTE)
    taken = {
        fact.node_uid: fact.at
        for fact in story.facts(What.NOTICE)
        if fact.detail.startswith("TogetherPreempted")
    }
    assert len(taken) == 2
    spans = sorted(int(after(nodes[uid].running_at or story.now, at)) for uid, at in taken.items())
    found = await of_all(story)
    assert (found.life.samples, found.life.ended) == (5, 2)
    # Of five, one was taken early, one later; two given back and one running are cut off behind both.
    assert found.life.median_s is None
    assert spans[0] < spans[1]
    assert median(spans) > 0


async def test_the_history_of_all_is_the_sum_of_its_clusters(given: Begin) -> None:
    story = await given(hosts=6, history_samples=1)
    acme = await story.orders("acme", target=GPUS)
    beta = await story.orders("beta", "b", target=2 * GPUS)
    await story.passes(2 * JOINED_BY_S)
    whole, parts = await of_all(story), [await of(acme), await of(beta)]
    assert whole.fill.samples == sum(part.fill.samples for part in parts) == 3
    assert whole.life.samples == sum(part.life.samples for part in parts) == 3
    with pytest.raises(NotFound):
        await story.sim.system.services.supply.cluster_history(await story.caller("beta"), acme.id)


async def test_what_is_older_than_the_window_is_left_out(given: Begin) -> None:
    story = await given(
        hosts=4, history_samples=1, history_days=1, observe_every_s=3_600, meter_every_s=3_600
    )
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    assert (await of(acme)).fill.ended == 1
    story.sim.clock.advance(86_400)
    await story.passes(MINUTE)
    found = await of(acme)
    assert (found.fill.samples, found.life.samples) == (0, 0)
    assert not found.fill.enough
