"""Theme 4: what meets when scale-up, scheduling and reclaim overlap."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from ebbtide.core.nodes import JOINING, EndReason, Phase
from ebbtide.errors import Conflict
from ebbtide.playground.behaviours import DeleteForgets, GpusMissing, IgnoresSigterm, Obeys
from ebbtide.playground.facts import What
from ebbtide.services.capacity import Planner
from ebbtide.store import pools
from ebbtide.store.db import Tx
from tests.scenarios.conftest import Begin
from tests.scenarios.story import BOOT_S, GPUS, JOINED_BY_S, MINUTE, POOL, WIPE_S, after, left_at, whole


async def test_d1_a_pod_that_lands_around_the_cordon_gets_its_window(given: Begin) -> None:
    """D1: bound 200 ms before the cordon, and bound after it: each gets SIGTERM and what is left."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    t0 = story.now + timedelta(seconds=1)
    acme.runs(node, IgnoresSigterm(), grace_s=300, name="before", bind_at=t0 - timedelta(seconds=0.2))
    acme.runs(node, IgnoresSigterm(), grace_s=300, name="behind", bind_at=t0 + timedelta(seconds=100))
    await story.until(t0)
    await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(320)
    told = {fact.pod.split("-")[0]: fact for fact in story.facts(What.SIGTERM, node)}
    assert (after(t0, told["before"].at), told["before"].given_s) == (0, 297)
    late_s = after(t0, told["behind"].at)
    assert 100 <= late_s <= 105
    assert told["behind"].given_s == int(300 - late_s) - 3
    assert after(t0, left_at(await acme.node(node.uid))) <= 300


async def test_d3_an_order_that_is_not_committed_touches_no_node(given: Begin) -> None:
    """D3, before T+0: the order is refused, so nothing of it happened."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    with pytest.raises(Conflict):
        await story.orders("beta", "standard", gpus=2 * GPUS)
    await story.passes(MINUTE)
    assert [node.phase for node in await acme.nodes()] == [Phase.RUNNING]
    assert not story.facts(What.CORDONED)


async def test_d3_from_the_notice_on_a_reclaim_is_final(given: Begin) -> None:
    """D3, after T+0: the order goes away, the drain does not, and the host goes to whoever is next."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(100))
    t0 = story.now
    beta = await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(10)
    await beta.is_deleted()
    await story.passes(80)
    assert (await acme.node(node.uid)).phase is Phase.DRAINING
    await story.passes(20)
    gone = await acme.node(node.uid)
    assert (gone.end_reason, after(t0, left_at(gone))) == (EndReason.PREEMPTED, 100)
    await story.passes(WIPE_S + BOOT_S + 2 * MINUTE)
    (again,) = await acme.running()
    assert again.uid != node.uid


async def test_d4_a_release_that_fails_is_tried_again_and_costs_nobody_anything(given: Begin) -> None:
    """D4: the provider cannot take the host back three times; it is neither free nor allocated meanwhile."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(10))
    story.world.set_behaviour(DeleteForgets(3), host=node.host_name)
    t0 = story.now
    await acme.changes(target=0)
    await story.passes(12)
    stuck = await acme.node(node.uid)
    assert stuck.phase is Phase.REMOVING
    assert "could not be given back" in (stuck.outcome or "")
    pool = await story.pool()
    assert (pool.counts["turning_over"], pool.counts["free"], await acme.allocated()) == (1, 0, 0)
    await story.passes(2 * MINUTE)
    failed = [after(t0, fact.at) for fact in story.facts(What.DELETE_FAILED, node)]
    gaps = [later - earlier for earlier, later in pairwise(failed)]
    assert len(failed) == 3
    assert gaps == sorted(gaps)
    assert await story.free_hosts() == 1
    assert story.billed_until(node) == whole(t0) + 10


async def test_d5_several_planners_never_lend_more_than_the_target(given: Begin) -> None:
    """D5: ten free hosts, a target of two, and six plans of the same pool made at once."""
    story = await given(hosts=11, side_by_side=True)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    await acme.changes(target=2 * GPUS)
    system = story.sim.system

    async def plan(tx: Tx) -> int:
        lent, _ = await Planner(system.settings, system.ids).refill(tx, await pools.lock(tx, POOL))
        return lent

    lent = await asyncio.gather(*(system.db.run(plan) for _ in range(6)))
    story.look()
    assert sorted(lent) == [0, 0, 0, 0, 0, 2]
    await story.passes(MINUTE)
    assert await acme.allocated() == 2 * GPUS


async def test_d8_a_host_is_offered_to_nobody_until_it_is_wiped(given: Begin) -> None:
    """D8: while a node drains, its host is neither lent nor given; the next machine comes after the wipe."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(150))
    await story.orders("beta", "standard", gpus=GPUS)
    with pytest.raises(Conflict, match="0 free, 0 coming free"):
        await story.orders("gamma", "standard", gpus=GPUS)
    await story.passes(4 * MINUTE)
    on_host = [fact for fact in story.world.facts() if fact.host == node.host_name]
    whats = [fact.what for fact in on_host if fact.what in (What.CREATED, What.WIPED)]
    assert whats == [What.CREATED, What.WIPED, What.CREATED]


async def test_d9_a_node_without_its_gpus_is_on_its_way_and_no_second_is_lent(given: Begin) -> None:
    """D9: Ready but still installing drivers is in flight: not billed, and sent back at the limit."""
    story = await given(hosts=4)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    story.world.set_behaviour(GpusMissing(0, boot_s=BOOT_S), pool=POOL)
    await acme.changes(target=GPUS)
    await story.passes(10 * MINUTE)
    (node,) = await acme.nodes()
    assert node.phase in JOINING
    assert (story.lent(), await acme.allocated()) == (1, 0)
    assert "0 of its 8 GPUs" in (node.outcome or "")
    await story.passes(5 * MINUTE)
    sent_back = await acme.node(node.uid)
    assert sent_back.end_reason is EndReason.FAILED
    assert not story.watch.ask("SELECT 1 FROM intervals WHERE node_uid = %s", node.uid)
