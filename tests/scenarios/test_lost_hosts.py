"""Hosts that go without asking: C1, C5, C7, I4, I5, A4."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.playground.behaviours import IgnoresSigterm, Obeys, Reregisters, StopUnconfirmed
from ebbtide.playground.facts import What
from tests.scenarios.conftest import Begin
from tests.scenarios.story import (
    BOOT_S,
    GPUS,
    JOINED_BY_S,
    MINUTE,
    POOL,
    WIPE_S,
    after,
    left_at,
    whole,
)


async def test_i5_a_host_that_dies_without_notice_is_reported_and_is_no_preemption(given: Begin) -> None:
    """I5: an event with the reason "lost" within 60 s, counted apart."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    await story.passes(50)
    died_at = story.now
    story.world.vanish(node.host_name or "")
    await story.passes(MINUTE)
    (lost,) = [event for event in (await acme.details()).events if event.reason == "EbbtideNodeLost"]
    assert after(died_at, lost.at) <= 60
    assert (await acme.node(node.uid)).end_reason is EndReason.LOST
    assert story.preempted() == 0
    assert whole(died_at) - 20 <= story.billed_until(node) <= whole(died_at)


async def test_c1_a_host_that_vanishes_in_mid_drain_is_removed_within_30_s(given: Begin) -> None:
    """C1: long grace does not hold a node whose host has gone; billing stops with the host."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, IgnoresSigterm(), grace_s=300)
    await story.passes(MINUTE)
    t0 = story.now
    await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(60)
    story.world.vanish(node.host_name or "")
    await story.passes(30)
    gone = await acme.node(node.uid)
    assert gone.phase in (Phase.REMOVING, Phase.REMOVED)
    assert after(t0, left_at(gone)) <= 90
    assert gone.end_reason is EndReason.PREEMPTED
    assert whole(t0) + 40 <= story.billed_until(node) <= whole(t0) + 60
    assert not [seen for seen in story.world.nodes(acme.id) if seen.uid == node.uid]


async def test_a4_a_host_that_is_dead_at_the_notice_holds_nobody_up(given: Begin) -> None:
    """A4: no kubelet acknowledges anything; pods are forced off and the node leaves by the deadline."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(60), name="guarded")
    story.world.budget(acme.id, "keep-all", "guarded")
    await story.passes(30)
    story.world.vanish(node.host_name or "", forgotten=False)
    t0 = story.now
    await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(305)
    gone = await acme.node(node.uid)
    assert after(t0, left_at(gone)) <= 300
    assert not [seen for seen in story.world.nodes(acme.id) if seen.uid == node.uid]


async def test_c5_ghosts_of_a_wave_hold_nothing_up_and_count_as_nothing(given: Begin) -> None:
    """C5: 40% are reclaimed at once and half of their hosts do not stop; the order is served all the same."""
    story = await given(hosts=11)
    acme = await story.orders("acme", target=10 * GPUS)
    await story.passes(JOINED_BY_S)
    nodes = await acme.running()
    assert len(nodes) == 10
    beta = await story.orders("beta", "wave", gpus=4 * GPUS)
    ghosts = (await acme.draining())[:2]
    for ghost in ghosts:
        story.world.set_behaviour(StopUnconfirmed(), host=ghost.host_name)
    await story.passes(30 * MINUTE)
    assert (await beta.details()).phase == "READY"
    assert await acme.allocated() == 4 * GPUS
    pool = await story.pool()
    assert pool.counts["free"] == 0
    for ghost in ghosts:
        stuck = await acme.node(ghost.uid)
        assert stuck.phase is Phase.REMOVING
        assert "stop" in (stuck.outcome or "")
        story.world.set_behaviour(StopUnconfirmed(0), host=ghost.host_name)
    await story.passes(5 * MINUTE)
    assert {(await acme.node(ghost.uid)).phase for ghost in ghosts} == {Phase.REMOVED}


async def test_c7_a_kubelet_that_registers_again_after_release_is_sent_away(given: Begin) -> None:
    """C7: a machine that stops late shows its Node object again: gone within 30 s, not billed."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    story.world.set_behaviour(Reregisters(1), StopUnconfirmed(4), host=node.host_name)
    await acme.changes(target=0)
    released_at = story.now
    await story.passes(2 * MINUTE)
    assert len(story.facts(What.REGISTERED, node)) >= 2
    assert await acme.allocated() == 0
    assert story.billed_until(node) == whole(released_at)
    assert not [seen for seen in story.world.nodes(acme.id) if seen.uid == node.uid]
    last_seen = max(fact.at for fact in story.facts(What.REGISTERED, node))
    last_gone = max(fact.at for fact in story.facts(What.NODE_REMOVED, node))
    assert timedelta(0) <= last_gone - last_seen <= timedelta(seconds=30)


async def test_i4_sixteen_nodes_lose_one_and_fifteen_stay(given: Begin) -> None:
    """I4: the others stay lent, and one is refilled."""
    story = await given(hosts=18)
    acme = await story.orders("acme", target=16 * GPUS)
    await story.passes(JOINED_BY_S)
    before = await acme.running()
    assert len(before) == 16
    story.world.vanish(before[5].host_name or "")
    await story.passes(BOOT_S + WIPE_S + MINUTE)
    now = {node.uid for node in await acme.running()}
    assert len(now) == 16
    assert len(now & {node.uid for node in before}) == 15
    assert story.lent() == 17


async def test_a_lost_standard_node_is_replaced_and_the_cluster_is_degraded_meanwhile(given: Begin) -> None:
    story = await given(hosts=3)
    acme = await story.orders("acme", gpus=2 * GPUS, target=GPUS)
    await story.passes(JOINED_BY_S)
    (first, _) = await acme.running_standard()
    story.world.vanish(first.host_name or "", forgotten=False)
    await story.passes(10)
    assert (await acme.details()).phase == "DEGRADED"
    await story.passes(30 * MINUTE)
    assert (await acme.details()).phase == "READY"
    assert story.preempted() == 1


async def test_a_host_whose_boots_fail_is_set_aside(given: Begin) -> None:
    """Three failed boots in a row quarantine the host; the cluster gets another one."""
    from ebbtide.playground.behaviours import BootFails

    story = await given(hosts=3)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    free = sorted(host.name for host in await story.hosts() if host.node_uid is None)
    story.world.set_behaviour(BootFails(20), host=free[0])
    await acme.changes(target=2 * GPUS)
    await story.passes(30 * MINUTE)
    states = {host.name: host.state for host in await story.hosts()}
    assert states[free[0]] == "quarantined"
    assert await acme.allocated() == GPUS
    fill = (await acme.details()).fill
    assert fill is not None
    assert POOL not in fill.pending_reason


async def test_c7_a_machine_that_never_stops_is_no_endless_quarrel(given: Begin) -> None:
    """C7, C3: its kubelet registers every second; its object is taken out now and then, not each time."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    story.world.set_behaviour(Reregisters(1), StopUnconfirmed(), host=node.host_name)
    await acme.changes(target=0)
    await story.passes(10 * MINUTE)
    assert 10 <= len(story.facts(What.NODE_REMOVED, node)) <= 10 * MINUTE / 10
