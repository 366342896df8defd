"""What a tenant had nothing of is credited, what cost it nothing is not; no other clock than ours bills."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ebbtide.core.nodes import Phase
from ebbtide.playground.behaviours import GpusMissing, IgnoresSigterm, NeverReady, Obeys
from ebbtide.playground.facts import What
from ebbtide.playground.state import NodeView
from ebbtide.playground.world import World
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, Cluster, Story, after, left_at, whole


def credited_s(story: Story) -> list[int]:
    """Credited seconds of whole nodes."""
    rows = story.watch.ask("SELECT gpu_seconds FROM ledger_entries ORDER BY no")
    return [row["gpu_seconds"] // GPUS for row in rows]


async def with_a_node(given: Begin, **settings: int) -> tuple[Story, Cluster, str]:
    story = await given(hosts=2, **settings)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    return story, acme, node.uid


async def test_an_idle_node_that_was_noticed_late_leaves_at_once_and_earns_no_credit(given: Begin) -> None:
    story, acme, uid = await with_a_node(given)
    await story.orders("beta", "standard")
    await story.dies()
    story.nobody_works(400)
    await story.starts()
    t1 = story.now
    await story.passes(5)
    assert after(t1, left_at(await acme.node(uid))) <= 1
    assert credited_s(story) == []
    assert (await acme.reasons())["EbbtideLateNotice"] == 0


async def test_pods_that_could_not_be_told_at_all_are_credited_and_the_event_says_so(given: Begin) -> None:
    """We were down until after D, and then the cluster's API server was silent."""
    story, acme, uid = await with_a_node(given)
    acme.runs(await acme.node(uid), IgnoresSigterm(), grace_s=300)
    await story.passes(MINUTE)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.dies()
    story.nobody_works(400)
    await story.starts()
    story.world.unreachable(acme.id, story.now, story.now + timedelta(seconds=600))
    t1 = story.now
    await story.passes(2 * MINUTE)
    assert after(t1, left_at(await acme.node(uid))) == 60
    assert credited_s(story) == [300]
    (message,) = [one.message for one in (await acme.details()).events if one.reason == "EbbtideLateNotice"]
    assert "got no SIGTERM" in message
    assert story.billed_until(await acme.node(uid)) == whole(t0) + 300


async def test_with_a_warning_first_only_what_came_after_it_was_late(given: Begin) -> None:
    story, acme, uid = await with_a_node(given)
    services = story.sim.system.services
    await services.cluster_settings.update(await story.caller("acme"), acme.id, warn_first_s=200)
    acme.runs(await acme.node(uid), IgnoresSigterm(), grace_s=300)
    await story.passes(MINUTE)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(10)
    await story.dies()
    story.nobody_works(260)
    await story.starts()
    await story.passes(2 * MINUTE)
    (sigterm,) = story.facts(What.SIGTERM)
    assert after(t0, sigterm.at) == 270
    assert sigterm.given_s == 57
    assert credited_s(story) == [70]


async def test_a_warning_that_ends_while_we_are_up_is_no_late_notice(given: Begin) -> None:
    """Down during the warning, back before SIGTERM is due: nothing is late."""
    story, acme, uid = await with_a_node(given)
    services = story.sim.system.services
    await services.cluster_settings.update(await story.caller("acme"), acme.id, warn_first_s=240)
    acme.runs(await acme.node(uid), IgnoresSigterm(), grace_s=300)
    await story.passes(MINUTE)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(5)
    await story.dies()
    story.nobody_works(150)
    await story.starts()
    await story.passes(200)
    (sigterm,) = story.facts(What.SIGTERM)
    assert (after(t0, sigterm.at), sigterm.given_s) == (240, 57)
    assert credited_s(story) == []
    assert after(t0, left_at(await acme.node(uid))) == 297


# -- strays: pods on nodes that have not joined


async def a_stray(given: Begin, *, hosts: int = 2) -> tuple[Story, Cluster, str]:
    """A preemptible node that shows half its GPUs, and a pod that tolerates everything on it."""
    story = await given(hosts=hosts, join_limit_s=120)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    (free,) = [host.name for host in await story.hosts() if host.node_uid is None]
    story.world.set_behaviour(GpusMissing(gpus=4, boot_s=5, join_s=1), host=free)
    await acme.changes(target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.nodes()
    assert node.phase is Phase.BOOTSTRAPPING
    story.world.run_pods(acme.id, node.uid, 1, Obeys(40), 60, "stray", tolerates_everything=True)
    await story.passes(21)
    return story, acme, node.uid


async def test_a_joining_node_with_a_stray_pod_is_given_back_with_its_window(given: Begin) -> None:
    story, acme, uid = await a_stray(given)
    t0 = story.now
    await acme.changes(target=0)
    assert (await acme.node(uid)).phase is Phase.DRAINING
    await story.passes(MINUTE)
    gone = await acme.node(uid)
    assert after(t0, left_at(gone)) == 40
    assert len(story.facts(What.SIGTERM)) == 1
    assert story.billed_s(gone) == 40


async def test_a_joining_node_without_pods_is_given_back_at_once(given: Begin) -> None:
    story = await given(hosts=2)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    (free,) = [host.name for host in await story.hosts() if host.node_uid is None]
    story.world.set_behaviour(NeverReady(), host=free)
    await acme.changes(target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.nodes()
    await acme.changes(target=0)
    assert (await acme.node(node.uid)).phase is Phase.REMOVING


async def test_a_stray_under_a_silent_api_server_keeps_no_host_for_ever(given: Begin) -> None:
    """It is seen before the silence; past the time to join it drains, and past D the machine stops."""
    story, acme, uid = await a_stray(given)
    placed = (await acme.node(uid)).created_at
    story.world.unreachable(acme.id, story.now, story.now + timedelta(hours=1))
    await story.until(placed + timedelta(seconds=125))
    taken = await acme.node(uid)
    assert taken.phase is Phase.DRAINING
    await story.passes(310)
    gone = await acme.node(uid)
    assert left_at(gone) == taken.deadline
    assert story.facts(What.POWER_OFF) != []
    assert story.billed_s(gone) == 300


@pytest.mark.parametrize("ahead_s", [-86_400, 3_600])
async def test_a_strays_bill_is_kept_within_our_own_times(
    given: Begin, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The cluster's clock is a day behind, or an hour ahead of ours."""
    story, acme, uid = await a_stray(given)
    plain = World.nodes

    def shifted(world: World, cluster_id: str) -> tuple[NodeView, ...]:
        return tuple(
            replace(view, first_pod_at=view.first_pod_at and view.first_pod_at + timedelta(seconds=ahead_s))
            for view in plain(world, cluster_id)
        )

    monkeypatch.setattr(World, "nodes", shifted)
    await story.passes(MINUTE)
    taken = await acme.node(uid)
    assert taken.phase is Phase.DRAINING
    (row,) = story.watch.ask("SELECT start_s FROM intervals WHERE node_uid = %s", uid)
    (node,) = story.watch.ask("SELECT placed_at, draining_at FROM nodes WHERE uid = %s", uid)
    expected = node["placed_at"] if ahead_s < 0 else node["draining_at"]
    assert row["start_s"] == whole(expected)
