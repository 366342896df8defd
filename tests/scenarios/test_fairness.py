"""Theme 11: who gets what is left, who gives it back, and that it comes to rest."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from ebbtide.core.nodes import EndReason
from ebbtide.playground.behaviours import Obeys
from tests.scenarios.conftest import Begin
from tests.scenarios.story import BOOT_S, GPUS, JOINED_BY_S, MINUTE, WIPE_S, after, left_at


@pytest.mark.parametrize("order", range(3))
async def test_k1_refill_comes_to_rest_and_never_reclaims(
    given: Begin, rng: random.Random, order: int
) -> None:
    """K1: three tenants want more than there is, in any order: no reclaim, and then nothing moves."""
    story = await given(hosts=9)
    tenants = ["acme", "beta", "gamma"]
    rng.shuffle(tenants)
    clusters = []
    for who in tenants:
        clusters.append(await story.orders(who, who))
        await story.passes(rng.choice((1, 20, JOINED_BY_S)))
    changes = [(cluster, hosts) for cluster in clusters for hosts in (8, 5)]
    rng.shuffle(changes)
    print([(cluster.who, hosts) for cluster, hosts in changes])
    for cluster, hosts in changes:
        await cluster.changes(target=hosts * GPUS)
        await story.passes(rng.choice((0, 5, 45)))
    await story.passes(5 * MINUTE)
    lent = story.lent()
    assert sum([await cluster.allocated() for cluster in clusters]) == 6 * GPUS
    await story.passes(10 * MINUTE)
    assert (story.lent(), story.preempted()) == (lent, 0)


async def test_k2_what_was_taken_for_a_customer_does_not_go_to_and_fro(given: Begin) -> None:
    """K2: the host that beta gives up rests; its next order within the cooldown takes no node."""
    story = await given(hosts=3)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    beta = await story.orders("beta", "first")
    await story.passes(2 * MINUTE)
    assert (await beta.details()).phase == "READY"
    await beta.is_deleted()
    await story.passes(WIPE_S + 60)
    assert (len(await acme.nodes()), await story.free_hosts()) == (1, 1)
    fill = (await acme.details()).fill
    assert fill is not None
    assert "just given back" in fill.pending_reason
    await story.orders("beta", "second")
    await story.passes(5 * MINUTE)
    assert story.preempted() == 1


async def test_k3_as_few_nodes_as_are_needed(given: Begin) -> None:
    """K3.

    An order of 8 GPUs takes one 8-GPU node; with a free host, none; of three wanted, what is missing.
    """
    story = await given(hosts=6)
    acme = await story.orders("acme", target=3 * GPUS)
    await story.passes(JOINED_BY_S)
    await story.orders("beta", "fits-what-is-free", gpus=GPUS)
    assert story.preempted() == 0
    await story.orders("beta", "one-more-than-free", gpus=2 * GPUS)
    assert story.preempted() == 1
    await story.orders("beta", "another", gpus=GPUS)
    assert story.preempted() == 2
    assert len(await acme.running()) == 1


async def test_k4_demand_that_swings_takes_few_nodes(given: Begin) -> None:
    """K4: one node more and less every 30 s for ten minutes: at most four reclaims."""
    story = await given(hosts=5)
    acme = await story.orders("acme", target=3 * GPUS)
    beta = await story.orders("beta", "swings")
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, Obeys(40))
    for swing in range(20):
        await beta.changes(gpus=2 * GPUS if swing % 2 == 0 else GPUS)
        await story.passes(30)
    assert 1 <= story.preempted() <= 4


async def test_k4_nodes_inside_their_minimum_life_are_taken_last(given: Begin) -> None:
    """K4: an older node that is as busy goes before one that came up a minute ago."""
    story = await given(hosts=4)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (old,) = await acme.running()
    assert old.running_at is not None
    await story.until(old.running_at + timedelta(seconds=story.sim.settings.min_life_s))
    await acme.changes(target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node)
    await story.passes(30)
    await story.orders("beta", "standard", gpus=2 * GPUS)
    (taken,) = await acme.draining()
    assert taken.uid == old.uid
    assert "past its minimum life" in (taken.why or "")


async def test_k6_a_newcomer_gets_its_share_as_hosts_come_back_and_takes_none(given: Begin) -> None:
    """K6, the documented rule: refill never reclaims; shares even out on release only."""
    story = await given(hosts=6)
    acme = await story.orders("acme", target=4 * GPUS)
    await story.passes(JOINED_BY_S)
    beta = await story.orders("beta", "newcomer", target=4 * GPUS)
    await story.passes(10 * MINUTE)
    assert (await acme.allocated(), await beta.allocated(), story.preempted()) == (32, 0, 0)
    await acme.changes(target=3 * GPUS)
    await acme.changes(target=4 * GPUS)
    await story.passes(3 * MINUTE)
    assert (await acme.allocated(), await beta.allocated()) == (24, 8)
    assert story.preempted() == 0


async def test_k8_a_lower_target_lets_the_least_needed_nodes_go_in_the_normal_way(given: Begin) -> None:
    """K8: 32 to 16: the cordoned node and the idle one leave, with a scale-down reason and five minutes."""
    story = await given(hosts=5)
    acme = await story.orders("acme", target=4 * GPUS)
    await story.passes(JOINED_BY_S)
    busy, cordoned, idle, busy_too = await acme.running()
    for node in (busy, cordoned, busy_too):
        acme.runs(node, Obeys(50))
    story.world.cordon(acme.id, cordoned.name)
    await story.passes(30)
    t0 = story.now
    await acme.changes(target=2 * GPUS)
    leaving = await acme.draining()
    assert {node.uid for node in leaving} == {cordoned.uid, idle.uid}
    assert {node.deadline for node in leaving} == {t0 + timedelta(minutes=5)}
    await story.passes(MINUTE)
    assert (await acme.reasons())["TogetherScaledDown"] == 2
    assert after(t0, left_at(await acme.node(cordoned.uid))) == 50
    assert after(t0, left_at(await acme.node(idle.uid))) == 0
    assert {node.uid for node in await acme.running()} == {busy.uid, busy_too.uid}


async def test_k9_what_was_taken_overnight_is_back_when_capacity_is(given: Begin) -> None:
    """K9: all nodes taken at 02:00, capacity free at 05:00, the target is met without anybody's act."""
    story = await given(hosts=3, observe_every_s=600, leaks_every_s=3600, fill_every_s=600)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    await story.claims(2, "nightly-batch")
    await story.passes(MINUTE)
    assert await acme.allocated() == 0
    await story.passes(3 * 60 * MINUTE)
    assert (await story.claim("nightly-batch")).waiting == 0
    await story.gives_back("nightly-batch")
    await story.passes(story.sim.settings.cooldown_s + BOOT_S + MINUTE)
    assert await acme.allocated() == 2 * GPUS


async def test_k12_a_burst_of_refills_is_capped_per_cluster(given: Begin) -> None:
    """K12: thirty wanted at once, at most eight on their way in at any instant; nobody else waits."""
    story = await given(hosts=36, max_joining=8, observe_every_s=60)
    acme = await story.orders("acme")
    beta = await story.orders("beta", "small")
    await story.passes(JOINED_BY_S)
    most = 0

    def count_joining() -> None:
        nonlocal most
        (row,) = story.watch.ask(
            "SELECT count(*) AS n FROM nodes WHERE phase IN ('SCHEDULING', 'BOOTING', 'BOOTSTRAPPING')"
            " AND cluster_id = %s",
            acme.id,
        )
        most = max(most, row["n"])

    story.sim.after_step.append(count_joining)
    await acme.changes(target=30 * GPUS)
    await beta.changes(target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    assert await beta.allocated() == 2 * GPUS
    await story.passes(4 * MINUTE)
    assert (most, await acme.allocated()) == (8, 30 * GPUS)


async def test_a_claim_of_another_system_is_supply_for_somebody_else(given: Begin) -> None:
    """Hosts given now and draining with their deadline; handed over by name; come back by name; refilled."""
    story = await given(hosts=4)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, Obeys(30))
    answer = await story.claims(2, "order-77")
    again = await story.claims(2, "order-77")
    assert again == answer
    assert (len(answer.given), answer.waiting, len(answer.draining)) == (1, 1, 1)
    assert answer.draining[0].deadline == story.now + timedelta(minutes=5)
    await story.passes(30 + WIPE_S + 20)
    served = await story.claim("order-77")
    assert (served.state, len(served.given)) == ("served", 2)
    one, other = served.given
    await story.gives_back("order-77", one)
    await story.gives_back("order-77", one)
    assert (await story.claim("order-77")).given == (other,)
    await story.passes(story.sim.settings.cooldown_s + JOINED_BY_S)
    assert await acme.allocated() == 2 * GPUS
    assert (await story.gives_back("order-77")).state == "ended"
    assert story.preempted() == 1
    assert {node.end_reason for node in await acme.gone()} == {EndReason.PREEMPTED}


async def test_a_promise_that_nothing_can_keep_waits_quietly(given: Begin) -> None:
    """A promised host is cordoned and nothing is left to take: planned now and then, not without end."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(20))
    beta = await story.orders("beta", "standard")
    fleet, operator = story.sim.system.services.fleet, await story.operator()
    await fleet.set_cordon(operator, node.host_name or "", cordoned=True)
    before = story.watch.checks
    await story.passes(10 * MINUTE)
    assert story.watch.checks - before < 200
    assert (await beta.details()).phase == "WAITING_FOR_DATA_PLANE_NODES"
    await fleet.set_cordon(operator, node.host_name or "", cordoned=False)
    await story.passes(2 * MINUTE)
    assert (await beta.details()).phase == "READY"
