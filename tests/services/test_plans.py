"""The pool's regular plan: the oldest promises first, then replacements, then what is left is lent."""

from __future__ import annotations

import pytest

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.errors import Conflict
from ebbtide.services.details import Caller, ClusterChange, Replay
from ebbtide.store import nodes
from ebbtide.store.nodes import Move
from tests.builders import (
    POOL,
    SIZE,
    Office,
    a_fleet,
    a_pool,
    all_join,
    all_leave,
    an_office,
    an_order,
    control_planes_are_ready,
    count,
    one_plan,
    promises_kept,
)


async def _cluster(office: Office, caller: Caller, name: str, gpus: int = SIZE, target: int = 0) -> str:
    made = await office.services.clusters.create(caller, an_order(name, gpus, target), Replay(name))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    return made.id


async def _plan_and_join(office: Office) -> None:
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)


async def _held(office: Office, cluster_id: str) -> list[str]:
    """Classes of the cluster's nodes that have hosts."""
    async with office.db.read() as tx:
        return [n.compute_class.value for n in await nodes.of_cluster(tx, cluster_id) if n.host_id]


async def test_whichever_host_comes_free_first_serves_the_oldest_claim(
    office: Office, tenant: Caller
) -> None:
    big = await _cluster(office, tenant, "big", target=3 * SIZE)
    await _plan_and_join(office)
    first = await _cluster(office, tenant, "first", gpus=2 * SIZE)
    second = await _cluster(office, tenant, "second")
    async with office.db.transaction() as tx:
        draining = [n for n in await nodes.of_cluster(tx, big) if n.phase is Phase.DRAINING]
        last_taken = max(draining, key=lambda node: node.no)
        for before, after in ((Phase.DRAINING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
            await nodes.move(tx, [Move(last_taken.uid, before, after)])
    await one_plan(office)
    assert (len(await _held(office, first)), len(await _held(office, second))) == (1, 0)
    async with office.db.transaction() as tx:
        await all_leave(tx)
    await one_plan(office)
    assert (len(await _held(office, first)), len(await _held(office, second))) == (2, 1)


async def test_what_was_promised_and_did_not_come_back_is_taken_elsewhere(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    big = await _cluster(office, tenant, "big", target=3 * SIZE)
    await _plan_and_join(office)
    await _cluster(office, tenant, "order")
    async with office.db.read() as tx:
        (leaving,) = [n for n in await nodes.of_cluster(tx, big) if n.phase is Phase.DRAINING]
    await office.services.fleet.set_cordon(operator, leaving.host_name or "", cordoned=True, reason="a fan")
    await one_plan(office)
    async with office.db.read() as tx:
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 2
        await promises_kept(tx)
    await one_plan(office)
    async with office.db.read() as tx:
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 2  # no more than needed


async def test_a_standard_node_that_vanished_is_replaced_even_by_taking_one(
    office: Office, tenant: Caller
) -> None:
    big = await _cluster(office, tenant, "big", target=3 * SIZE)
    await _plan_and_join(office)
    async with office.db.transaction() as tx:
        (standard,) = [n for n in await nodes.of_cluster(tx, big) if n.compute_class == "standard"]
        await nodes.move(tx, [Move(standard.uid, Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.LOST)])
    await one_plan(office)
    async with office.db.read() as tx:
        # Its own host is on its way back already: nobody is taken for it.
        assert await count(tx, "nodes", "phase = 'PENDING' AND compute_class = 'standard'") == 1
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 0
        await promises_kept(tx)


async def test_a_plan_that_cannot_replace_everything_still_makes_the_rest(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    """Older promises have the first call on what can be taken; the plan must not fail on that."""
    one = await _cluster(office, tenant, "one")
    big = await _cluster(office, tenant, "big", target=2 * SIZE)
    await _plan_and_join(office)
    await _cluster(office, tenant, "waiting")
    async with office.db.transaction() as tx:
        (leaving,) = [n for n in await nodes.of_cluster(tx, big) if n.phase is Phase.DRAINING]
        (lost,) = await nodes.of_cluster(tx, one)
    for broken in (leaving, lost):
        await office.services.fleet.set_cordon(operator, broken.host_name or "", cordoned=True)
    async with office.db.transaction() as tx:
        await nodes.move(tx, [Move(lost.uid, Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.LOST)])
    await one_plan(office)
    async with office.db.read() as tx:
        await promises_kept(tx)
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 2


async def test_a_refusal_offers_no_more_than_could_be_had(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    big = await _cluster(office, tenant, "big", target=3 * SIZE)
    await _plan_and_join(office)
    await _cluster(office, tenant, "waiting")
    async with office.db.read() as tx:
        (leaving,) = [n for n in await nodes.of_cluster(tx, big) if n.phase is Phase.DRAINING]
    await office.services.fleet.set_cordon(operator, leaving.host_name or "", cordoned=True)
    with pytest.raises(Conflict, match=r"Ask for at most 8 GPUs"):
        await _cluster(office, tenant, "more", gpus=2 * SIZE)
    await _cluster(office, tenant, "just so", gpus=SIZE)


async def test_refill_never_takes_and_keeps_the_headroom(database_url: str) -> None:
    async with an_office(database_url, a_fleet(a_pool(6, headroom=2))) as office:
        tenant, other = await office.caller("a"), await office.caller("b")
        first = await _cluster(office, tenant, "first", target=80)
        second = await _cluster(office, other, "second", target=80)
        for _ in range(3):
            await _plan_and_join(office)
        assert [len(await _held(office, one)) for one in (first, second)] == [2, 2]
        async with office.db.read() as tx:
            assert await count(tx, "nodes", "end_reason IS NOT NULL") == 0
            assert await count(tx, "hosts", "node_uid IS NULL") == 2
        await _cluster(office, tenant, "standard", gpus=2 * SIZE)  # headroom is for those who may displace
        async with office.db.read() as tx:
            assert await count(tx, "nodes", "phase = 'DRAINING'") == 0


async def test_never_more_than_the_target_whatever_the_plan_is_asked(office: Office, tenant: Caller) -> None:
    """D5, D9: nodes on their way in count."""
    cluster = await _cluster(office, tenant, "demo", target=2 * SIZE)
    for _ in range(3):
        await one_plan(office)
    assert (await _held(office, cluster)).count("preemptible") == 2


async def test_a_draining_node_still_fills_its_target_and_its_host_is_offered_to_nobody(
    office: Office, tenant: Caller, other: Caller
) -> None:
    """D8, and no refill beyond the target while nodes leave."""
    cluster = await _cluster(office, tenant, "demo", target=3 * SIZE)
    await _plan_and_join(office)
    await office.services.clusters.update(tenant, cluster, ClusterChange(num_preemptible_gpus=SIZE))
    await office.services.clusters.update(tenant, cluster, ClusterChange(num_preemptible_gpus=3 * SIZE))
    await one_plan(office)
    assert (await _held(office, cluster)).count("preemptible") == 3
    async with office.db.transaction() as tx:
        await all_leave(tx)
    await _plan_and_join(office)
    seen = await office.services.clusters.retrieve(tenant, cluster)
    assert seen.allocated_preemptible_gpus == 3 * SIZE


async def test_a_host_given_back_by_a_claim_rests_before_it_is_lent(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    """K2, K4: demand that swings does not make nodes that live for a minute."""
    cluster = await _cluster(office, tenant, "demo", target=80)
    await office.services.claims.create(operator, POOL, 3, "r", "x")
    await one_plan(office)
    assert (await _held(office, cluster)).count("preemptible") == 0
    await office.services.claims.give_back(operator, "r")
    async with office.db.transaction() as tx:
        for node in await nodes.in_phase(tx, Phase.REMOVING):
            await nodes.move(tx, [Move(node.uid, Phase.REMOVING, Phase.REMOVED)], cooldown_s=120)
    await one_plan(office)
    assert (await _held(office, cluster)).count("preemptible") == 0
    seen = await office.services.clusters.retrieve(tenant, cluster)
    assert seen.fill
    assert "rest" in seen.fill.pending_reason
    await office.services.claims.create(
        operator, POOL, 1, "again", "x"
    )  # those who may displace need not wait
    office.clock.advance(121)
    await one_plan(office)
    assert (await _held(office, cluster)).count("preemptible") == 2


async def test_at_most_so_many_join_at_once(database_url: str) -> None:
    """K12: a jump of the target does not start hundreds of machines in one go."""
    async with an_office(database_url, a_fleet(a_pool(70))) as office:
        tenant = await office.caller()
        cluster = await _cluster(office, tenant, "demo", target=69 * SIZE)
        await one_plan(office)
        await one_plan(office)
        assert (await _held(office, cluster)).count("preemptible") == 50
        async with office.db.transaction() as tx:
            await all_join(tx)
        await one_plan(office)
        assert (await _held(office, cluster)).count("preemptible") == 69


async def test_more_reclaims_than_there_are_nodes_take_what_there_is(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    await _cluster(office, tenant, "demo", target=2 * SIZE)
    await _plan_and_join(office)
    taken = await office.services.fleet.reclaim(operator, POOL, 10, "a drill")
    assert len(taken) == 2
    assert {node.phase for node in taken} == {Phase.DRAINING}
    assert await office.services.fleet.reclaim(operator, POOL, 10, "a drill") == ()
