"""Nodes that their tenant deletes in the cluster: C2, C3, and what comes onto a node at the last moment."""

from __future__ import annotations

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.playground.behaviours import Dawdles, IgnoresSigterm, Obeys
from ebbtide.playground.facts import What
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, after, left_at


async def test_kubectl_delete_node_is_a_release_and_the_target_stands(given: Begin) -> None:
    """C2: seen at the next look, whatever was missed; C3: one event, and our hold goes when it is empty."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Dawdles(20), grace_s=60)
    await story.passes(MINUTE)
    deleted_at = story.now
    story.world.delete_node(acme.id, node.name)
    await story.passes(25)
    ended = await acme.node(node.uid)
    assert ended.end_reason is EndReason.SCALED_DOWN
    (noticed,) = story.facts(What.NOTICE, node)
    assert "TogetherScaledDown" in noticed.detail
    (told,) = story.facts(What.SIGTERM, node)
    cordoned = story.facts(What.CORDONED, node)[-1]
    assert cordoned.at <= told.at
    await story.passes(MINUTE)
    assert (await acme.node(node.uid)).phase is Phase.REMOVED
    assert after(deleted_at, left_at(await acme.node(node.uid))) < 60
    assert (await acme.reasons())["TogetherScaledDown"] == 1
    assert story.preempted() == 0
    await story.passes(2 * MINUTE)
    (again,) = await acme.running()
    assert again.uid != node.uid


async def test_deleting_it_again_and_again_changes_nothing(given: Begin) -> None:
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, IgnoresSigterm(), grace_s=300)
    story.world.delete_node(acme.id, node.name)
    await story.passes(30)
    deadline = (await acme.node(node.uid)).deadline
    assert deadline is not None
    for _ in range(5):
        story.world.delete_node(acme.id, node.name)
        await story.passes(20)
    draining = await acme.node(node.uid)
    assert (draining.phase, draining.deadline) == (Phase.DRAINING, deadline)
    assert len(story.facts(What.NOTICE, node)) == 1
    await story.passes(5 * MINUTE)
    assert (await acme.node(node.uid)).phase is Phase.REMOVED


async def test_a_reclaim_that_is_under_way_stays_one(given: Begin) -> None:
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(100), grace_s=300)
    await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(5)
    story.world.delete_node(acme.id, node.name)
    await story.passes(3 * MINUTE)
    assert (await acme.node(node.uid)).end_reason is EndReason.PREEMPTED


async def test_a_standard_node_that_is_deleted_is_lost_and_replaced(given: Begin) -> None:
    """Nothing holds it: its tenant can have it gone, and pays for the next."""
    story = await given(hosts=2)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running_standard()
    story.world.delete_node(acme.id, node.name)
    await story.passes(4 * MINUTE)
    assert (await acme.node(node.uid)).end_reason is EndReason.LOST
    (again,) = await acme.running_standard()
    assert again.uid != node.uid
