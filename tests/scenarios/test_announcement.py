"""The announcement, sentence by sentence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.core.drain import PodKind
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.errors import BadInput, Conflict
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace, Obeys
from ebbtide.playground.facts import What
from tests.scenarios.conftest import Begin
from tests.scenarios.story import (
    BOOT_S,
    GPUS,
    JOINED_BY_S,
    MINUTE,
    STANDARD,
    WIPE_S,
    after,
    left_at,
    whole,
)


async def test_notice_is_one_transaction_then_cordon_then_sigterm_to_every_pod(given: Begin) -> None:
    """T+0. Phase, deadline and event are committed before anybody outside is told."""
    story = await given(hosts=3)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, IgnoresSigterm(), grace_s=300, name="whole-window")
        acme.runs(node, Obeys(20), grace_s=30, name="own-grace")
        acme.runs(node, Obeys(5), grace_s=900, name="asks-too-much")
        acme.runs(node, Obeys(5), kind=PodKind.DAEMON, name="log-shipper")
    await story.passes(MINUTE)

    t0 = story.now
    await story.orders("beta", "standard", gpus=GPUS)

    (taken,) = await acme.draining()
    assert (taken.deadline, taken.draining_at) == (t0 + timedelta(minutes=5), t0)
    (notice,) = [event for event in (await acme.details()).events if event.reason == "TogetherPreempted"]
    assert (notice.node_uid, notice.at) == (taken.uid, t0)
    assert not story.facts(What.CORDONED), "nobody outside knows yet"
    assert not story.facts(What.SIGTERM), "nobody outside knows yet"

    await story.passes(0)
    facts = [fact for fact in story.world.facts(node_uid=taken.uid) if fact.at == t0]
    kinds = [fact.what for fact in facts]
    assert kinds.index(What.CORDONED) < kinds.index(What.NOTICE) < kinds.index(What.SIGTERM)
    grace = {
        fact.pod.rsplit("-", 1)[0]: (fact.asked_s, fact.given_s)
        for fact in facts
        if fact.what is What.SIGTERM
    }
    assert grace == {"whole-window": (300, 297), "own-grace": (30, 30), "asks-too-much": (900, 297)}
    assert kinds.count(What.NOTICE) == 1


async def test_a_node_that_does_not_empty_leaves_at_five_minutes(given: Begin) -> None:
    """T+5:00. A pod whose kubelet does not end it is there at the deadline: stop, then the node goes."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, KubeletDoublesGrace(), grace_s=300)
    t0 = story.now
    beta = await story.orders("beta", "standard", gpus=GPUS)
    await story.until(t0 + timedelta(seconds=299))
    assert (await acme.node(node.uid)).phase is Phase.DRAINING
    await story.passes(1)
    gone = await acme.node(node.uid)
    assert after(t0, left_at(gone)) == 300
    assert gone.end_reason is EndReason.PREEMPTED
    assert story.billed_until(node) == whole(t0) + 300
    await story.passes(WIPE_S + JOINED_BY_S)
    assert (await beta.details()).phase == "READY"
    assert (await acme.reasons())["EbbtideGraceExpired"] == 1


async def test_a_node_whose_pods_have_gone_leaves_at_once(given: Begin) -> None:
    """Early exit: one pod needs 40 s, another 100 s of its 300; the node leaves and is billed until 100."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(40))
    acme.runs(node, Obeys(100))
    t0 = story.now
    await story.orders("beta", "standard", gpus=GPUS)
    await story.passes(99)
    assert (await acme.node(node.uid)).phase is Phase.DRAINING
    await story.passes(2)
    gone = await acme.node(node.uid)
    assert after(t0, left_at(gone)) == 100
    assert story.billed_until(node) == whole(t0) + 100


async def test_twelve_minutes_are_billed_as_twelve_minutes_at_half_price(given: Begin) -> None:
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    assert node.running_at is not None
    await story.until(node.running_at + timedelta(minutes=12))
    await acme.changes(target=0)
    await story.passes(MINUTE)
    (line,) = [line for line in await story.usage("acme") if line.node_name == node.name]
    assert (line.node_seconds, line.gpu_seconds) == (12 * MINUTE, 12 * MINUTE * GPUS)
    assert line.microdollars_per_gpu_hour == 1_000_000
    assert line.microdollars == GPUS * 1_000_000 * 12 // 60 == line.saved_microdollars


async def test_the_target_stays_and_is_met_again_without_anybody_asking(given: Begin) -> None:
    """Target kept after a reclaim; refill by itself once the standard customer has gone."""
    story = await given(hosts=3)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    beta = await story.orders("beta", "standard", gpus=2 * GPUS - GPUS)
    await story.passes(5 * MINUTE)
    details = await acme.details()
    assert (details.desired_preemptible_gpus, details.allocated_preemptible_gpus) == (16, 8)
    assert details.phase == "READY"
    await beta.is_deleted()
    await story.passes(WIPE_S + story.sim.settings.cooldown_s + BOOT_S + 3 * MINUTE)
    assert await acme.allocated() == 16
    assert (await acme.details()).fill is None


async def test_every_cluster_keeps_one_standard_node(given: Begin) -> None:
    story = await given(hosts=2)
    with pytest.raises(BadInput, match="at least 8"):
        await story.orders("acme", gpus=0, target=GPUS)
    acme = await story.orders("acme", gpus=GPUS)
    with pytest.raises(BadInput, match="at least 8"):
        await acme.changes(gpus=0)


async def test_lowering_one_class_and_raising_the_other_converts_nothing(given: Begin) -> None:
    """No conversion: the standard node is drained and goes, a preemptible one comes on a wiped host."""
    story = await given(hosts=2)
    acme = await story.orders("acme", gpus=2 * GPUS, target=0)
    await story.passes(JOINED_BY_S)
    before = {node.uid: node for node in await acme.running(STANDARD)}
    await acme.changes(gpus=GPUS, target=GPUS)
    await story.passes(5 * MINUTE)
    (standard,) = await acme.running(STANDARD)
    (preemptible,) = await acme.running()
    (gone,) = await acme.gone(STANDARD)
    assert standard.uid in before
    assert gone.uid in before
    assert preemptible.uid not in before
    assert gone.end_reason is EndReason.SCALED_DOWN
    assert preemptible.name.startswith("gpu-preemptible-dp-")
    assert gone.name.startswith("gpu-dp-")


async def test_a_target_above_capacity_is_accepted_and_says_why_it_is_not_met(given: Begin) -> None:
    """K10 too: pending reason, since when, last try, next try."""
    story = await given(hosts=3)
    acme = await story.orders("acme", target=64 * GPUS)
    await story.passes(JOINED_BY_S)
    details = await acme.details()
    assert (details.phase, details.allocated_preemptible_gpus, details.desired_preemptible_gpus) == (
        "READY",
        16,
        512,
    )
    assert details.fill is not None
    assert details.fill.pending_reason.startswith("62 of 64 nodes missing")
    assert details.fill.last_try is not None
    assert details.fill.next_try is not None
    assert details.fill.since < details.fill.last_try <= story.now < details.fill.next_try
    await story.passes(2 * MINUTE)
    later = (await acme.details()).fill
    assert later is not None
    assert later.since == details.fill.since
    assert later.last_try is not None
    assert details.fill.last_try < later.last_try


async def test_a_cluster_stays_ready_while_its_target_goes_up_and_down(given: Begin) -> None:
    story = await given(hosts=5)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    (standard,) = await acme.running(STANDARD)
    for hosts in (3, 1, 4, 0, 2):
        await acme.changes(target=hosts * GPUS)
        await story.passes(3 * MINUTE)
        assert await acme.allocated() == hosts * GPUS
    details = await acme.details()
    assert [change.phase for change in details.phases][-1] == "READY"
    assert [change.phase for change in details.phases].count("READY") == 1
    assert [node.uid for node in await acme.running(STANDARD)] == [standard.uid]


async def test_a_deleted_cluster_gives_everything_back(given: Begin) -> None:
    story = await given(hosts=4)
    acme = await story.orders("acme", gpus=2 * GPUS, target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, IgnoresSigterm())
    await acme.is_deleted()
    await acme.is_deleted()
    deleted_at = whole(story.now)
    assert (await acme.details()).phase == "DELETING"
    await story.passes(WIPE_S + MINUTE)
    assert await story.free_hosts() == 4
    (row,) = story.watch.ask("SELECT phase FROM clusters WHERE id = %s", acme.id)
    assert row["phase"] == "DELETED"
    ends = story.watch.ask("SELECT DISTINCT end_s FROM intervals")
    assert [row["end_s"] for row in ends] == [deleted_at]


async def test_headroom_is_lent_to_nobody_and_given_to_standard_at_once(given: Begin) -> None:
    story = await given(hosts=4, headroom=2)
    acme = await story.orders("acme", target=3 * GPUS)
    await story.passes(JOINED_BY_S)
    assert await acme.allocated() == GPUS
    pool = await story.pool()
    assert (pool.counts["headroom"], pool.counts["free"]) == (2, 0)
    await story.orders("beta", "standard", gpus=2 * GPUS)
    assert story.preempted() == 0


async def test_standard_is_decided_at_once_and_never_preempted(given: Begin) -> None:
    """Promised whole or refused whole, with what there is; standard nodes are no supply."""
    story = await given(hosts=4)
    acme = await story.orders("acme", gpus=GPUS, target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    with pytest.raises(Conflict, match="32 GPUs asked for, 8 free, 0 coming free, 16 reclaimable"):
        await story.orders("beta", "too-much", gpus=4 * GPUS)
    assert story.preempted() == 0
    beta = await story.orders("beta", "all-there-is", gpus=3 * GPUS)
    with pytest.raises(Conflict, match="0 free, 0 coming free, 0 reclaimable"):
        await story.orders("gamma", "late", gpus=GPUS)
    await story.passes(6 * MINUTE)
    assert (await beta.details()).phase == "READY"
    assert [node.phase for node in await acme.nodes(STANDARD)] == [Phase.RUNNING]


async def test_a_release_respects_budgets_until_its_margin(given: Begin) -> None:
    """The tenant's own act: evictions may be refused until a pod's grace must begin, then it gets SIGTERM."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(30), grace_s=60, name="guarded")
    story.world.budget(acme.id, "keep-all", "guarded")
    t0 = story.now
    await acme.changes(target=0)
    await story.passes(200)
    assert not story.facts(What.SIGTERM, node)
    assert "keep-all" in ((await acme.node(node.uid)).outcome or "")
    await story.passes(200)
    (sigterm,) = story.facts(What.SIGTERM, node)
    margin_s = story.sim.settings.release_margin_s
    assert (after(t0, sigterm.at), sigterm.given_s) == (300 - 60 - margin_s, 60)
    gone = await acme.node(node.uid)
    assert after(t0, left_at(gone)) == 300 - 60 - margin_s + 30
    assert gone.end_reason is EndReason.SCALED_DOWN
    assert story.preempted() == 0
