"""What is free now, as each caller may know it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from ebbtide.services.details import Caller, Replay
from ebbtide.services.fleet_file import PoolSpec
from ebbtide.services.supply import Offer
from ebbtide.settings import Settings
from tests.builders import (
    GPU_TYPE,
    REGION,
    SIZE,
    Office,
    a_fleet,
    a_pool,
    all_join,
    an_office,
    an_order,
    control_planes_are_ready,
    one_plan,
)


@pytest.fixture
async def offices(database_url: str) -> AsyncIterator[Open]:
    opened = Open(database_url)
    yield opened
    for manager in opened.managers:
        await manager.__aexit__(None, None, None)


class Open:
    """await open_(pools): an office over these pools."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.managers: list[object] = []

    async def __call__(self, *pools: PoolSpec, **settings: int) -> Office:
        manager = an_office(self._url, a_fleet(*pools), settings=replace(Settings(), **settings))  # type: ignore[arg-type]  # the class checks the names
        self.managers.append(manager)
        return await manager.__aenter__()


async def told(office: Office, caller: Caller, **words: str) -> Sequence[Offer]:
    return (await office.services.supply.now(caller, **words)).offers


async def gpus(office: Office, caller: Caller) -> tuple[int, int]:
    (offer,) = await told(office, caller)
    return offer.standard_gpus, offer.preemptible_gpus


async def ordered(office: Office, caller: Caller, hosts: int, target: int = 0, name: str = "demo") -> str:
    order = an_order(name, gpus=hosts * SIZE, target=target * SIZE)
    made = await office.services.clusters.create(caller, order, Replay(name))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
    return made.id


async def test_an_order_displaces_and_a_target_does_not(offices: Open) -> None:
    office = await offices(a_pool(6))
    acme, beta = await office.caller("acme"), await office.caller("beta")
    assert await gpus(office, beta) == (48, 48)
    await ordered(office, acme, hosts=1, target=3)
    assert await gpus(office, beta) == (40, 16)
    await ordered(office, acme, hosts=1, target=64, name="greedy")
    assert await gpus(office, beta) == (32, 0)


async def test_what_is_told_as_standard_is_what_an_order_is_granted(offices: Open) -> None:
    office = await offices(a_pool(5, headroom=2))
    acme, beta = await office.caller("acme"), await office.caller("beta")
    assert await gpus(office, beta) == (40, 24)
    await ordered(office, acme, hosts=1, target=2)
    standard, _ = await gpus(office, beta)
    await office.services.clusters.create(beta, an_order("all", gpus=standard), Replay("all"))
    assert await gpus(office, beta) == (0, 0)


async def test_tenants_are_told_of_so_many_and_operators_of_all(offices: Open) -> None:
    """So a tenant learns neither how large the fleet is, nor when somebody else orders amid plenty."""
    office = await offices(a_pool(12), capacity_shown_gpus=33)
    acme, beta = await office.caller("acme"), await office.caller("beta")
    (offer,) = before = await told(office, beta)
    assert (offer.standard_gpus, offer.standard_more) == (32, True)
    assert (offer.preemptible_gpus, offer.preemptible_more) == (32, True)
    await ordered(office, acme, hosts=2, target=3)
    assert await told(office, beta) == before
    (all_,) = await told(office, await office.operator())
    assert (all_.standard_gpus, all_.standard_more) == (80, False)
    assert (all_.preemptible_gpus, all_.preemptible_more) == (56, False)
    await ordered(office, acme, hosts=7, name="big")
    (offer,) = await told(office, beta)
    assert (offer.standard_gpus, offer.standard_more) == (24, False)


async def test_a_cluster_lives_in_one_pool_so_pools_are_not_added_up(offices: Open) -> None:
    office = await offices(
        a_pool(2, name="a"),
        a_pool(3, name="b"),
        a_pool(1, name="c", gpu_type="H200_SXM", dollars=4.0),
        a_pool(1, name="d", region="us-1", dollars=None),
    )
    caller = await office.caller()
    offers = {(one.region, one.gpu_type): one for one in await told(office, caller)}
    assert set(offers) == {(REGION, GPU_TYPE), (REGION, "H200_SXM"), ("us-1", GPU_TYPE)}
    assert offers[REGION, GPU_TYPE].standard_gpus == 3 * SIZE
    priced = offers[REGION, "H200_SXM"]
    assert priced.microdollars_per_gpu_hour == 4_000_000
    assert priced.preemptible_microdollars_per_gpu_hour == 2_000_000
    assert offers["us-1", GPU_TYPE].microdollars_per_gpu_hour is None
    assert len(await told(office, caller, region=REGION)) == 2
    assert len(await told(office, caller, gpu_type=GPU_TYPE, region="us-1")) == 1
    assert await told(office, caller, region="nowhere") == ()


async def test_a_quota_is_told_to_its_own_project(offices: Open) -> None:
    office = await offices(a_pool(6))
    acme, beta = await office.caller("acme"), await office.caller("beta")
    limits = {"standard_gpus_limit": 24, "preemptible_gpus_limit": 8}
    await office.services.access.set_project(await office.operator(), "acme", limits)
    await ordered(office, acme, hosts=1, target=1)
    left = (await office.services.supply.now(acme)).quota
    assert (left.standard_gpus, left.preemptible_gpus) == (16, 0)
    free = (await office.services.supply.now(beta)).quota
    assert (free.standard_gpus, free.preemptible_gpus) == (None, None)


async def test_nothing_of_others_but_sums_is_told(offices: Open) -> None:
    office = await offices(a_pool(6), history_samples=1)
    acme, beta = await office.caller("acme"), await office.caller("beta")
    cluster_id = await ordered(office, acme, hosts=1, target=2, name="secret-name")
    supply = office.services.supply
    text = f"{await supply.now(beta)} {await supply.history(beta)}"
    for private in ("secret-name", cluster_id, acme.project_id, "acme"):
        assert private not in text
