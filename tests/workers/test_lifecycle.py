"""A node's visits, one at a time: what each does, and the sentence that it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import ClusterRef, Driver, DriverError, NodeSeen
from ebbtide.playground.behaviours import (
    Behaviour,
    BootFails,
    Boots,
    CreateReplyLost,
    DeleteForgets,
    DeleteReplyLost,
    GpusMissing,
    IgnoresSigterm,
    NeverReady,
    OutOfStock,
    StopTakes,
    StopUnconfirmed,
)
from ebbtide.playground.facts import What
from ebbtide.providers.base import Transient
from ebbtide.services.details import ClusterChange, Role
from ebbtide.store import visits
from ebbtide.store.visits import Loop
from ebbtide.workers.lifecycle import Lifecycle
from tests.builders import a_fleet, a_pool, rows
from tests.workers.conftest import Make, Rig

CONTROL_PLANE_S, BOOT_S = 5, 10
PREEMPTIBLE = ComputeClass.PREEMPTIBLE


class Renamed:
    """A driver that sees nodes in another way."""

    def __init__(self, plain: Driver, observe: Callable[[ClusterRef], Awaitable[list[NodeSeen]]]) -> None:
        self._plain = plain
        self.observe = observe

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._plain, verb)


async def _phase_of(rig: Rig, uid: str) -> object:
    return (await _node(rig, uid))["phase"]


async def _to_booting(rig: Rig, cluster_id: str) -> None:
    """The control plane is up and the machine was asked for."""
    await rig.visit(Loop.CLUSTER)
    rig.wait(CONTROL_PLANE_S)
    await rig.visit(Loop.CLUSTER)
    await rig.visit()
    assert await rig.phase(cluster_id) is Phase.BOOTING


async def test_the_way_in_sentence_by_sentence(rig: Rig) -> None:
    cluster = await rig.cluster()
    assert await rig.one() == "waiting for the cluster's control plane"
    assert await rig.one(Loop.CLUSTER) == "the control plane is starting"
    rig.wait(CONTROL_PLANE_S)
    expected = "the control plane is ready; the cluster is WAITING_FOR_DATA_PLANE_NODES"
    assert await rig.one(Loop.CLUSTER) == expected
    sentence = await rig.one()
    node = await rig.node(cluster)
    assert sentence == f"instance {node.instance_id} is starting" == node.outcome
    assert await rig.one() == "the machine is booting"
    rig.wait(BOOT_S)
    assert await rig.one() == "the machine is up; joining the cluster"
    assert await rig.one() == "the kubelet is not ready"
    rig.wait(2)
    assert await rig.one() == "only 0 of its 8 GPUs are allocatable"
    rig.wait(4)
    assert await rig.one() == "running after 21 s"
    assert await rig.visit() == []  # settled: nobody visits a running node
    assert await rig.one(Loop.CLUSTER) == "the cluster is READY"
    node = await rig.node(cluster)
    ways = ["PENDING", "SCHEDULING", "BOOTING", "BOOTSTRAPPING", "RUNNING"]
    assert [change.phase for change in node.history] == ways
    assert [event.reason for event in (await rig.seen(cluster)).events] == ["TogetherScaledUp"]


async def test_a_node_is_neither_allocated_nor_billed_before_it_runs(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    allocated = (await rig.seen(cluster)).allocated_preemptible_gpus
    joined = [event.at for event in (await rig.seen(cluster)).events]
    starts = sorted(int(str(row["start_s"])) for row in await rig.stored("intervals"))
    assert allocated == 8
    assert starts == sorted(int(at.timestamp()) for at in joined)


async def test_a_create_whose_reply_is_lost_finds_the_same_machine_again(rig: Rig) -> None:
    """G4: exactly one host is lent."""
    rig.world.set_behaviour(CreateReplyLost(times=3))
    cluster = await rig.running()
    assert await rig.phase(cluster) is Phase.RUNNING
    assert len(rig.world.facts(what=What.CREATED)) == 1
    assert [call.verb for call in rig.flaky.calls].count("create") == 4


async def test_a_failing_call_is_tried_again_with_growing_waits(rig: Rig) -> None:
    cluster = await rig.cluster()
    rig.flaky.strike_verb("create", *[Transient("no answer")] * 4)
    await rig.visit(Loop.CLUSTER)
    rig.wait(CONTROL_PLANE_S)
    await rig.visit(Loop.CLUSTER)
    waits = []
    for _ in range(4):
        assert await rig.one() == "no answer; trying again"
        (row,) = await rig.stored("visits", "loop = 'lifecycle'")
        due = row["due_at"]
        assert due is not None
        waits.append((due - rig.sim.now).total_seconds())  # type: ignore[operator]  # an instant
        rig.wait(waits[-1])
    assert waits == [2, 4, 8, 16]
    await rig.visit()
    assert await rig.phase(cluster) is Phase.BOOTING


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (NeverReady(boot_s=5, registers=False), "the machine has not registered with the cluster after 60 s"),
        (NeverReady(boot_s=5), "the kubelet is not ready after 60 s"),
        (GpusMissing(gpus=7, boot_s=5, join_s=1), "only 7 of its 8 GPUs are allocatable after 60 s"),
        (BootFails(after_s=5, why="no disk"), "the instance failed: no disk"),
        (OutOfStock(), "the machine on h100-00000 cannot be had"),
        (Boots((500, 500)), "the machine is booting after 60 s"),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else "",
)
async def test_a_node_that_does_not_come_up_is_given_up(make: Make, behaviour: Behaviour, why: str) -> None:
    rig = await make(join_limit_s=60)
    cluster = await rig.cluster()
    rig.world.set_behaviour(behaviour, host="h100-00000")
    await rig.sim.run_for(80)
    async with rig.sim.system.db.read() as tx:
        (failed,) = await rows(tx, "nodes", "end_reason = 'failed'")
        (event,) = await rows(tx, "lifecycle_events", "reason = 'EbbtideNodeFailed'")
        (host,) = await rows(tx, "hosts", "name = 'h100-00000'")
    if not isinstance(behaviour, OutOfStock):
        assert failed["why"] == why
        # A tenant reads no words of the operator's provider.
        told = "its machine did not come up" if isinstance(behaviour, BootFails) else why
        assert str(event["message"]).endswith(told)
    # Whether it is the host's fault or the cluster's is not known of one that came up and could not join.
    joined = isinstance(behaviour, NeverReady | GpusMissing)
    assert host["boot_failures"] == (0 if joined else 1)
    # A standard node that failed is replaced, on another host, and nothing of it was billed.
    seen = await rig.seen(cluster)
    assert [node.phase for node in seen.nodes] in ([Phase.RUNNING], [Phase.BOOTING], [Phase.BOOTSTRAPPING])
    assert {row["node_uid"] for row in await rig.stored("intervals")} <= {node.uid for node in seen.nodes}


async def test_a_host_that_fails_three_times_is_quarantined_and_filling_pauses_longer_each_time(
    make: Make,
) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=20)
    cluster = await rig.running()
    rig.world.set_behaviour(NeverReady(boot_s=5), host="h100-00001")
    caller = await rig.caller()
    await rig.sim.system.services.clusters.update(caller, cluster, ClusterChange(num_preemptible_gpus=8))
    pauses: list[int] = []
    for failures in range(1, 4):
        for _ in range(400):
            (host,) = await rig.stored("hosts", "name = 'h100-00001'")
            if host["boot_failures"] == failures:
                break
            await rig.sim.run_for(2)
        (row,) = await rig.stored("clusters")
        until = row["fill_backoff_until"]
        assert until is not None
        left_s = (until - rig.sim.now).total_seconds()  # type: ignore[operator]  # an instant
        pauses.append(round(left_s, -1))
    assert pauses == [60, 120, 240]
    (host,) = await rig.stored("hosts", "name = 'h100-00001'")
    assert host["state"] == "quarantined"
    assert str(host["state_reason"]).startswith("3 boots in a row failed")
    await rig.sim.run_for(300)
    assert len(await rig.stored("nodes", "end_reason = 'failed'")) == 3
    operator = await rig.sim.caller("operations", role=Role.OPERATOR)
    await rig.sim.system.services.fleet.set_cordon(operator, "h100-00001", cordoned=False)
    rig.world.set_behaviour(Boots((5, 5), 2, 1), host="h100-00001")
    await rig.sim.run_for(60)
    assert (await rig.seen(cluster)).allocated_preemptible_gpus == 8


async def test_filling_pauses_longer_for_a_clusters_failures_whichever_host_they_were_on(make: Make) -> None:
    rig = await make(a_fleet(a_pool(5)), join_limit_s=20)
    cluster = await rig.running()
    rig.world.set_behaviour(NeverReady(boot_s=5), pool="h100")
    caller = await rig.caller()
    await rig.sim.system.services.clusters.update(caller, cluster, ClusterChange(num_preemptible_gpus=8))
    pauses: list[int] = []
    for failures in range(1, 5):
        for _ in range(400):
            if len(await rig.stored("nodes", "end_reason = 'failed'")) == failures:
                break
            await rig.sim.run_for(2)
        (row,) = await rig.stored("clusters")
        until = row["fill_backoff_until"]
        assert until is not None
        pauses.append(round((until - rig.sim.now).total_seconds(), -1))  # type: ignore[operator]  # an instant
    # The fourth was on another host: the first is quarantined after three.
    assert pauses == [60, 120, 240, 480]
    assert len(await rig.stored("hosts", "boot_failures > 0")) == 2


async def test_a_cluster_that_nothing_can_join_takes_no_host_out_of_the_fleet(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=20)
    rig.world.set_behaviour(NeverReady(boot_s=5), pool="h100")
    await rig.cluster()
    await rig.sim.run_for(300)
    assert len(await rig.stored("nodes", "end_reason = 'failed'")) > 6
    assert {row["state"] for row in await rig.stored("hosts")} == {"available"}


async def test_a_cluster_that_does_not_answer_keeps_no_host_past_the_time_to_join(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=60)
    cluster = await rig.running()
    start = rig.sim.now
    rig.world.unreachable(cluster, start, start + timedelta(days=1))
    acme = await rig.caller()
    await rig.sim.system.services.clusters.update(acme, cluster, ClusterChange(num_preemptible_gpus=8))
    await rig.sim.run_for(50)
    assert await rig.phase(cluster, PREEMPTIBLE) is Phase.BOOTSTRAPPING
    await rig.sim.run_for(400)
    async with rig.sim.system.db.read() as tx:
        ended = await rows(tx, "nodes", "compute_class = 'preemptible' AND end_reason = 'failed'")
        assert ended
        assert {host["boot_failures"] for host in await rows(tx, "hosts")} == {0}


async def test_a_node_that_cannot_be_admitted_is_sent_back_and_its_host_is_not_to_blame(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=60)
    cluster = await rig.running()
    rig.flaky.strike_verb("admit", *[DriverError("a webhook said no")] * 200)
    acme = await rig.caller()
    await rig.sim.system.services.clusters.update(acme, cluster, ClusterChange(num_preemptible_gpus=8))
    await rig.sim.run_for(80)
    (failed, *_) = await rig.stored("nodes", "end_reason = 'failed'")
    assert failed["why"] == "a webhook said no after 60 s"
    assert {host["boot_failures"] for host in await rig.stored("hosts")} == {0}


async def test_a_node_that_could_not_be_admitted_and_has_a_pod_drains_and_pays(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=60)
    rig.flaky.strike_verb("admit", *[DriverError("no answer", refused=False)] * 200)
    cluster = await rig.cluster()
    await rig.sim.run_for(30)
    node = await rig.node(cluster)
    rig.world.run_pods(cluster, node.name, 1, IgnoresSigterm(), 300, "stray", tolerates_everything=True)
    await rig.sim.run_for(40)
    assert await _phase_of(rig, node.uid) == "DRAINING"
    assert await rig.stored("intervals", "node_uid = :uid", uid=node.uid)


async def test_a_machine_that_registers_under_another_name_does_not_join(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods would be asked for under the wrong name, and none would be told."""
    rig = await make(a_fleet(a_pool(2)), join_limit_s=60)
    worker = rig.sim.system.runner._workers[Loop.LIFECYCLE]
    assert isinstance(worker, Lifecycle)
    plain = worker._driver

    async def observe(cluster: ClusterRef) -> list[NodeSeen]:
        return [replace(one, name="ip-10-0-0-7") for one in await plain.observe(cluster)]

    monkeypatch.setattr(worker, "_driver", Renamed(plain, observe))
    await rig.cluster()
    await rig.sim.run_for(80)
    (failed, *_) = await rig.stored("nodes", "end_reason = 'failed'")
    assert failed["why"] == f"it registered as ip-10-0-0-7, not {failed['name']} after 60 s"
    assert not await rig.stored("intervals")


async def test_a_host_that_left_the_inventory_is_not_brought_back_by_its_failures(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), boot_failures_limit=1)
    rig.world.set_behaviour(BootFails(after_s=30), host="h100-00000")
    await rig.cluster()
    await rig.sim.run_for(20)
    await rig.sim.system.services.fleet.apply_file(a_fleet(a_pool(["h100-00001"])))
    await rig.sim.run_for(60)
    (host,) = await rig.stored("hosts", "name = 'h100-00000'")
    assert (host["boot_failures"], host["state"]) == (1, "retired")


async def test_a_pod_that_slipped_onto_a_node_that_never_joins_gets_its_window_and_pays(make: Make) -> None:
    rig = await make(a_fleet(a_pool(2)), join_limit_s=60)
    rig.world.set_behaviour(GpusMissing(gpus=4, boot_s=5, join_s=1), host="h100-00000")
    cluster = await rig.cluster()
    await rig.sim.run_for(30)
    node = await rig.node(cluster)
    rig.world.run_pods(cluster, node.name, 1, IgnoresSigterm(), 300, "stray", tolerates_everything=True)
    started_s = int(rig.sim.now.timestamp())
    await rig.sim.run_for(40)
    seen = next(one for one in (await rig.seen(cluster)).nodes if one.uid == node.uid)
    assert seen.phase is Phase.DRAINING
    assert seen.why == "only 4 of its 8 GPUs are allocatable after 60 s"
    (interval,) = await rig.stored("intervals", "node_uid = :uid", uid=node.uid)
    assert interval["start_s"] == started_s
    deadline = seen.deadline
    assert deadline is not None
    await rig.sim.run_until(deadline + timedelta(seconds=5))
    (interval,) = await rig.stored("intervals", "node_uid = :uid", uid=node.uid)
    end_s = interval["end_s"]
    assert isinstance(end_s, int)
    assert end_s <= int(deadline.timestamp())


# -- leaving


async def _leaving(rig: Rig, *behaviours: Behaviour) -> tuple[str, str]:
    """A cluster whose one preemptible node was taken; the cluster's id and the node's uid."""
    cluster = await rig.running(target=24)
    seen = await rig.seen(cluster)
    assert seen.allocated_preemptible_gpus == 24
    rig.world.set_behaviour(*behaviours)
    await rig.order()
    (taken,) = [node for node in (await rig.seen(cluster)).nodes if node.phase is Phase.DRAINING]
    return cluster, taken.uid


async def _node(rig: Rig, uid: str) -> dict[str, object]:
    (row,) = await rig.stored("nodes", "uid = :uid", uid=uid)
    return row


async def test_a_stop_that_is_not_confirmed_keeps_the_host_and_costs_nothing(rig: Rig) -> None:
    cluster, uid = await _leaving(rig, StopUnconfirmed())
    await rig.sim.run_for(100)
    node = await _node(rig, uid)
    assert (node["phase"], node["removed_at"]) == ("REMOVING", None)
    (visit,) = await rig.stored("visits", "key = :uid", uid=uid)
    assert visit["outcome"] == "waiting for the machine's stop to be confirmed"
    (interval,) = await rig.stored("intervals", "node_uid = :uid", uid=uid)
    assert interval["end_s"] is not None
    (host,) = await rig.stored("hosts", "node_uid = :uid", uid=uid)
    assert host["node_uid"] == uid
    seen = await rig.seen(cluster)
    assert seen.allocated_preemptible_gpus == 16


async def test_a_stop_that_takes_a_while_is_waited_for(rig: Rig) -> None:
    _, uid = await _leaving(rig, StopTakes(15))
    await rig.sim.run_for(120)
    node = await _node(rig, uid)
    assert node["phase"] == "REMOVED"
    order = [fact.what for fact in rig.world.facts(node_uid=uid)]
    assert order.index(What.POWER_OFF) < order.index(What.WIPED)


@pytest.mark.parametrize("behaviour", [DeleteForgets(times=3), DeleteReplyLost(times=2)], ids=["D4", "lost"])
async def test_a_release_that_fails_is_tried_until_it_is_confirmed(rig: Rig, behaviour: Behaviour) -> None:
    """D4: meanwhile REMOVING, not billed, neither free nor allocated."""
    cluster, uid = await _leaving(rig, behaviour)
    await rig.sim.run_for(3)
    node = await _node(rig, uid)
    assert node["phase"] == "REMOVING"
    (interval,) = await rig.stored("intervals", "node_uid = :uid", uid=uid)
    assert interval["end_s"] is not None
    operator = await rig.sim.caller("operations", role=Role.OPERATOR)
    (pool,) = await rig.sim.system.services.fleet.pools(operator)
    assert (pool.counts["free"], pool.counts["turning_over"], pool.promised) == (0, 1, 1)
    assert (await rig.seen(cluster)).allocated_preemptible_gpus == 16
    await rig.sim.run_for(300)
    assert (await _node(rig, uid))["phase"] == "REMOVED"
    assert (await rig.seen(cluster)).allocated_preemptible_gpus == 16


async def test_an_api_server_that_is_away_does_not_keep_the_host(make: Make) -> None:
    """Past the deadline nothing is waited for: a tenant's broken API server keeps no host from others."""
    rig = await make(drain_window_s=60, detach_limit_s=20)
    cluster, uid = await _leaving(rig)
    start = rig.sim.now
    rig.world.unreachable(cluster, start, start + timedelta(days=1))
    await rig.sim.run_for(61)
    assert (await _node(rig, uid))["phase"] == "REMOVING"
    await rig.sim.run_for(100)
    assert (await _node(rig, uid))["phase"] == "REMOVED"
    buyer = (await rig.sim.system.services.clusters.list(await rig.caller("buyer")))[0]
    assert buyer.phase == "READY"


async def test_when_the_api_server_is_back_the_leftovers_go(make: Make) -> None:
    rig = await make(drain_window_s=60, detach_limit_s=20)
    cluster, uid = await _leaving(rig)
    start = rig.sim.now
    rig.world.unreachable(cluster, start, start + timedelta(seconds=150))
    await rig.sim.run_for(180)
    assert (await _node(rig, uid))["phase"] == "REMOVED"
    assert uid not in {view.uid for view in rig.world.nodes(cluster)}


async def test_a_cluster_that_is_deleted_while_its_api_server_is_away_goes_all_the_same(rig: Rig) -> None:
    cluster = await rig.running(target=8)
    start = rig.sim.now
    rig.world.unreachable(cluster, start, start + timedelta(days=1))
    await rig.sim.system.services.clusters.delete(await rig.caller(), cluster)
    await rig.sim.run_for(150)
    (row,) = await rig.stored("clusters", "id = :id", id=cluster)
    assert row["phase"] == "DELETED"
    assert await rig.stored("hosts", "node_uid IS NOT NULL") == []


async def test_a_visit_of_a_row_that_is_gone_or_settled_does_nothing(rig: Rig) -> None:
    cluster = await rig.running()
    node = await rig.node(cluster)
    calls = len(rig.flaky.calls)
    async with rig.sim.system.db.transaction() as tx:
        await visits.hint(tx, Loop.LIFECYCLE, [node.uid, "nobody"])
        await visits.hint(tx, Loop.CLUSTER, ["nobody"])
        await visits.hint(tx, Loop.OBSERVATION, ["nobody"])
    assert await rig.visit() == ["nothing to do", "nothing to do"]
    assert await rig.visit(Loop.CLUSTER) == ["nothing to do"]
    assert await rig.visit(Loop.OBSERVATION) == ["nothing to look at"]
    assert len(rig.flaky.calls) == calls
