"""Theme 1: grace, order and patience of a drain, as far as a simulated cluster shows them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.core.nodes import Phase
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace, Obeys
from ebbtide.playground.facts import What
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, WIPE_S, after, left_at


async def test_a1_a_budget_that_allows_nothing_does_not_hold_up_a_reclaim(given: Begin) -> None:
    """A1, A2: SIGTERM goes out at T+0 with the whole window, whatever the budget says."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(100), grace_s=300, name="guarded")
    story.world.budget(acme.id, "keep-all", "guarded")
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(305)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (after(t0, sigterm.at), sigterm.given_s) == (0, 297)
    assert after(t0, left_at(await acme.node(node.uid))) == 100


async def test_a5_a_pod_that_works_on_is_not_killed_before_its_grace_is_over(given: Begin) -> None:
    """A5: no SIGKILL before T+4:55."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, IgnoresSigterm(), grace_s=300)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(305)
    (killed,) = story.facts(What.KILLED, node)
    assert after(t0, killed.at) == 297


async def test_a6_a7_the_machine_goes_off_only_when_the_pods_have_gone(given: Begin) -> None:
    """A6, A7: notice, pods gone at T+200, Node object handled, power off; in this order, and not before."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(200), grace_s=300)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(250)
    when = {fact.what: after(t0, fact.at) for fact in story.world.facts(node_uid=node.uid) if fact.at >= t0}
    order = [when[one] for one in (What.NOTICE, What.EXITED, What.NODE_REMOVED, What.POWER_OFF, What.WIPED)]
    assert order == sorted(order)
    assert (when[What.NOTICE], when[What.EXITED]) == (0, 200)
    assert 200 <= when[What.POWER_OFF] <= 205


async def test_a7_with_pods_left_at_the_deadline_the_machine_stops_before_its_node_goes(given: Begin) -> None:
    """A7, A8, C8: two writers on one volume are worse than a Node that is seen NotReady for a moment."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, KubeletDoublesGrace(), grace_s=300)
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(300 + WIPE_S + 20)
    when = {fact.what: fact for fact in story.world.facts(node_uid=node.uid) if fact.at >= t0}
    whats = [fact.what for fact in story.world.facts(node_uid=node.uid)]
    assert whats.index(What.POWER_OFF) < whats.index(What.NODE_REMOVED)
    assert after(t0, when[What.POWER_OFF].at) == 300
    (expired,) = [one for one in (await acme.details()).events if one.reason == "EbbtideGraceExpired"]
    assert "job" in expired.message


async def test_a11_unsure_whether_the_node_is_empty_means_not_empty(given: Begin) -> None:
    """A11: pods exit at T+20, the pod list fails from T+10 to T+60: nothing is released in that span."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(20))
    t0 = story.now
    story.world.unreachable(acme.id, t0 + timedelta(seconds=10), t0 + timedelta(seconds=60), ["pods"])
    await story.orders("beta", "standard")
    await story.passes(59)
    assert (await acme.node(node.uid)).phase is Phase.DRAINING
    await story.passes(MINUTE)
    assert 60 <= after(t0, left_at(await acme.node(node.uid))) <= 65


async def test_past_the_deadline_nothing_is_waited_for_an_unreachable_cluster_included(given: Begin) -> None:
    """Promise 3: the API server is away from T+30 to T+15:00; at T+5:00 the machine stops."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(100))
    t0 = story.now
    story.world.unreachable(acme.id, t0 + timedelta(seconds=30), t0 + timedelta(seconds=900))
    beta = await story.orders("beta", "standard")
    await story.passes(301)
    assert after(t0, left_at(await acme.node(node.uid))) == 300
    assert after(t0, story.facts(What.POWER_OFF, node)[0].at) == 300
    await story.until(t0 + timedelta(seconds=600))
    assert (await beta.details()).phase == "READY"
    await story.until(t0 + timedelta(seconds=930))
    assert not [seen for seen in story.world.nodes(acme.id) if seen.uid == node.uid]
    assert len(story.facts(What.NOTICE, node)) == 1


@pytest.mark.parametrize("how", ["reclaim", "release"])
async def test_a3_a_pod_under_two_budgets_is_told_in_time(given: Begin, how: str) -> None:
    """A3: the eviction answers 500. A reclaim does not ask; a release tells it when its grace must begin."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(20), grace_s=60, name="guarded")
    for budget in ("one", "other"):
        story.world.budget(acme.id, budget, "guarded", min_available=0)
    t0 = story.now
    if how == "reclaim":
        await story.orders("beta", "standard")
    else:
        await acme.changes(target=0)
    await story.passes(301)
    told_s = 0 if how == "reclaim" else 300 - 60 - story.sim.settings.release_margin_s
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (after(t0, sigterm.at), sigterm.given_s) == (told_s, 60)
    assert after(t0, left_at(await acme.node(node.uid))) == told_s + 20
