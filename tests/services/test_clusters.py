"""What a tenant's request means: once however often it is sent, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.services.details import Caller, ClusterChange, Replay
from ebbtide.simulation import Simulation
from ebbtide.store import pools
from ebbtide.store.db import Tx
from ebbtide.store.pools import PoolRow
from tests.builders import (
    SIZE,
    Office,
    a_fleet,
    a_pool,
    all_join,
    an_office,
    an_order,
    control_planes_are_ready,
    count,
    one_plan,
)


async def _running(office: Office, caller: Caller, name: str = "demo", target: int = 2 * SIZE) -> str:
    """A cluster whose nodes run: one standard, and as many preemptible ones as it wants and there are."""
    made = await office.services.clusters.create(caller, an_order(name, target=target), Replay(name))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
    return made.id


# -- once however often (L1, L2, L3)


async def test_the_same_change_sent_ten_times_at_once_is_one_change(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant, target=0)
    change = ClusterChange(num_gpus=3 * SIZE, num_preemptible_gpus=SIZE)
    answers = await asyncio.gather(
        *(office.services.clusters.update(tenant, cluster_id, change) for _ in range(10))
    )
    assert {(one.num_gpus, one.desired_preemptible_gpus) for one in answers} == {(3 * SIZE, SIZE)}
    async with office.db.read() as tx:
        assert await count(tx, "nodes", "compute_class = 'standard'") == 3
        assert await count(tx, "claims") == 2  # the first order and the one change


async def test_configuration_changed_by_two_at_once_keeps_both_changes(
    office: Office, tenant: Caller
) -> None:
    """The merge happens under the cluster's lock; a change that changes nothing leaves no trace."""
    services = office.services
    made = await services.clusters.create(
        tenant, replace(an_order(), echo={"cluster_config": {"load_balancer": "NONE"}}), Replay("h")
    )
    parts = [{f"part_{number}": True} for number in range(8)]
    await asyncio.gather(
        *(
            services.clusters.update(
                tenant, made.id, ClusterChange(echo={"cluster_config": {"load_balancer": "NONE"} | part})
            )
            for part in parts
        )
    )
    after = await services.clusters.retrieve(tenant, made.id)
    config = after.echo["cluster_config"]
    assert isinstance(config, dict)
    assert set(config) == {"load_balancer", *(f"part_{number}" for number in range(8))}
    entries = await services.audit.read(tenant)
    assert [entry.action for entry in entries].count("cluster.update") == 8
    assert entries[0].after == {"cluster_config": config}
    await services.clusters.update(tenant, made.id, ClusterChange(echo=dict(after.echo)))
    assert len(await services.audit.read(tenant)) == len(entries)
    with pytest.raises(BadInput, match="set when a cluster is created"):
        await services.clusters.update(tenant, made.id, ClusterChange(volume_id="no-volume-of-its"))


async def test_a_create_sent_again_at_once_is_the_same_cluster(office: Office, tenant: Caller) -> None:
    clusters = office.services.clusters
    replays = [Replay("hash", token="token")] * 5 + [Replay("hash", token="token", is_retry=True)] * 5
    answers = await asyncio.gather(*(clusters.create(tenant, an_order(), one) for one in replays))
    assert len({one.id for one in answers}) == 1
    async with office.db.read() as tx:
        assert await count(tx, "clusters") == 1
        assert await count(tx, "nodes") == 1


async def test_a_client_that_says_it_tries_again_gets_the_cluster_that_it_made(
    office: Office, tenant: Caller
) -> None:
    clusters = office.services.clusters
    first = await clusters.create(tenant, an_order(), Replay("hash"))
    again = await clusters.create(tenant, an_order(), Replay("hash", is_retry=True))
    assert again.id == first.id
    another = await clusters.create(
        tenant, an_order(), Replay("hash")
    )  # a second one like the first, on purpose
    assert another.id != first.id
    office.clock.advance(121)
    late = await clusters.create(tenant, an_order(), Replay("hash", is_retry=True))
    assert late.id not in (first.id, another.id)


async def test_a_key_used_for_another_request_is_refused(
    office: Office, tenant: Caller, other: Caller
) -> None:
    clusters = office.services.clusters
    first = await clusters.create(tenant, an_order(), Replay("hash", token="token"))
    with pytest.raises(Conflict) as refused:
        await clusters.create(tenant, an_order("another"), Replay("other", token="token"))
    assert refused.value.code == "idempotency_key_reused"
    theirs = await clusters.create(other, an_order(), Replay("hash", token="token"))
    assert theirs.id != first.id  # keys are each caller's own


async def test_deleting_again_changes_nothing(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant)
    await asyncio.gather(*(office.services.clusters.delete(tenant, cluster_id) for _ in range(5)))
    office.clock.advance(10)
    await office.services.clusters.delete(tenant, cluster_id)
    seen = await office.services.clusters.retrieve(tenant, cluster_id)
    assert seen.phase is ClusterPhase.DELETING
    assert [phase.phase for phase in seen.phases].count("DELETING") == 1
    assert {node.phase for node in seen.deleted_nodes} == {Phase.REMOVING}
    with pytest.raises(Conflict, match="being deleted"):
        await office.services.clusters.update(tenant, cluster_id, ClusterChange(num_gpus=2 * SIZE))


async def test_what_is_not_said_stays(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant, target=SIZE)
    update = office.services.clusters.update
    assert (await update(tenant, cluster_id, ClusterChange())).desired_preemptible_gpus == SIZE
    assert (
        await update(tenant, cluster_id, ClusterChange(num_gpus=2 * SIZE))
    ).desired_preemptible_gpus == SIZE
    after = await update(tenant, cluster_id, ClusterChange(num_preemptible_gpus=0))
    assert (after.num_gpus, after.desired_preemptible_gpus) == (2 * SIZE, 0)


# -- what is refused


_SENSELESS = [
    (an_order(region="mars"), "region"),
    (an_order(gpu_type="ABACUS"), "gpu_type"),
    (an_order(gpus=0), "num_gpus"),
    (an_order(gpus=-8), "num_gpus"),
    (an_order(gpus=12), "num_gpus"),
    (an_order(target=4), "num_preemptible_gpus"),
    (an_order(target=-8), "num_preemptible_gpus"),
    (an_order(target=8_000_008), "num_preemptible_gpus"),
    (an_order(cuda_version="1.0"), "cuda_version"),
    (an_order(nvidia_version_id="none"), "nvidia_version_id"),
]


async def test_an_order_without_sense_is_refused_by_its_field(office: Office, tenant: Caller) -> None:
    for order, param in _SENSELESS:
        with pytest.raises(BadInput) as refused:
            await office.services.clusters.create(tenant, order, Replay("hash"))
        assert refused.value.param == param
    async with office.db.read() as tx:
        assert await count(tx, "clusters") + await count(tx, "claims") + await count(tx, "nodes") == 0


async def test_the_last_standard_node_stays(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant)
    with pytest.raises(BadInput, match="keeps one standard node"):
        await office.services.clusters.update(tenant, cluster_id, ClusterChange(num_gpus=0))


async def test_a_change_that_cannot_be_had_changes_nothing(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant, target=SIZE)
    before = await office.services.clusters.retrieve(tenant, cluster_id)
    office.clock.advance(5)
    with pytest.raises(Conflict, match="out of stock"):
        await office.services.clusters.update(tenant, cluster_id, ClusterChange(9 * SIZE, 0))
    assert await office.services.clusters.retrieve(tenant, cluster_id) == before


async def test_a_target_is_a_wish_that_may_be_anything(office: Office, tenant: Caller) -> None:
    made = await office.services.clusters.create(tenant, an_order(target=800), Replay("hash"))
    assert (made.desired_preemptible_gpus, made.allocated_preemptible_gpus) == (800, 0)


async def test_an_immutable_field_is_refused_only_if_it_differs(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant)
    same = ClusterChange(immutable={"region": "eu-1", "cluster_name": "demo", "cuda_version": None})
    await office.services.clusters.update(tenant, cluster_id, same)
    with pytest.raises(BadInput, match="cannot be changed") as refused:
        await office.services.clusters.update(tenant, cluster_id, ClusterChange(immutable={"region": "eu-2"}))
    assert refused.value.param == "region"


async def test_only_an_operator_orders_for_another_project(
    office: Office, tenant: Caller, other: Caller, operator: Caller
) -> None:
    order = an_order(project_id=other.project_id)
    with pytest.raises(Forbidden):
        await office.services.clusters.create(tenant, order, Replay("hash"))
    made = await office.services.clusters.create(operator, order, Replay("hash"))
    assert made.project_id == other.project_id
    assert [one.id for one in await office.services.clusters.list(other)] == [made.id]
    with pytest.raises(Forbidden):
        await office.services.clusters.create(operator, an_order(project_id="nobody"), Replay("x"))


# -- tenants see nothing of one another

Look = Callable[[Office, Caller, str], Awaitable[object]]
_LOOKS: dict[str, Look] = {
    "retrieve": lambda office, caller, id_: office.services.clusters.retrieve(caller, id_),
    "update": lambda office, caller, id_: office.services.clusters.update(
        caller, id_, ClusterChange(2 * SIZE)
    ),
    "delete": lambda office, caller, id_: office.services.clusters.delete(caller, id_),
    "events": lambda office, caller, id_: office.services.clusters.events(caller, id_),
}


async def test_what_is_not_yours_is_not_there(office: Office, tenant: Caller, other: Caller) -> None:
    """Another tenant's, none at all, no id, a zero byte: always the same answer."""
    theirs = await _running(office, other)
    for asked in (theirs, "00000000-0000-4000-8000-000000000000", "; DROP TABLE clusters", "\x00"):
        for name, look in _LOOKS.items():
            with pytest.raises(NotFound) as refused:
                await look(office, tenant, asked)
            assert refused.value.code == "cluster_not_found", name
    seen = await office.services.clusters.retrieve(other, theirs)
    assert (seen.num_gpus, seen.phase is ClusterPhase.DELETING) == (SIZE, False)


async def test_lists_and_bills_hold_only_what_is_yours(
    office: Office, tenant: Caller, other: Caller, operator: Caller
) -> None:
    mine, theirs = await _running(office, tenant, "mine", 0), await _running(office, other, "theirs", 0)
    office.clock.advance(600)
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)  # and so observed up to now
    lists = office.services.clusters.list
    assert [one.id for one in await lists(tenant)] == [mine]
    assert await lists(tenant, other.project_id) == ()
    assert {one.id for one in await lists(operator)} == {mine, theirs}
    assert [one.id for one in await lists(operator, other.project_id)] == [theirs]
    span = (office.clock.now() - timedelta(hours=1), office.clock.now())
    read = office.services.usage.read
    assert {line.cluster_id for line in (await read(tenant, *span)).lines} == {mine}
    assert (await read(tenant, *span, cluster_id=theirs)).lines == ()
    assert {line.cluster_id for line in (await read(operator, *span)).lines} == {mine, theirs}


# -- what is shown


async def test_a_cluster_shows_its_wish_and_what_it_has(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant, target=9 * SIZE)
    seen = await office.services.clusters.retrieve(tenant, cluster_id)
    assert (seen.desired_preemptible_gpus, seen.allocated_preemptible_gpus) == (72, 24)
    assert seen.fill
    assert "6 of 9 nodes missing" in seen.fill.pending_reason
    classes = {node.name.rsplit("-", 2)[0]: node.compute_class for node in seen.nodes}
    assert classes == {"gpu-dp": ComputeClass.STANDARD, "gpu-preemptible-dp": ComputeClass.PREEMPTIBLE}


async def test_lowering_the_target_takes_joining_and_idle_nodes_first(office: Office, tenant: Caller) -> None:
    cluster_id = await _running(office, tenant, target=3 * SIZE)
    async with office.db.transaction() as tx:
        from ebbtide.store import nodes

        preemptible = [n for n in await nodes.of_cluster(tx, cluster_id) if n.compute_class == "preemptible"]
        for node in preemptible[:2]:
            await nodes.set_facts(tx, node.uid, workload_pods=1)
    seen = await office.services.clusters.update(
        tenant, cluster_id, ClusterChange(num_preemptible_gpus=2 * SIZE)
    )
    draining = [node for node in seen.nodes if node.phase is Phase.DRAINING]
    assert [node.uid for node in draining] == [preemptible[2].uid]
    assert [event.reason for event in seen.events] == ["TogetherScaledDown"]
    assert draining[0].deadline == office.clock.now() + timedelta(seconds=300)


async def test_two_pools_of_one_model_are_tried_by_name(database_url: str) -> None:
    """Orders go to the first pool that can supply them, also when that takes a preemptible node."""
    pools = a_fleet(a_pool(2, name="a"), a_pool(2, name="b"))
    async with an_office(database_url, pools) as office:
        tenant = await office.caller()
        clusters = office.services.clusters
        got = [(await clusters.create(tenant, an_order(f"c{n}"), Replay(f"{n}"))).pool for n in range(4)]
        assert got == ["a", "a", "b", "b"]
        with pytest.raises(Conflict):
            await clusters.create(tenant, an_order("c4"), Replay("4"))


async def test_a_cluster_that_goes_amid_a_change_is_promised_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulation(database_url)
    await simulated.begin(a_fleet())
    services = simulated.system.services
    tenant = await simulated.caller("acme")
    cluster = await services.clusters.create(tenant, an_order(), Replay("a"))
    await simulated.run_for(300)
    await services.clusters.delete(tenant, cluster.id)
    real = pools.lock
    waiting = [True]

    async def slow(tx: Tx, pool: str) -> PoolRow:
        if waiting:
            waiting.clear()
            await simulated.run_for(600)
        return await real(tx, pool)

    monkeypatch.setattr(pools, "lock", slow)
    with pytest.raises(Conflict, match="being deleted"):
        await services.clusters.update(tenant, cluster.id, ClusterChange(num_gpus=2 * SIZE))
    await simulated.system.close()
