"""Theme 1 as its receipts tell it: who was told when and by what, what was granted, how each pod ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.core.drain import PodKind
from ebbtide.core.nodes import Phase
from ebbtide.core.receipts import PodEnd
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace, Obeys, Volume
from ebbtide.playground.facts import What
from ebbtide.services.details import NodeDetails
from ebbtide.services.receipts import PodReceipt, Receipt
from tests.scenarios.conftest import Begin
from tests.scenarios.story import (
    GPUS,
    JOINED_BY_S,
    MINUTE,
    WIPE_S,
    Cluster,
    Story,
    after,
    left_at,
    whole,
)


async def receipt(cluster: Cluster, node: NodeDetails) -> Receipt:
    services = cluster.story.sim.system.services
    return await services.receipts.retrieve(await cluster.story.caller(cluster.who), cluster.id, node.name)


def pods(found: Receipt) -> dict[str, PodReceipt]:
    """By the name that they were run under."""
    assert found.pods is not None
    return {pod.pod.rpartition("-")[0]: pod for pod in found.pods}


async def one_node(given: Begin, **settings: int) -> tuple[Story, Cluster, NodeDetails]:
    story = await given(hosts=2, **settings)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    return story, acme, node


async def warns(cluster: Cluster, seconds: int) -> None:
    services = cluster.story.sim.system.services
    await services.cluster_settings.update(
        await cluster.story.caller(cluster.who), cluster.id, warn_first_s=seconds
    )


async def events(cluster: Cluster, reason: str) -> list[str]:
    return [event.message for event in (await cluster.details()).events if event.reason == reason]


async def test_a1_the_timeline_and_the_receipt_name_the_budget_that_was_overridden(given: Begin) -> None:
    """A1, A2: gone by D, SIGTERM at T+0 with the window, one event that names the budget."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(100), grace_s=300, name="guarded", count=2)
    acme.runs(node, Obeys(10), grace_s=30, name="free")
    story.world.budget(acme.id, "keep-all", "guarded")
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(301)
    assert after(t0, left_at(await acme.node(node.uid))) == 100
    (message,) = await events(acme, "EbbtideBudgetOverridden")
    assert "default/keep-all" in message
    assert message.count("guarded-") == 2
    assert "free-" not in message
    found = await receipt(acme, node)
    assert found.budgets_overridden == ("default/keep-all",)
    assert pods(found)["guarded"].budget_overridden == "default/keep-all"
    assert pods(found)["free"].budget_overridden is None
    assert (found.left_because, found.used_s, found.unused_s) == ("empty", 100, 200)


async def test_a10_the_receipt_states_the_grace_asked_and_the_grace_given(given: Begin) -> None:
    """A10: 900 s asked, 297 s given. Beside it: own grace kept, daemons left out."""
    story, acme, node = await one_node(given)
    acme.runs(node, IgnoresSigterm(), grace_s=900, name="asks-too-much")
    acme.runs(node, Obeys(20), grace_s=30, name="own-grace")
    acme.runs(node, Obeys(5), kind=PodKind.DAEMON, name="log-shipper")
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(MINUTE)
    early = await receipt(acme, node)
    assert (early.state, early.left_at, early.unused_s, early.summary) == ("draining", None, None, None)
    assert early.pods_by_end == {"there": 1, "exited": 1, "killed": 0, "unknown": 0}
    await story.passes(300 + WIPE_S)
    found = await receipt(acme, node)
    much, own = pods(found)["asks-too-much"], pods(found)["own-grace"]
    assert (much.grace_asked_s, much.grace_given_s, much.told_by) == (900, 297, "signal")
    assert (own.grace_asked_s, own.grace_given_s) == (30, 30)
    assert much.sigterm_at == own.sigterm_at == t0
    assert (own.end, own.used_s, own.grace_used_up) == (PodEnd.EXITED, 20, False)
    assert (much.end, much.used_s, much.grace_used_up) == (PodEnd.EXITED, 297, True)
    assert "log-shipper" not in pods(found)
    assert found.noticed_at == found.cordoned_at == found.first_sigterm_at == t0
    assert (found.window_s, found.used_s, found.unused_s, found.billed_s) == (300, 297, 3, 297)
    assert found.state == "host_free"
    assert found.host_free_at is not None
    assert found.reason == "TogetherPreempted"
    assert found.message is not None
    assert found.message.startswith("capacity was needed elsewhere")


async def test_a8_a_kubelet_that_doubles_the_grace_does_not_hold_the_node(given: Begin) -> None:
    """A8, A15: release by D, the pod reported as killed, with its container and the seconds that it had."""
    story, acme, node = await one_node(given)
    acme.runs(node, KubeletDoublesGrace(), grace_s=300, name="stuck")
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(300 + WIPE_S + 20)
    assert after(t0, left_at(await acme.node(node.uid))) == 300
    (message,) = await events(acme, "EbbtideGraceExpired")
    assert "stuck-" in message
    assert "(container stuck) 300 s after SIGTERM" in message
    found = await receipt(acme, node)
    stuck = pods(found)["stuck"]
    assert (stuck.end, stuck.used_s, stuck.ended_at) == (PodEnd.KILLED, 300, t0 + timedelta(seconds=300))
    assert (found.left_because, found.unused_s, found.billed_s) == ("deadline", 0, 300)
    assert found.summary == "left 300 s after the notice, of 300 s; of 1 pod 1 ended with the machine"


async def test_a12_noticed_is_not_drained(given: Begin) -> None:
    """A12: while work is busy nothing is deleted; DRAINING and gone are two things."""
    story, acme, node = await one_node(given)
    acme.runs(node, IgnoresSigterm(), grace_s=200)
    t0 = story.now
    await story.orders("beta", "standard")
    for _ in range(19):
        await story.passes(10)
        assert (await acme.node(node.uid)).phase is Phase.DRAINING
        assert (await receipt(acme, node)).state == "draining"
        assert not story.facts(What.NODE_REMOVED, node)
        assert not story.facts(What.POWER_OFF, node)
    await story.passes(20)
    assert after(t0, left_at(await acme.node(node.uid))) == 200


async def test_a6_accepted_is_not_gone(given: Begin) -> None:
    """A6: all evictions accepted at once, the pod exits at T+200 s."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(200), grace_s=250)
    t0 = story.now
    await acme.changes(target=0)
    await story.passes(260)
    assert after(t0, left_at(await acme.node(node.uid))) == 200
    assert after(t0, story.facts(What.POWER_OFF, node)[0].at) >= 200
    found = await receipt(acme, node)
    assert (found.kind, found.reason) == ("release", "TogetherScaledDown")
    assert pods(found)["job"].told_by == "eviction"
    assert after(t0, pods(found)["job"].sigterm_at) == 0


async def test_a_budget_that_refused_a_release_is_in_its_receipt(given: Begin) -> None:
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(30), grace_s=60, name="guarded")
    story.world.budget(acme.id, "keep-all", "guarded")
    t0 = story.now
    await acme.changes(target=0)
    await story.passes(100)
    waiting = await receipt(acme, node)
    assert waiting.budgets_refused != ()
    assert "keep-all" in waiting.budgets_refused[0]
    assert (pods(waiting)["guarded"].sigterm_at, waiting.first_sigterm_at) == (None, None)
    await story.passes(200)
    guarded = pods(await receipt(acme, node))["guarded"]
    assert guarded.told_by == "signal"
    assert after(t0, guarded.sigterm_at) == 300 - 60 - story.sim.settings.release_margin_s
    assert guarded.budget_overridden == "default/keep-all"
    assert await events(acme, "EbbtideBudgetOverridden") != []


async def test_b3_what_tolerates_everything_drains_with_the_rest_and_is_flagged(given: Begin) -> None:
    """B3: each arrival gets what is left, D does not move, the timeline flags the toleration, once."""
    story, acme, node = await one_node(given)
    story.world.run_pods(
        acme.id, node.uid, 1, Obeys(40), 300, "clingy", reschedule=True, tolerates_everything=True
    )
    acme.runs(node, Obeys(5), name="late", bind_at=story.now + timedelta(seconds=1))
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(300 + WIPE_S + 10)
    gone = await acme.node(node.uid)
    assert gone.deadline == t0 + timedelta(seconds=300)
    assert after(t0, left_at(gone)) == 300
    (message,) = await events(acme, "EbbtidePodArrived")
    assert "clingy-" in message
    assert "late-" not in message
    found = await receipt(acme, node)
    assert found.pods is not None
    clingy = sorted(
        (pod for pod in found.pods if pod.pod.startswith("clingy")), key=lambda pod: pod.first_seen_at
    )
    assert [pod.arrived_after_notice for pod in clingy] == [False] + [True] * (len(clingy) - 1)
    assert len(clingy) >= 7
    assert found.arrived_after_notice == len(clingy) - 1 + 1  # and the one that was on its way
    for pod in clingy:
        left_s = 300 - after(t0, pod.first_seen_at)
        assert pod.tolerates_cordon
        assert pod.grace_given_s is not None or left_s == 0  # it came as the node left
        assert (pod.grace_given_s or 1) == max(1, int(left_s) - 3)
    late = pods(found)["late"]
    assert (late.arrived_after_notice, late.tolerates_cordon) == (True, False)


async def test_a5_a_cluster_may_be_warned_before_sigterm(given: Begin) -> None:
    """A5: cordon, annotation and events at T+0, SIGTERM at T+N, D does not move, grace is cut accordingly."""
    story, acme, node = await one_node(given)
    await warns(acme, 60)
    acme.runs(node, IgnoresSigterm(), grace_s=300, name="works-on")
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(59)
    assert after(t0, story.facts(What.CORDONED, node)[0].at) == 0
    (notice,) = story.facts(What.NOTICE, node)
    assert after(t0, notice.at) == 0
    assert "SIGTERM comes at" in notice.detail
    assert not story.facts(What.SIGTERM, node)
    assert "SIGTERM in" in ((await acme.node(node.uid)).outcome or "")
    await story.passes(300)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (after(t0, sigterm.at), sigterm.given_s) == (60, 237)
    gone = await acme.node(node.uid)
    assert gone.deadline == t0 + timedelta(seconds=300)
    assert after(t0, left_at(gone)) == 297
    found = await receipt(acme, node)
    assert (found.warned_s, after(t0, found.sigterm_due_at), after(t0, found.first_sigterm_at)) == (
        60,
        60,
        60,
    )
    assert not found.late_notice
    assert found.credits == ()


async def test_a_warning_keeps_no_empty_node_and_one_that_works_may_leave_in_it(given: Begin) -> None:
    story = await given(hosts=3)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    await warns(acme, 200)
    idle, busy = await acme.running()
    # It heeds the warning: it finishes by itself before SIGTERM would come.
    acme.runs(busy, Obeys(5), name="heeds")
    t0 = story.now
    await story.orders("beta", "standard", gpus=2 * GPUS)
    await story.passes(2)
    assert after(t0, left_at(await acme.node(idle.uid))) <= 1
    assert (await acme.node(busy.uid)).phase is Phase.DRAINING
    await story.passes(240)
    assert after(t0, left_at(await acme.node(busy.uid))) == 205


async def test_a_changed_warning_holds_for_drains_that_begin_later(given: Begin) -> None:
    story, acme, node = await one_node(given)
    await warns(acme, 100)
    acme.runs(node, Obeys(1))
    t0 = story.now
    await story.orders("beta", "standard")
    await story.passes(10)
    await warns(acme, 0)
    await story.passes(100)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert after(t0, sigterm.at) == 100


async def test_an_attachment_that_lingers_is_waited_for_and_told(given: Begin) -> None:
    """C8: the pod is gone, its volume is not: unused time is what was left when both were."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(90), volumes=[Volume(lingers_s=30)])
    await story.orders("beta", "standard")
    await story.passes(200)
    found = await receipt(acme, node)
    assert pods(found)["job"].used_s == 90
    assert found.left_because == "empty"
    assert found.used_s is not None
    assert 120 <= found.used_s <= 125


async def test_e12_what_was_given_back_stops_costing_once(given: Begin) -> None:
    """E12: the provider's delete fails for a while; quota and spend stopped at the end of the drain."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(50))
    t0 = story.now
    story.world.provider_unreachable(t0, t0 + timedelta(seconds=400), ["delete"])
    await acme.changes(target=0)
    await story.passes(120)
    assert (await acme.node(node.uid)).phase is Phase.REMOVING
    assert await acme.allocated() == 0
    billed = story.billed_until(node)
    assert billed == whole(t0) + 50
    used = await story.sim.system.services.supply.now(await story.caller("acme"))
    await story.passes(600)
    assert (await acme.node(node.uid)).phase is Phase.REMOVED
    assert story.billed_until(node) == billed
    assert (await receipt(acme, node)).billed_s == 50
    assert (await story.sim.system.services.supply.now(await story.caller("acme"))).quota == used.quota


async def test_h1_a_wave_sends_at_most_three_events_per_node_the_notice_first(given: Begin) -> None:
    """H1, as far as a drain has a say: one notice and one closing event each; an alias is the driver's."""
    story = await given(hosts=9)
    acme = await story.orders("acme", target=8 * GPUS)
    await story.passes(2 * JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, Obeys(20), count=3)
    await story.orders("beta", "standard", gpus=8 * GPUS)
    await story.passes(2 * MINUTE)
    taken = {fact.node_uid for fact in story.facts(What.NOTICE)}
    assert len(taken) == 8
    for uid in taken:
        told = [
            fact.what
            for fact in story.world.facts(node_uid=uid)
            if fact.what in (What.NOTICE, What.CLOSING, What.NODE_REMOVED)
        ]
        assert told == [What.NOTICE, What.CLOSING, What.NODE_REMOVED]
    details = {fact.detail for fact in story.facts(What.CLOSING)}
    assert details == {"EbbtideNodeDrained: left 20 s after the notice, of 300 s; of 3 pods 3 exited"}


async def test_h2_a_closing_event_that_cannot_be_sent_holds_nothing_up(given: Begin) -> None:
    """H2: the durable record does not need the cluster."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(20))
    t0 = story.now
    story.world.unreachable(acme.id, t0, t0 + timedelta(seconds=200), ["conclude"])
    await story.orders("beta", "standard")
    await story.passes(MINUTE)
    assert after(t0, left_at(await acme.node(node.uid))) == 20
    assert story.facts(What.NODE_REMOVED, node) != []
    assert story.facts(What.CLOSING, node) == []
    assert (await receipt(acme, node)).summary is not None


async def test_h4_a_cordon_that_fails_is_tried_again_soon_and_the_deadline_stays(given: Begin) -> None:
    """H4: retried within 2 s; D counts from the first notice."""
    story, acme, node = await one_node(given)
    acme.runs(node, IgnoresSigterm(), grace_s=300)
    t0 = story.now
    story.world.unreachable(acme.id, t0, t0 + timedelta(seconds=1), ["notify"])
    await story.orders("beta", "standard")
    await story.passes(3)
    assert 1 <= after(t0, story.facts(What.CORDONED, node)[0].at) <= 2
    taken = await acme.node(node.uid)
    assert taken.deadline == t0 + timedelta(seconds=300)
    found = await receipt(acme, node)
    assert found.noticed_at == t0
    assert found.cordoned_at == story.facts(What.CORDONED, node)[0].at


async def test_receipts_stay_when_the_cluster_has_gone(given: Begin) -> None:
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(20))
    await story.orders("beta", "standard")
    await story.passes(10 * MINUTE)
    before = await receipt(acme, node)
    await acme.is_deleted()
    await story.passes(10 * MINUTE)
    assert story.watch.ask("SELECT phase FROM clusters WHERE id = %s", acme.id)[0]["phase"] == "DELETED"
    assert await receipt(acme, node) == before


async def test_a_drain_that_its_cluster_outlived_says_that_nobody_saw_the_end(given: Begin) -> None:
    """The cluster is deleted, or the host lost, in the middle of a drain: no end is invented."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(200), name="still-there")
    acme.runs(node, Obeys(10), name="done")
    await story.orders("beta", "standard")
    await story.passes(30)
    await acme.is_deleted()
    await story.passes(2 * MINUTE)
    found = await receipt(acme, node)
    assert (found.left_because, found.used_s) == ("cut_short", 30)
    assert pods(found)["still-there"].end is PodEnd.UNKNOWN
    assert pods(found)["done"].end is PodEnd.EXITED


async def test_a_cluster_that_does_not_answer_leaves_what_was_seen_last(given: Begin) -> None:
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(200))
    t0 = story.now
    story.world.unreachable(acme.id, t0 + timedelta(seconds=30), t0 + timedelta(seconds=900))
    await story.orders("beta", "standard")
    await story.passes(400)
    found = await receipt(acme, node)
    assert (found.left_because, found.unused_s) == ("deadline", 0)
    assert pods(found)["job"].end is PodEnd.UNKNOWN
    assert pods(found)["job"].grace_given_s == 297


@pytest.mark.parametrize("last", [1, 2, 5])
async def test_receipts_are_listed_newest_first_page_by_page(given: Begin, last: int) -> None:
    story = await given(hosts=6)
    acme = await story.orders("acme", target=5 * GPUS)
    await story.passes(2 * JOINED_BY_S)
    nodes = await acme.running()
    await story.orders("beta", "standard", gpus=4 * GPUS)
    await story.passes(2 * MINUTE)
    listed = story.sim.system.services.receipts.list
    caller = await story.caller("acme")
    whole_list = await listed(caller, acme.id)
    taken = [node.name for node in nodes if (await acme.node(node.uid)).phase is not Phase.RUNNING]
    assert sorted(one.node_id for one in whole_list) == sorted(taken)
    assert all(one.pods is None for one in whole_list)
    paged: list[Receipt] = []
    while page := await listed(caller, acme.id, paged[-1].node_id if paged else None, last):
        paged += page
    assert paged == list(whole_list)


async def test_the_node_says_what_the_event_says_and_not_why_it_was_this_one(given: Begin) -> None:
    """Who held how much is the operator's to know (`fleet why`); a tenant's cluster is told the demand."""
    story, acme, node = await one_node(given)
    acme.runs(node, Obeys(20))
    await story.orders("beta", "standard")
    await story.passes(5)
    (event,) = await events(acme, "TogetherPreempted")
    (notice,) = story.facts(What.NOTICE, node)
    assert notice.detail.endswith(event)
    assert "held the most" not in notice.detail
    assert acme.id not in notice.detail
