"""Theme 12: what is asked twice happens once."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.errors import Conflict
from ebbtide.services.details import ClusterChange, ClusterOrder, Replay
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPU_TYPE, GPUS, JOINED_BY_S, MINUTE, REGION


async def test_l1_the_same_target_put_ten_times_in_parallel_is_one_change(given: Begin) -> None:
    story = await given(hosts=4, side_by_side=True)
    acme = await story.orders("acme", target=3 * GPUS)
    await story.passes(JOINED_BY_S)
    caller = await story.caller("acme")
    services = story.sim.system.services
    lower = ClusterChange(num_preemptible_gpus=GPUS)
    answers = await asyncio.gather(*(services.clusters.update(caller, acme.id, lower) for _ in range(10)))
    story.look()
    assert {answer.desired_preemptible_gpus for answer in answers} == {GPUS}
    assert len(await acme.draining()) == 2
    await story.passes(MINUTE)
    assert (await acme.allocated(), (await acme.reasons())["TogetherScaledDown"]) == (GPUS, 2)


async def test_l1_a_create_replayed_with_its_key_is_the_same_cluster(given: Begin) -> None:
    """Ten at once and one later: one cluster, one host."""
    story = await given(hosts=4, side_by_side=True)
    caller = await story.caller("acme")
    services = story.sim.system.services
    order = ClusterOrder("train", REGION, GPU_TYPE, num_gpus=GPUS)
    same = Replay("hash", token="apply-1")
    made = await asyncio.gather(*(services.clusters.create(caller, order, same) for _ in range(10)))
    await story.passes(JOINED_BY_S)
    later = await services.clusters.create(caller, order, same)
    assert {one.id for one in made} == {later.id}
    assert await story.free_hosts() == 3


async def test_l2_the_same_key_with_another_body_is_refused_with_both_hashes(given: Begin) -> None:
    story = await given(hosts=4)
    caller = await story.caller("acme")
    services = story.sim.system.services
    order = ClusterOrder("train", REGION, GPU_TYPE, num_gpus=GPUS)
    await services.clusters.create(caller, order, Replay("hash-one", token="apply-1"))
    with pytest.raises(Conflict, match=r"hash-one.*hash-two"):
        await services.clusters.create(caller, order, Replay("hash-two", token="apply-1"))
    assert await story.free_hosts() == 3


async def test_l2_a_claim_reference_with_other_arguments_is_refused_with_both_hashes(given: Begin) -> None:
    story = await given(hosts=4)
    await story.claims(1, "order-77")
    with pytest.raises(Conflict, match=r"hashes [0-9a-f]{16} and [0-9a-f]{16}"):
        await story.claims(2, "order-77")
    assert await story.free_hosts() == 3


async def test_l3_what_is_not_said_stays_and_zero_is_said(given: Begin) -> None:
    """L3: an update without the target leaves it; an explicit 0 drains to 0."""
    story = await given(hosts=4)
    acme = await story.orders("acme", target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    details = await acme.changes(gpus=2 * GPUS)
    assert details.desired_preemptible_gpus == 2 * GPUS
    assert (await acme.changes()).desired_preemptible_gpus == 2 * GPUS
    await story.passes(MINUTE)
    assert (await acme.allocated(), (await acme.details()).num_gpus) == (2 * GPUS, 2 * GPUS)
    await acme.changes(target=0)
    await story.passes(MINUTE)
    details = await acme.details()
    assert (details.desired_preemptible_gpus, details.allocated_preemptible_gpus) == (0, 0)


async def test_fifty_orders_at_once_get_exactly_what_there_is(given: Begin) -> None:
    """Fifty at once on twenty hosts: twenty are promised, thirty are refused."""
    story = await given(hosts=20, side_by_side=True)
    caller = await story.caller("acme")
    services = story.sim.system.services

    async def order(number: int) -> bool:
        try:
            await services.clusters.create(
                caller, ClusterOrder(f"c{number}", REGION, GPU_TYPE, num_gpus=GPUS), Replay(f"{number}")
            )
        except Conflict:
            return False
        return True

    granted = await asyncio.gather(*(order(number) for number in range(50)))
    story.look()
    assert (sum(granted), await story.free_hosts()) == (20, 0)
