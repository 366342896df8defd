"""Theme 7 and promise 3: the process dies and comes back; the drain goes on where it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace
from ebbtide.playground.facts import What
from ebbtide.services.details import NodeDetails
from tests.scenarios.conftest import Begin
from tests.scenarios.killing import Killed
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, Cluster, Story, after, left_at, whole

Noticed = tuple[Story, Cluster, NodeDetails, datetime]
Setting = Callable[[], Awaitable[Noticed]]


@pytest.fixture
def noticed(given: Begin) -> Setting:
    """A node with a pod that ignores SIGTERM, taken at T+0 by an order; no worker has acted on it yet."""

    async def begin() -> Noticed:
        story = await given(hosts=2)
        acme = await story.orders("acme", target=GPUS)
        await story.passes(JOINED_BY_S)
        (node,) = await acme.running()
        acme.runs(node, IgnoresSigterm(), grace_s=300)
        await story.passes(MINUTE)
        t0 = story.now
        await story.orders("beta", "standard", gpus=GPUS)
        return story, acme, node, t0

    return begin


async def test_g2_a_start_says_that_the_last_process_was_killed_and_amid_which_drain(
    noticed: Setting,
) -> None:
    story, _, node, t0 = await noticed()
    await story.passes(30)
    await story.dies()
    story.nobody_works(20)
    findings = await story.starts()
    (sentence,) = findings.sentences
    assert "was killed" in sentence
    assert f"{node.name} (deadline {t0 + timedelta(minutes=5):%H:%M:%S})" in sentence


async def test_g3_five_restarts_are_no_preemptions(noticed: Setting) -> None:
    story, acme, node, t0 = await noticed()
    for _ in range(5):
        await story.passes(20)
        await story.dies()
        await story.starts()
    await story.passes(5 * MINUTE)
    assert story.preempted() == 1
    assert len(story.facts(What.NOTICE, node)) == 1
    assert len(story.facts(What.SIGTERM, node)) == 1
    gone = await acme.node(node.uid)
    assert (gone.deadline, after(t0, left_at(gone))) == (t0 + timedelta(minutes=5), 297)
    ended = story.watch.ask("SELECT ended_how, count(*) AS n FROM worker_runs GROUP BY 1 ORDER BY 1")
    assert [(row["ended_how"], row["n"]) for row in ended] == [("killed", 5), (None, 1)]


async def test_down_for_longer_than_the_window_the_pods_get_a_late_notice_once(noticed: Setting) -> None:
    """Promise 3: 60 s once, an event, a credit line; the deadline stays, nothing is billed past it."""
    story, acme, node, t0 = await noticed()
    deadline = t0 + timedelta(minutes=5)
    await story.dies()
    story.nobody_works(400)
    await story.starts()
    t1 = story.now
    await story.passes(30)
    await story.dies()
    await story.starts()
    await story.passes(2 * MINUTE)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (sigterm.at, sigterm.given_s) == (t1, 57)
    gone = await acme.node(node.uid)
    assert (gone.deadline, gone.end_reason) == (deadline, EndReason.PREEMPTED)
    assert after(t1, left_at(gone)) == 57
    assert story.billed_until(node) == whole(deadline)
    reasons = await acme.reasons()
    assert (reasons["EbbtideLateNotice"], reasons["TogetherPreempted"]) == (1, 1)
    (credit,) = story.watch.ask("SELECT gpu_seconds, microdollars, node_uid FROM ledger_entries")
    assert credit == {
        "gpu_seconds": 300 * GPUS,
        "microdollars": -300 * GPUS * 1_000_000 // 3600,
        "node_uid": node.uid,
    }


async def test_a_late_notice_ends_even_if_the_pods_do_not(given: Begin) -> None:
    """The extra minute is the only one: a pod that its kubelet never ends does not get a second."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, KubeletDoublesGrace(), grace_s=300)
    await story.orders("beta", "standard", gpus=GPUS)
    await story.dies()
    story.nobody_works(280)
    await story.starts()
    t1 = story.now
    for _ in range(3):
        await story.passes(25)
        await story.dies()
        await story.starts()
    assert after(t1, left_at(await acme.node(node.uid))) == 60


async def test_down_for_a_part_of_the_window_the_original_deadline_holds(noticed: Setting) -> None:
    story, acme, node, t0 = await noticed()
    await story.dies()
    story.nobody_works(120)
    await story.starts()
    await story.passes(4 * MINUTE)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (after(t0, sigterm.at), sigterm.given_s) == (120, 177)
    assert after(t0, left_at(await acme.node(node.uid))) == 297
    assert (await acme.reasons())["EbbtideLateNotice"] == 0
    assert not story.watch.ask("SELECT 1 FROM ledger_entries")


async def test_pods_that_had_their_notice_get_no_second_one(noticed: Setting) -> None:
    """Down past the deadline, but SIGTERM was sent in time: the node leaves at once, no credit."""
    story, acme, node, t0 = await noticed()
    await story.passes(10)
    await story.dies()
    story.nobody_works(400)
    await story.starts()
    await story.passes(1)
    gone = await acme.node(node.uid)
    assert gone.phase is Phase.REMOVING
    assert after(t0, left_at(gone)) == 410
    assert story.billed_until(node) == whole(t0) + 300
    assert (await acme.reasons())["EbbtideLateNotice"] == 0


async def test_down_while_nothing_drains_bills_what_was_there(given: Begin) -> None:
    """No gap in the bill: ten minutes without a process, the node ran on and is billed for them."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    assert node.running_at is not None
    await story.dies()
    story.nobody_works(10 * MINUTE)
    await story.starts()
    await story.passes(MINUTE)
    assert [one.uid for one in await acme.running()] == [node.uid]
    await acme.changes(target=0)
    end = story.now
    await story.passes(5)
    assert story.billed_s(node) == whole(end) - whole(node.running_at)


async def test_killed_after_the_cordon_and_before_the_first_sigterm(given: Begin) -> None:
    """The worker had begun, but no pod was told; then nobody was there for longer than the window."""
    story = await given(hosts=2)
    acme = await story.orders("acme", target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, IgnoresSigterm(), grace_s=300)
    await story.orders("beta", "standard", gpus=GPUS)
    story.flaky.strike_verb("signal", Killed())
    with pytest.raises(Killed):
        await story.passes(0)
    await story.dies()
    story.nobody_works(400)
    await story.starts()
    t1 = story.now
    await story.passes(2 * MINUTE)
    (sigterm,) = story.facts(What.SIGTERM, node)
    assert (sigterm.at, sigterm.given_s) == (t1, 57)
    assert (await acme.reasons())["EbbtideLateNotice"] == 1
    assert len(story.facts(What.NOTICE, node)) == 1


async def test_g4_killed_right_after_the_provider_granted_a_host(given: Begin) -> None:
    """G4: the restart finds the same instance by the node's uid; exactly one host is lent."""
    story = await given(hosts=4)
    acme = await story.orders("acme")
    await story.passes(JOINED_BY_S)
    await acme.changes(target=GPUS)
    for _ in range(3):
        story.flaky.strike_verb("create", Killed(), after=True)
        with pytest.raises(Killed):
            await story.passes(MINUTE)
        await story.dies()
        await story.starts()
    await story.passes(MINUTE)
    (node,) = await acme.running()
    assert len(story.facts(What.CREATED, node)) == 1
    assert (story.lent(), len(story.facts(What.CREATED))) == (1, 2)
