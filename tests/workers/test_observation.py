"""Looks at clusters: what seals the bill, who is busy, who is lost, and who does not belong there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.playground.behaviours import FinishesAfter, Obeys
from ebbtide.providers.base import Transient
from ebbtide.services.details import Role
from ebbtide.store import nodes, visits
from ebbtide.store.visits import Loop
from ebbtide.workers.observation import Observation
from tests.builders import POOL, a_fleet, a_pool
from tests.workers.conftest import Make, Rig

PREEMPTIBLE = ComputeClass.PREEMPTIBLE


async def _look(rig: Rig) -> list[str]:
    """Whatever looks are due after the interval between them."""
    rig.wait(rig.sim.settings.observe_every_s)
    return await rig.visit(Loop.OBSERVATION)


async def _sealed_s(rig: Rig, slug: str = "acme") -> int:
    usage = await rig.sim.system.services.usage.read(
        await rig.caller(slug), rig.sim.now - timedelta(days=1), rig.sim.now + timedelta(days=1)
    )
    return sum(line.node_seconds for line in usage.lines)


async def test_a_look_seals_the_bill_up_to_now(rig: Rig) -> None:
    await rig.running()
    await _look(rig)
    before = await _sealed_s(rig)
    assert await _look(rig) == ["1 nodes seen"]
    assert await _sealed_s(rig) == before + 20


async def test_a_cluster_that_does_not_answer_proves_nothing(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    await _look(rig)
    before = await _sealed_s(rig)
    now = rig.sim.now
    rig.world.unreachable(cluster, now, now + timedelta(seconds=200))
    for _ in range(5):
        (sentence,) = await _look(rig)
        assert sentence.endswith("; trying again")
    assert await _sealed_s(rig) == before
    assert {node.phase for node in (await rig.seen(cluster)).nodes} == {Phase.RUNNING}
    rig.wait(100)
    await _look(rig)
    assert await _sealed_s(rig) == before + 2 * (5 * 20 + 100 + 20)  # it was there all the time


async def test_who_is_busy_is_written_when_it_changes(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    rig.world.run_pods(cluster, node.name, 2, FinishesAfter(30), 30, "job")
    await _look(rig)
    assert (await rig.stored("nodes", "uid = :uid", uid=node.uid))[0]["workload_pods"] == 2
    rig.wait(20)
    await _look(rig)
    assert (await rig.stored("nodes", "uid = :uid", uid=node.uid))[0]["workload_pods"] == 0


async def test_a_host_that_its_provider_calls_gone_is_lost_at_once_and_billed_to_the_last_look(
    rig: Rig,
) -> None:
    """C1."""
    cluster = await rig.running(target=8)
    await _look(rig)
    last_good, node = rig.sim.now, await rig.node(cluster, PREEMPTIBLE)
    rig.wait(7)
    rig.world.vanish(node.host_name or "")
    await _look(rig)
    gone = await rig.node(cluster, PREEMPTIBLE)
    assert (gone.phase, gone.end_reason) == (Phase.REMOVING, EndReason.LOST)
    (interval,) = await rig.stored("intervals", "node_uid = :uid", uid=node.uid)
    assert interval["end_s"] == int(last_good.timestamp())
    (event,) = await rig.stored("lifecycle_events", "reason = 'EbbtideNodeLost'")
    assert "vanished" in str(event["message"])
    await rig.sim.run_for(60)
    assert (await rig.seen(cluster)).allocated_preemptible_gpus == 8  # and replaced


async def test_a_lost_standard_node_makes_the_cluster_degraded_until_it_is_replaced(rig: Rig) -> None:
    cluster = await rig.running()
    rig.world.vanish((await rig.node(cluster)).host_name or "")
    await _look(rig)
    await rig.visit(Loop.CLUSTER)
    assert (await rig.seen(cluster)).phase == "DEGRADED"
    await rig.sim.run_for(60)
    assert (await rig.seen(cluster)).phase == "READY"


async def test_a_node_that_was_noticed_keeps_its_reason_when_its_host_vanishes(rig: Rig) -> None:
    cluster = await rig.running(target=24)
    for node in (await rig.seen(cluster)).nodes:
        rig.world.run_pods(cluster, node.name, 1, Obeys(200), 300, "work")
    await _look(rig)
    await rig.order()
    await rig.visit()
    (taken,) = [node for node in (await rig.seen(cluster)).nodes if node.phase is Phase.DRAINING]
    rig.world.vanish(taken.host_name or "")
    await _look(rig)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=taken.uid)
    assert (row["phase"], row["end_reason"]) == ("REMOVING", "preempted")


async def test_an_unlucky_moment_after_a_long_silence_is_no_loss(make: Make) -> None:
    """What could not be seen for an hour and is not well at the first look may be well at the next."""
    rig = await make()
    cluster = await rig.running()
    await _look(rig)
    node = await rig.node(cluster)
    rig.wait(3_600)
    not_ready = [view for view in rig.world.nodes(cluster) if view.uid != node.uid]

    class OnceNotReady:
        left = 1

        async def observe(self, *_: object) -> object:
            self.left -= 1
            return not_ready if self.left >= 0 else await plain.observe(*_)

        def __getattr__(self, name: str) -> object:
            return getattr(plain, name)

    worker = rig.sim.system.runner._workers[Loop.OBSERVATION]
    plain = worker._driver  # type: ignore[attr-defined]  # reached into, to show it another cluster
    worker._driver = OnceNotReady()  # type: ignore[attr-defined]  # the same
    await rig.visit(Loop.OBSERVATION)
    assert await rig.phase(cluster) is Phase.RUNNING
    await _look(rig)
    (row,) = await rig.stored("nodes")
    assert (row["phase"], row["healthy_until"]) == ("RUNNING", None)


async def test_a_node_object_that_the_ledger_calls_removed_goes(rig: Rig) -> None:
    """C7."""
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    async with rig.sim.system.db.transaction() as tx:
        for before, after in ((Phase.RUNNING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
            await nodes.move(tx, [nodes.Move(node.uid, before, after, end_reason=EndReason.LOST)])
    assert node.uid in {view.uid for view in rig.world.nodes(cluster)}
    await _look(rig)
    assert node.uid not in {view.uid for view in rig.world.nodes(cluster)}


@pytest.mark.parametrize(("lease_s", "removed"), [(60, [2, 1]), (25, [2, 1]), (11, [1, 1, 1])])
async def test_node_objects_that_go_slowly_leave_a_look_its_end(
    make: Make, lease_s: int, removed: list[int]
) -> None:
    """It ends within its lease, and the next one goes on."""
    rig = await make(lease_s=lease_s)
    cluster = await rig.running(target=24)
    await rig.sim.settle()
    gone = [node.uid for node in (await rig.seen(cluster)).nodes if node.compute_class is PREEMPTIBLE]
    async with rig.sim.system.db.transaction() as tx:
        for before, after in ((Phase.RUNNING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
            moves = [nodes.Move(uid, before, after, end_reason=EndReason.LOST) for uid in gone]
            await nodes.move(tx, moves)

    class Slow:
        async def remove(self, *named: object, **how: object) -> object:
            rig.wait(11)
            return await plain.remove(*named, **how)

        def __getattr__(self, name: str) -> object:
            return getattr(plain, name)

    worker = rig.sim.system.runner._workers[Loop.OBSERVATION]
    plain = worker._driver  # type: ignore[attr-defined]  # reached into, to make it slow
    worker._driver = Slow()  # type: ignore[attr-defined]  # the same
    left = 3
    for now in removed:
        await _look(rig)
        left -= now
        assert len({view.uid for view in rig.world.nodes(cluster)} & set(gone)) == left
    assert left == 0


async def test_one_deleted_cluster_does_not_hold_up_the_looks_at_others(rig: Rig) -> None:
    """Quiet clusters are written together; a visit that is gone meanwhile does not undo the others."""
    first, second = await rig.running("one"), await rig.running("two")
    rig.wait(20)
    runner = rig.sim.system.runner
    claimed = await runner._claim(Loop.OBSERVATION, 10)
    assert {visit.key for visit in claimed} == {first, second}
    async with rig.sim.system.db.transaction() as tx:
        await visits.drop(tx, Loop.OBSERVATION, [first])
    await runner._workers[Loop.OBSERVATION].visit_many(claimed)
    (row,) = await rig.stored("visits", "loop = 'observation'")
    assert (row["key"], row["lease_until"], row["outcome"]) == (second, None, "1 nodes seen")
    (seen,) = await rig.stored("clusters", "id = :id", id=second)
    assert seen["observed_until"] == rig.sim.now


async def test_a_machine_that_nobody_asked_for_is_stopped_and_given_back(rig: Rig) -> None:
    """One whose create took effect after its node was gone; and the other way round, one that is missing."""
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    async with rig.sim.system.db.transaction() as tx:
        for before, after in ((Phase.RUNNING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
            await nodes.move(tx, [nodes.Move(node.uid, before, after, end_reason=EndReason.LOST)])
    rig.wait(rig.sim.settings.leaks_every_s)
    assert sorted(await rig.visit(Loop.LEAKS)) == [
        "1 control planes; 0 nobody's",
        "2 instances; 1 nobody's, 0 missing",
    ]
    for _ in range(3):
        rig.wait(rig.sim.settings.leaks_every_s)
        await rig.visit(Loop.LEAKS)
    assert rig.world.instance(node.uid) is None


async def test_a_machine_of_another_pools_node_is_left_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that does not mind which pool it is asked about lists all that it holds for each."""
    rig = await make(a_fleet(a_pool(2), a_pool(1, name="another", gpu_type="H200_SXM")))
    cluster = await rig.running(target=8)
    pool = rig.world.instances(POOL)
    monkeypatch.setattr(rig.world, "instances", lambda asked: pool)
    rig.wait(rig.sim.settings.leaks_every_s)
    assert sorted(await rig.visit(Loop.LEAKS)) == [
        "1 control planes; 0 nobody's",
        "2 instances; 0 nobody's, 0 missing",
        "2 instances; 0 nobody's, 0 missing",
    ]
    assert not {call.verb for call in rig.flaky.calls} & {"stop", "delete"}
    assert {node.phase for node in (await rig.seen(cluster)).nodes} == {Phase.RUNNING}


async def test_one_machine_that_cannot_be_stopped_does_not_keep_the_others(rig: Rig) -> None:
    cluster = await rig.running(target=16)
    stray = [node for node in (await rig.seen(cluster)).nodes if node.compute_class is PREEMPTIBLE]
    async with rig.sim.system.db.transaction() as tx:
        for before, after in ((Phase.RUNNING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
            moves = [nodes.Move(node.uid, before, after, end_reason=EndReason.LOST) for node in stray]
            await nodes.move(tx, moves)
    rig.flaky.strike_verb("stop", *[Transient("no answer")])
    rig.wait(rig.sim.settings.leaks_every_s)
    await rig.visit(Loop.LEAKS)
    assert [call.verb for call in rig.flaky.calls].count("stop") == 2


async def test_a_machine_that_its_provider_does_not_list_any_more_is_looked_for(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    await _look(rig)
    rig.world.vanish(node.host_name or "")
    rig.wait(1)
    await rig.sim.run_for(rig.sim.settings.leaks_every_s)
    lost = await rig.stored("nodes", "end_reason = 'lost'")
    assert [row["uid"] for row in lost] == [node.uid]


async def test_a_control_plane_without_a_cluster_goes(rig: Rig) -> None:
    rig.world.create_control_plane("00000000-0000-4000-8000-00000000dead", "stray")
    rig.wait(rig.sim.settings.leaks_every_s)
    assert "1 control planes; 1 nobody's" in await rig.visit(Loop.LEAKS)
    assert rig.world.control_planes() == []


async def test_a_cordon_by_the_tenant_is_seen(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    rig.world.cordon(cluster, node.name)
    await _look(rig)
    (row,) = await rig.stored("nodes", "uid = :uid", uid=node.uid)
    assert row["cordoned"] is True
    operator = await rig.sim.caller("operations", role=Role.OPERATOR)
    assert (await rig.sim.system.services.fleet.pools(operator))[0].counts["preemptible"] == 1


async def test_a_fault_at_one_cluster_leaves_the_others_their_looks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = await rig.running("bad")
    await rig.running("good")
    runner = rig.sim.system.runner
    worker = runner._workers[Loop.OBSERVATION]
    assert isinstance(worker, Observation)
    look = worker._look

    async def faulty(visit: visits.Visit, *rest: Any) -> Any:
        if visit.key == bad:
            raise ZeroDivisionError
        return await look(visit, *rest)

    monkeypatch.setattr(worker, "_look", faulty)
    rig.wait(rig.sim.settings.observe_every_s)
    claimed = await runner._claim(Loop.OBSERVATION, 64)
    assert len(claimed) == 2
    await runner._carry_out(worker, claimed)
    seen = {row["name"]: row["observed_until"] for row in await rig.stored("clusters")}
    assert seen["good"] == rig.sim.now
    assert seen["bad"] != rig.sim.now


async def test_a_provider_that_takes_its_time_is_asked_for_all_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs may take half a minute over each machine, and one lease has to do for a whole cluster."""
    cluster = await rig.running(target=8)
    worker = rig.sim.system.runner._workers[Loop.OBSERVATION]
    assert isinstance(worker, Observation)
    everybody = asyncio.Barrier(2)

    class Slow:
        async def status(self, node_uid: str) -> None:
            async with asyncio.timeout(10):
                await everybody.wait()

    monkeypatch.setattr(worker, "_provider", Slow())
    for host in [node.host_name or "" for node in (await rig.seen(cluster)).nodes]:
        rig.world.vanish(host)
    await _look(rig)
    assert {node.end_reason for node in (await rig.seen(cluster)).deleted_nodes} == {EndReason.LOST}
