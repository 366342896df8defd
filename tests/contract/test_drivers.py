"""What every driver must do. One suite for all; see `rigs.py` for what stands behind each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.core.drain import PodOrder, PodSeen
from ebbtide.drivers.base import DriverError, NodeRef, NodeSeen, Notice, OrderResult
from tests.contract.rigs import DRIVERS, DriverRig, eventually

NOTICE = Notice("TogetherPreempted", "capacity was needed elsewhere", datetime(2027, 1, 1, tzinfo=UTC))


@pytest.fixture(params=sorted(DRIVERS))
def rig(request: pytest.FixtureRequest) -> DriverRig:
    return DRIVERS[request.param]()


async def _seen(rig: DriverRig, node: NodeRef) -> NodeSeen | None:
    return next((seen for seen in await rig.driver.observe(rig.cluster) if seen.uid == node.uid), None)


async def _pods(rig: DriverRig, node: NodeRef) -> dict[str, PodSeen]:
    return {pod.uid: pod for pod in (await rig.driver.pods(rig.cluster, node)).pods}


async def _order(rig: DriverRig, node: NodeRef, uid: str, grace_s: int) -> PodOrder:
    """An order as a drain gives it: for a pod that it saw, or one that was there before."""
    seen = (await _pods(rig, node)).get(uid)
    return PodOrder(uid, seen.name if seen else "j", grace_s, namespace=seen.namespace if seen else "")


async def _signal(rig: DriverRig, node: NodeRef, uid: str, grace_s: int) -> list[OrderResult]:
    return await rig.driver.signal(rig.cluster, node, [await _order(rig, node, uid, grace_s)])


async def _empty(rig: DriverRig, node: NodeRef) -> bool:
    return not await _pods(rig, node)


async def test_a_node_is_seen_under_the_ledgers_uid_with_its_gpus(rig: DriverRig) -> None:
    node = await rig.add_node()
    seen = await _seen(rig, node)
    assert seen == NodeSeen(node.uid, node.name, ready=True, gpus=8)


async def test_work_on_a_node_is_counted_until_it_ends(rig: DriverRig) -> None:
    node, other = await rig.add_node(), await rig.add_node()
    uid = await rig.add_pod(node)
    seen, beside = await _seen(rig, node), await _seen(rig, other)
    assert seen is not None
    assert beside is not None
    assert (seen.workload_pods, beside.workload_pods) == (1, 0)
    assert seen.first_pod_at is not None
    assert beside.first_pod_at is None
    await _signal(rig, node, uid, 30)
    await eventually(rig, lambda: _empty(rig, node))
    seen = await _seen(rig, node)
    assert seen is not None
    assert (seen.workload_pods, seen.first_pod_at) == (0, None)


async def test_admitting_twice_is_admitting_once(rig: DriverRig) -> None:
    node = await rig.add_node()
    before = await _seen(rig, node)
    await rig.driver.admit(rig.cluster, node)
    assert await _seen(rig, node) == before


async def test_a_notice_cordons_and_is_sent_once(rig: DriverRig) -> None:
    node, other = await rig.add_node(), await rig.add_node()
    for _ in range(3):
        await rig.driver.notify(rig.cluster, node, NOTICE)
    seen, beside = await _seen(rig, node), await _seen(rig, other)
    assert seen is not None
    assert beside is not None
    assert (seen.cordoned, beside.cordoned) == (True, False)
    assert await rig.notices(node) == 1
    assert await rig.notices(other) == 0


async def test_an_obedient_pod_ends_soon_after_sigterm(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node, grace_s=100)
    assert await _signal(rig, node, uid, 60) == [OrderResult(uid)]
    told = (await _pods(rig, node))[uid]
    assert told.grace_s == 100
    assert told.ends_by is not None
    await rig.pass_time(10)
    assert await _empty(rig, node)


async def test_a_pod_that_ignores_sigterm_ends_with_its_grace(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node, obeys=False)
    await _signal(rig, node, uid, 12)
    await rig.pass_time(10)
    assert uid in await _pods(rig, node)
    await eventually(rig, lambda: _empty(rig, node))


async def test_grace_becomes_shorter_but_never_longer(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node, obeys=False)
    await _signal(rig, node, uid, 100)
    first = (await _pods(rig, node))[uid].ends_by
    await _signal(rig, node, uid, 200)
    assert (await _pods(rig, node))[uid].ends_by == first
    await _signal(rig, node, uid, 40)
    shorter = (await _pods(rig, node))[uid].ends_by
    assert first is not None
    assert shorter is not None
    assert first - shorter >= timedelta(seconds=55)


async def test_telling_what_is_gone_counts_as_told(rig: DriverRig) -> None:
    node = await rig.add_node()
    gone = NodeRef("00000000-0000-4000-8000-00000000dead", "gpu-dp-zzzzz-zzzzz")
    assert await _signal(rig, node, "no-such-pod", 10) == [OrderResult("no-such-pod")]
    assert await _signal(rig, gone, "no-such-pod", 10) == [OrderResult("no-such-pod")]
    await rig.driver.notify(rig.cluster, gone, NOTICE)
    await rig.driver.admit(rig.cluster, gone)
    assert (await rig.driver.pods(rig.cluster, gone)).pods == ()
    assert await rig.driver.remove(rig.cluster, gone)


async def test_an_eviction_is_refused_by_a_budget_and_a_signal_is_not(rig: DriverRig) -> None:
    node = await rig.add_node()
    held, free = await rig.add_pod(node, name="held"), await rig.add_pod(node, name="free")
    await rig.forbid_evictions("held")
    orders = [await _order(rig, node, uid, 30) for uid in (held, free)]
    answers = await rig.driver.evict(rig.cluster, node, orders)
    assert [answer.pod_uid for answer in answers] == [held, free]
    assert answers[0].refused
    assert answers[1].refused is None
    pods = await _pods(rig, node)
    assert pods[held].ends_by is None
    assert free not in pods or pods[free].ends_by is not None
    (told,) = await _signal(rig, node, held, 30)
    assert (told.pod_uid, told.refused) == (held, None)
    assert told.overrode is not None
    assert "keep-held" in told.overrode
    await eventually(rig, lambda: _empty(rig, node))


async def test_pods_of_a_machine_that_is_off_stay_until_removed(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node)
    await rig.power_off(node)
    await rig.pass_time(60)
    assert uid in await _pods(rig, node)
    seen = await _seen(rig, node)
    assert seen is not None
    assert not seen.ready
    await eventually(rig, lambda: rig.driver.remove(rig.cluster, node))
    assert await _seen(rig, node) is None
    assert await _empty(rig, node)


async def test_removing_takes_one_node_and_can_be_repeated(rig: DriverRig) -> None:
    node, other = await rig.add_node(), await rig.add_node()
    await eventually(rig, lambda: rig.driver.remove(rig.cluster, node))
    assert await rig.driver.remove(rig.cluster, node)
    assert [seen.uid for seen in await rig.driver.observe(rig.cluster)] == [other.uid]


async def test_a_cluster_that_does_not_answer_is_an_error_never_an_empty_answer(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node)
    order = await _order(rig, node, uid, 10)
    await rig.cut_off(30)
    with pytest.raises(DriverError):
        await rig.driver.pods(rig.cluster, node)
    with pytest.raises(DriverError):
        await rig.driver.observe(rig.cluster)
    with pytest.raises(DriverError):
        await rig.driver.signal(rig.cluster, node, [order])
    with pytest.raises(DriverError):
        await rig.driver.evict(rig.cluster, node, [order])
    with pytest.raises(DriverError):
        await rig.driver.remove(rig.cluster, node)
    await rig.pass_time(31)
    assert uid in await _pods(rig, node)


async def test_work_that_comes_onto_a_node_whose_machine_may_run_is_told_and_not_forced(
    rig: DriverRig,
) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node, obeys=False, grace_s=6)
    assert not await rig.driver.remove(rig.cluster, node, stopped=False)
    told = (await _pods(rig, node))[uid]
    assert told.ends_by is not None
    assert await _seen(rig, node) is not None
    await eventually(rig, lambda: rig.driver.remove(rig.cluster, node, stopped=False))
    assert await _seen(rig, node) is None


async def test_a_node_that_its_tenant_deletes_stays_until_it_is_removed(rig: DriverRig) -> None:
    node = await rig.add_node()
    uid = await rig.add_pod(node)
    await rig.delete_node(node)
    seen = await _seen(rig, node)
    assert seen is not None
    assert seen.deleting
    assert uid in await _pods(rig, node)
    await _signal(rig, node, uid, 30)
    await eventually(rig, lambda: _empty(rig, node))
    await eventually(rig, lambda: rig.driver.remove(rig.cluster, node, stopped=False))
    assert await _seen(rig, node) is None
