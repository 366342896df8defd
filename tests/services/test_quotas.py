"""Quotas: what a project may order. They count wishes, once each, whatever becomes of the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ebbtide.errors import Conflict
from ebbtide.services.details import Caller, ClusterChange, ClusterDetails, Replay
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
    one_plan,
)


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    async with an_office(database_url, a_fleet(a_pool(20))) as made:
        yield made


async def _limit(office: Office, operator: Caller, **limits: int | None) -> None:
    names = {f"{name}_gpus_limit": value for name, value in limits.items()}
    await office.services.access.set_project(operator, "acme", names)


async def _order(office: Office, tenant: Caller, name: str, gpus: int, target: int = 0) -> ClusterDetails:
    return await office.services.clusters.create(tenant, an_order(name, gpus, target), Replay(name))


async def _resize(office: Office, tenant: Caller, cluster: ClusterDetails, **sizes: int) -> None:
    await office.services.clusters.update(tenant, cluster.id, replace(ClusterChange(), **sizes))  # type: ignore[arg-type]  # fields by name


async def _joined(office: Office) -> None:
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)


async def test_an_order_beyond_the_quota_says_what_is_left(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    await _limit(office, operator, standard=3 * SIZE)
    await _order(office, tenant, "one", 2 * SIZE)
    with pytest.raises(
        Conflict, match="quota is 24 standard GPUs; 16 are ordered, 16 more asked for"
    ) as caught:
        await _order(office, tenant, "two", 2 * SIZE)
    assert caught.value.code == "quota_exceeded"
    assert "at most 8 more" in caught.value.message
    assert len(await office.services.clusters.list(tenant)) == 1
    await _order(office, tenant, "three", SIZE)  # exactly what is left


async def test_both_classes_are_counted_apart(office: Office, tenant: Caller, operator: Caller) -> None:
    await _limit(office, operator, preemptible=2 * SIZE)
    made = await _order(office, tenant, "one", 4 * SIZE, target=2 * SIZE)
    with pytest.raises(Conflict, match="16 preemptible GPUs"):
        await _resize(office, tenant, made, num_preemptible_gpus=3 * SIZE)
    await _resize(office, tenant, made, num_gpus=6 * SIZE)
    with pytest.raises(Conflict, match="quota"):
        await _order(office, tenant, "two", SIZE, target=SIZE)
    await _order(office, tenant, "two", SIZE)


async def test_an_update_that_is_refused_changes_nothing(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    made = await _order(office, tenant, "one", SIZE)
    await _limit(office, operator, standard=2 * SIZE, preemptible=0)
    with pytest.raises(Conflict):
        await _resize(office, tenant, made, num_gpus=2 * SIZE, num_preemptible_gpus=SIZE)
    found = await office.services.clusters.retrieve(tenant, made.id)
    assert (found.num_gpus, found.desired_preemptible_gpus) == (SIZE, 0)


async def test_lowering_passes_under_any_quota(office: Office, tenant: Caller, operator: Caller) -> None:
    """A quota set below what is ordered takes nothing away; it only stops more."""
    made = await _order(office, tenant, "one", 3 * SIZE, target=3 * SIZE)
    await _limit(office, operator, standard=SIZE, preemptible=0)
    await _resize(office, tenant, made, num_gpus=2 * SIZE, num_preemptible_gpus=SIZE)
    with pytest.raises(Conflict):
        await _resize(office, tenant, made, num_gpus=3 * SIZE)
    await _resize(office, tenant, made, num_preemptible_gpus=0)
    await _limit(office, operator, standard=None)
    await _resize(office, tenant, made, num_gpus=3 * SIZE)


async def test_what_is_left_is_not_shared_by_orders_made_at_once(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    await _limit(office, operator, standard=3 * SIZE)
    answers = await asyncio.gather(
        *(_order(office, tenant, f"c{number}", SIZE) for number in range(8)), return_exceptions=True
    )
    assert [type(one) for one in answers].count(ClusterDetails) == 3
    assert {one.code for one in answers if isinstance(one, Conflict)} == {"quota_exceeded"}
    assert sum(one.num_gpus for one in await office.services.clusters.list(tenant)) == 3 * SIZE


async def test_a_create_and_an_update_at_once_do_not_share_it_either(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    made = await _order(office, tenant, "one", SIZE)
    await _limit(office, operator, preemptible=2 * SIZE)
    answers = await asyncio.gather(
        _resize(office, tenant, made, num_preemptible_gpus=2 * SIZE),
        _order(office, tenant, "two", SIZE, target=2 * SIZE),
        return_exceptions=True,
    )
    assert [isinstance(one, Conflict) for one in answers].count(True) == 1


async def test_a_deleted_cluster_frees_its_quota_once(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    """E12: at the delete, and not again when its nodes have gone, however often it is asked for."""
    await _limit(office, operator, standard=2 * SIZE)
    made = await _order(office, tenant, "one", 2 * SIZE)
    await _joined(office)
    for _ in range(3):
        await office.services.clusters.delete(tenant, made.id)
    await _order(office, tenant, "two", 2 * SIZE)
    async with office.db.transaction() as tx:
        await all_leave(tx)
    with pytest.raises(Conflict, match="16 are ordered"):
        await _order(office, tenant, "three", SIZE)


async def test_a_lowered_target_frees_its_quota_once(
    office: Office, tenant: Caller, operator: Caller
) -> None:
    """E12: with the wish, while the nodes still drain."""
    await _limit(office, operator, preemptible=2 * SIZE)
    made = await _order(office, tenant, "one", SIZE, target=2 * SIZE)
    await _joined(office)
    for _ in range(3):
        await _resize(office, tenant, made, num_preemptible_gpus=SIZE)
    await _order(office, tenant, "two", SIZE, target=SIZE)
    async with office.db.transaction() as tx:
        await all_leave(tx)
    with pytest.raises(Conflict, match="16 are ordered"):
        await _resize(office, tenant, made, num_preemptible_gpus=2 * SIZE)


async def test_a_preempted_node_frees_nothing(office: Office, tenant: Caller, operator: Caller) -> None:
    """The wish stays, and will be filled again: what a reclaim takes is not there for another order."""
    await _limit(office, operator, preemptible=2 * SIZE)
    await _order(office, tenant, "one", SIZE, target=2 * SIZE)
    await _joined(office)
    assert len(await office.services.fleet.reclaim(operator, POOL, 2, "why not")) == 2
    async with office.db.transaction() as tx:
        await all_leave(tx)
    with pytest.raises(Conflict, match="quota"):
        await _order(office, tenant, "two", SIZE, target=SIZE)


async def test_another_projects_orders_do_not_count(
    office: Office, tenant: Caller, other: Caller, operator: Caller
) -> None:
    await _limit(office, operator, standard=SIZE)
    await _order(office, other, "theirs", 4 * SIZE)
    await _order(office, tenant, "mine", SIZE)
