"""A drain, visit by visit: notice, SIGTERM, waiting, leaving; also when the cluster does not answer."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import DriverError
from ebbtide.playground.behaviours import IgnoresSigterm, KubeletDoublesGrace, Obeys, Volume
from ebbtide.playground.facts import What
from ebbtide.services.details import ClusterChange, NodeDetails
from ebbtide.store import clusters, receipts
from ebbtide.store.db import Tx
from ebbtide.store.seal import Sealer, new_key
from ebbtide.store.visits import Loop
from tests.workers.conftest import Rig

PREEMPTIBLE = ComputeClass.PREEMPTIBLE


async def _noticed(
    rig: Rig, *behaviours: Obeys | IgnoresSigterm | KubeletDoublesGrace
) -> tuple[str, NodeDetails]:
    """A cluster with pods on each of its preemptible nodes, of which an order has just taken one."""
    cluster = await rig.running(target=24)
    for node in (await rig.seen(cluster)).nodes:
        for number, behaviour in enumerate(behaviours):
            if node.compute_class is PREEMPTIBLE:
                rig.world.run_pods(cluster, node.name, 1, behaviour, 300, f"pod-{number}")
    await rig.sim.run_for(30)
    await rig.order()
    (taken,) = [node for node in (await rig.seen(cluster)).nodes if node.phase is Phase.DRAINING]
    return cluster, taken


async def test_a_drain_sentence_by_sentence(rig: Rig) -> None:
    cluster, taken = await _noticed(rig, Obeys(30), Obeys(61))
    assert taken.deadline == rig.sim.now + timedelta(seconds=300)
    assert await rig.one() == "waiting for 2 pods, 5:00 left"
    told = rig.world.facts(what=What.SIGTERM, node_uid=taken.uid)
    assert [fact.at for fact in told] == [rig.sim.now] * 2
    order = [fact.what for fact in rig.world.facts(node_uid=taken.uid)]
    assert order.index(What.CORDONED) <= order.index(What.NOTICE) < order.index(What.SIGTERM)
    rig.wait(5)
    assert await rig.one() == "waiting for 2 pods, 4:55 left"
    rig.wait(26)
    assert await rig.one() == "waiting for 1 pod, 4:29 left"
    rig.wait(31)
    assert await rig.one() == "leaving: its pods are gone"
    assert len(rig.world.facts(what=What.SIGTERM, node_uid=taken.uid)) == 2  # grace is one shot
    assert len(rig.world.facts(what=What.NOTICE, node_uid=taken.uid)) == 1
    gone = next(node for node in (await rig.seen(cluster)).deleted_nodes if node.uid == taken.uid)
    assert gone.phase is Phase.REMOVING
    assert (await rig.stored("intervals", "node_uid = :uid", uid=taken.uid))[0]["end_s"] == int(
        rig.sim.now.timestamp()
    )


async def test_a_pod_that_ignores_sigterm_gets_the_whole_window_less_the_margin(rig: Rig) -> None:
    _, taken = await _noticed(rig, IgnoresSigterm())
    start = rig.sim.now
    await rig.sim.run_for(320)
    (killed,) = rig.world.facts(what=What.KILLED, node_uid=taken.uid)
    assert (killed.at - start).total_seconds() == 297
    left = (await rig.stored("nodes", "uid = :uid", uid=taken.uid))[0]["left_at"]
    assert start + timedelta(seconds=297) <= left <= start + timedelta(seconds=300)  # type: ignore[operator]  # an instant


async def test_what_is_still_there_at_the_deadline_goes_with_its_machine(rig: Rig) -> None:
    """A8: the kubelet doubles the grace."""
    _, taken = await _noticed(rig, KubeletDoublesGrace())
    await rig.sim.run_for(310)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["left_at"], row["left_empty"]) == (taken.deadline, False)
    (event,) = await rig.stored("lifecycle_events", "reason = 'EbbtideGraceExpired'")
    assert "pod-0" in str(event["message"])
    order = [fact.what for fact in rig.world.facts(node_uid=taken.uid)]
    assert order.index(What.POWER_OFF) < order.index(What.NODE_REMOVED)  # the other way round: two writers


async def test_an_empty_node_leaves_at_the_first_visit(rig: Rig) -> None:
    _, taken = await _noticed(rig)
    assert await rig.one() == "leaving: its pods are gone"
    order = [fact.what for fact in rig.world.facts(node_uid=taken.uid)]
    assert order.index(What.NOTICE) > 0
    await rig.sim.run_for(30)
    order = [fact.what for fact in rig.world.facts(node_uid=taken.uid)]
    assert order.index(What.NODE_REMOVED) < order.index(What.POWER_OFF)  # C4: nobody sees it NotReady


async def test_unsure_is_not_empty(rig: Rig) -> None:
    """A11: reads that fail release nothing, and the deadline holds without them."""
    cluster, taken = await _noticed(rig, Obeys(10))
    await rig.visit()
    now = rig.sim.now
    rig.world.unreachable(cluster, now, now + timedelta(seconds=100), ["pods"])
    rig.wait(10)
    sentence = await rig.one()
    assert sentence.endswith("; trying again")
    await rig.sim.run_for(60)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert row["phase"] == "DRAINING"
    await rig.sim.run_for(60)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    left = row["left_at"]
    assert now + timedelta(seconds=100) <= left <= now + timedelta(seconds=170)  # type: ignore[operator]  # an instant


async def test_an_unreachable_cluster_is_left_at_the_deadline(rig: Rig) -> None:
    cluster, taken = await _noticed(rig, Obeys(10))
    now = rig.sim.now
    rig.world.unreachable(cluster, now, now + timedelta(days=1))
    await rig.sim.run_for(301)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["left_at"], row["left_empty"]) == (taken.deadline, False)


@pytest.mark.parametrize("verb", ["notify", "pods", "signal"])
async def test_a_call_that_fails_once_is_made_again_and_nothing_is_sent_twice(rig: Rig, verb: str) -> None:
    _, taken = await _noticed(rig, Obeys(20))
    rig.flaky.strike_verb(verb, DriverError("no answer"), after=True)
    told = "waiting for 1 pod, 5:00 left; no answer"
    assert await rig.one() == (told if verb == "notify" else "no answer; trying again")
    await rig.sim.run_for(15)
    assert len(rig.world.facts(what=What.NOTICE, node_uid=taken.uid)) == 1
    assert len(rig.world.facts(what=What.SIGTERM, node_uid=taken.uid)) == 1


@pytest.mark.parametrize("refused", [True, False])
async def test_a_notice_that_fails_keeps_no_pod_from_its_sigterm(rig: Rig, refused: bool) -> None:
    """A webhook that is broken, say, or an API server that is too busy for events. It is given as soon as the
    cluster lets it.
    """
    _, taken = await _noticed(rig, Obeys(30))
    refusal = DriverError("a webhook said no", refused=refused)
    rig.flaky.strike_verb("notify", refusal, refusal)
    assert await rig.one() == "waiting for 1 pod, 5:00 left; a webhook said no"
    (told,) = rig.world.facts(what=What.SIGTERM, node_uid=taken.uid)
    assert told.at == rig.sim.now
    rig.wait(5)
    assert "a webhook said no" in await rig.one()
    rig.wait(5)
    assert await rig.one() == "waiting for 1 pod, 4:50 left"
    assert len(rig.world.facts(what=What.NOTICE, node_uid=taken.uid)) == 1


async def _left_by_force(rig: Rig, taken: NodeDetails) -> None:
    """Not empty at its deadline, and its host comes back all the same."""
    assert taken.deadline is not None
    await rig.sim.run_until(taken.deadline + timedelta(seconds=1))
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["left_at"], row["left_empty"]) == (taken.deadline, False)
    await rig.sim.run_for(rig.sim.settings.detach_limit_s + 60)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert row["phase"] == "REMOVED"


@pytest.mark.parametrize("verb", ["notify", "pods", "signal"])
async def test_a_fault_of_ours_keeps_no_node_past_its_deadline(rig: Rig, verb: str) -> None:
    _, taken = await _noticed(rig, Obeys(10))
    rig.flaky.strike_verb(verb, *[ZeroDivisionError()] * 200)
    assert await rig.one() == "this visit failed by a fault of ours, see the log; trying again"
    await _left_by_force(rig, taken)


async def test_what_cannot_be_written_down_keeps_no_node_past_its_deadline(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt is written in the transaction of the move: an error of the database's there ends both."""
    _, taken = await _noticed(rig, Obeys(400))
    await rig.visit()

    async def refused(tx: Tx, *_: object, **__: object) -> set[str]:
        await tx.conn.execute(sa.text("SELECT 1 / 0"))
        raise AssertionError

    monkeypatch.setattr(receipts, "saw", refused)
    rig.wait(5)
    assert await rig.one() == "this visit failed by a fault of ours, see the log; trying again"
    await _left_by_force(rig, taken)


async def test_a_cluster_whose_kubeconfig_no_key_opens_is_left_at_the_deadline(rig: Rig) -> None:
    cluster, taken = await _noticed(rig, Obeys(10))
    async with rig.sim.system.db.transaction() as tx:
        await clusters.set_fields(tx, cluster, driver_kubeconfig=Sealer([new_key()]).seal("lost"))
    assert "EBBTIDE_SECRET_KEYS" in await rig.one()
    rig.wait(300)
    assert await rig.one() == "leaving: its time is over"
    for _ in range(40):
        await rig.visit()
        rig.wait(5)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["phase"], row["left_empty"]) == ("REMOVED", False)


async def test_volume_attachments_are_waited_for(rig: Rig) -> None:
    """C8, C9: bounded by the deadline."""
    cluster = await rig.running(target=24)
    for node in (await rig.seen(cluster)).nodes:
        if node.compute_class is PREEMPTIBLE:
            rig.world.run_pods(cluster, node.name, 1, Obeys(5), 30, "db", volumes=[Volume(lingers_s=40)])
    await rig.sim.run_for(30)
    await rig.order()
    start = rig.sim.now
    await rig.visit()
    rig.wait(6)
    assert await rig.one() == "waiting for 1 volume attachment, 4:54 left"
    await rig.sim.run_for(60)
    (row,) = await rig.stored("nodes", "end_reason = 'preempted'")
    assert (row["left_at"] - start).total_seconds() <= 51  # type: ignore[operator]  # an instant


async def test_a_release_asks_politely_and_a_budget_may_refuse(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    rig.world.run_pods(cluster, node.name, 1, Obeys(5), 60, "kept")
    rig.world.budget(cluster, "keep-it", "kept")
    await rig.sim.run_for(30)
    change = ClusterChange(num_preemptible_gpus=0)
    await rig.sim.system.services.clusters.update(await rig.caller(), cluster, change)
    sentence = await rig.one()
    assert sentence.startswith("waiting for 1 pod, 5:00 left; ")
    assert "keep-it" in sentence
    assert rig.world.facts(what=What.SIGTERM) == []
    await rig.sim.run_for(300)
    (told,) = rig.world.facts(what=What.SIGTERM)
    (row,) = await rig.stored("nodes", "end_reason = 'scaled_down'")
    noticed = row["draining_at"]
    # Its grace of 60 s and the margin of 10 s before the deadline.
    assert (told.at - noticed).total_seconds() == pytest.approx(230, abs=5)  # type: ignore[operator]  # an instant
    assert row["left_empty"] is True


async def test_hints_from_the_world_end_a_drain_early(rig: Rig) -> None:
    """F4 without the failure: a pod's end is looked at when it happens, not at the next interval."""
    _, taken = await _noticed(rig, Obeys(91))
    start = rig.sim.now
    await rig.sim.run_for(100)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["left_at"] - start).total_seconds() <= 92  # type: ignore[operator]  # an instant


async def test_draining_nodes_are_visited_before_others(rig: Rig) -> None:
    _, taken = await _noticed(rig, Obeys(30))
    (visit,) = await rig.stored("visits", "loop = 'lifecycle' AND urgent")
    assert visit["key"] == taken.uid
    await rig.sim.run_for(60)
    assert await rig.stored("visits", "loop = 'lifecycle' AND urgent") == []
    assert await rig.visit(Loop.LIFECYCLE) == []
