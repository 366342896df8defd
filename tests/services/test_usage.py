"""The bill: sealed time only, cut where prices change, half price to the micro-dollar."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.errors import BadInput
from ebbtide.services.details import Caller, ClusterChange, Replay, Usage
from ebbtide.store import clusters, intervals, ledger, nodes
from ebbtide.store.ledger import LedgerRow
from ebbtide.store.nodes import Move
from tests.builders import (
    SIZE,
    START,
    Office,
    a_fleet,
    a_pool,
    all_join,
    an_office,
    an_order,
    control_planes_are_ready,
    one_plan,
)

DAY = timedelta(days=1)
HOUR_S = 3_600


async def _running(office: Office, caller: Caller, target: int = SIZE) -> str:
    """A cluster with one standard and perhaps one preemptible node, running from START on."""
    made = await office.services.clusters.create(caller, an_order(target=target), Replay("x"))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
    return made.id


async def _observed(office: Office, seconds: int) -> None:
    """Time passes, and all clusters are seen well at its end."""
    office.clock.advance(seconds)
    async with office.db.transaction() as tx:
        await clusters.mark_observed(tx, {row.id: tx.now for row in await clusters.live(tx)})


async def _read(
    office: Office,
    caller: Caller,
    since: datetime = START - DAY,
    until: datetime = START + DAY,
    by: str = "cluster",
) -> Usage:
    return await office.services.usage.read(caller, since, until, by=by)


async def test_an_hour_of_each_class_at_its_price(office: Office, tenant: Caller) -> None:
    await _running(office, tenant)
    await _observed(office, HOUR_S)
    standard, preemptible = (await _read(office, tenant)).lines
    assert (standard.compute_class, preemptible.compute_class) == ("standard", "preemptible")
    assert standard.gpu_seconds == preemptible.gpu_seconds == 8 * HOUR_S
    assert (standard.microdollars, preemptible.microdollars) == (16_000_000, 8_000_000)
    assert (standard.saved_microdollars, preemptible.saved_microdollars) == (0, 8_000_000)


async def test_only_what_was_seen_is_billed(office: Office, tenant: Caller) -> None:
    await _running(office, tenant, target=0)
    await _observed(office, 100)
    office.clock.advance(500)  # nobody looks
    usage = await _read(office, tenant)
    assert [line.node_seconds for line in usage.lines] == [100]
    assert usage.sealed_until == START + timedelta(seconds=100)


async def test_by_node_and_by_cluster_are_the_same_time(office: Office, tenant: Caller) -> None:
    cluster = await _running(office, tenant, target=2 * SIZE)
    await _observed(office, 777)
    await office.services.clusters.update(tenant, cluster, ClusterChange(num_preemptible_gpus=SIZE))
    await _observed(office, 200)
    coarse, fine = await _read(office, tenant), await _read(office, tenant, by="node")
    assert [line.node_name for line in coarse.lines] == [None, None]
    assert len({line.node_name for line in fine.lines}) == 3
    assert sum(line.gpu_seconds for line in coarse.lines) == sum(line.gpu_seconds for line in fine.lines)


async def test_a_new_price_splits_the_line_at_its_second(office: Office, tenant: Caller) -> None:
    await _running(office, tenant)
    await _observed(office, 600)
    await office.services.fleet.apply_file(a_fleet(a_pool(4, dollars=6.0)))
    await _observed(office, 300)
    found = (await _read(office, tenant)).lines
    lines = [(one.compute_class, one.microdollars_per_gpu_hour, one.node_seconds) for one in found]
    assert lines == [
        ("standard", 2_000_000, 600),
        ("standard", 6_000_000, 300),
        ("preemptible", 1_000_000, 600),
        ("preemptible", 3_000_000, 300),
    ]


async def test_without_a_price_time_is_unpriced_and_is_priced_from_the_first_on(database_url: str) -> None:
    async with an_office(database_url, a_fleet(a_pool(2, dollars=None))) as office:
        tenant = await office.caller()
        await _running(office, tenant, target=0)
        await _observed(office, 100)
        (line,) = (await _read(office, tenant)).lines
        assert (line.node_seconds, line.microdollars, line.saved_microdollars) == (100, None, None)
        await office.services.fleet.apply_file(a_fleet(a_pool(2, dollars=2.0)))
        await _observed(office, 50)
        priced = [(one.node_seconds, one.microdollars) for one in (await _read(office, tenant)).lines]
        assert sorted(priced, key=str) == [(100, None), (50, 50 * 8 * 2_000_000 // HOUR_S)]


@pytest.mark.parametrize("dollars", [2.39, 0.01, 3.999999, 0.000001])
async def test_half_price_to_the_micro_dollar(database_url: str, dollars: float) -> None:
    async with an_office(database_url, a_fleet(a_pool(2, dollars=dollars))) as office:
        tenant = await office.caller()
        await _running(office, tenant)
        await _observed(office, HOUR_S)
        standard, preemptible = (await _read(office, tenant)).lines
        assert preemptible.microdollars_per_gpu_hour == round(dollars * 1e6) // 2
        assert preemptible.microdollars == 8 * (round(dollars * 1e6) // 2)
        assert standard.microdollars == 8 * round(dollars * 1e6)


async def test_spans_that_meet_add_up(office: Office, tenant: Caller) -> None:
    await _running(office, tenant)
    await _observed(office, 1_000)
    cuts = [START - DAY, START + timedelta(seconds=1), START + timedelta(seconds=333), START + DAY]
    parts = [await _read(office, tenant, since, until) for since, until in itertools.pairwise(cuts)]
    whole = await _read(office, tenant)
    total = sum(line.gpu_seconds for part in parts for line in part.lines)
    assert total == sum(line.gpu_seconds for line in whole.lines) == 2 * 8 * 1_000


async def test_what_has_ended_is_final(office: Office, tenant: Caller) -> None:
    cluster = await _running(office, tenant, target=0)
    await _observed(office, 100)
    office.clock.advance(30)
    async with office.db.transaction() as tx:
        (node,) = await nodes.of_cluster(tx, cluster)
        await nodes.move(
            tx, [Move(node.uid, Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.CLUSTER_DELETED)]
        )
    usage = await _read(office, tenant)
    assert [line.node_seconds for line in usage.lines] == [130]
    assert usage.sealed_until is None  # nothing runs: nothing is left to be proven
    await _observed(office, 1_000)
    assert (await _read(office, tenant)).lines == usage.lines


async def test_credits_are_lines_of_their_own_and_only_their_projects(
    office: Office, tenant: Caller, other: Caller
) -> None:
    cluster = await _running(office, tenant)
    async with office.db.transaction() as tx:
        node = (await nodes.of_cluster(tx, cluster))[1]
        row = LedgerRow(
            f"late-notice/{node.uid}",
            "credit",
            tenant.project_id,
            cluster,
            node.uid,
            480,
            -133,
            "late",
            tx.now,
        )
        await ledger.add(tx, row)
        await ledger.add(tx, row)  # a step that is repeated
    (credit,) = (await _read(office, tenant)).credits
    assert (credit.node_name, credit.microdollars, credit.reason) == (node.name, -133, "late")
    assert (await _read(office, other)).credits == ()
    assert (await _read(office, tenant, START - DAY, START)).credits == ()


async def test_questions_without_sense(office: Office, tenant: Caller) -> None:
    for since, until, by in (
        (START, START, "node"),
        (START, START - DAY, "node"),
        (START, START + DAY, "week"),
    ):
        with pytest.raises(BadInput):
            await _read(office, tenant, since, until, by)


async def test_a_day_that_ended_unobserved_is_not_final(office: Office, tenant: Caller) -> None:
    await _running(office, tenant, target=0)
    await _observed(office, 60)
    midnight = START.replace(hour=0, minute=0, second=0) + DAY
    office.clock.set(midnight + timedelta(seconds=30))
    async with office.db.transaction() as tx:
        assert await intervals.roll_days(tx, 10) == 1
    for until in (midnight, midnight + DAY):
        usage = await _read(office, tenant, until=until)
        assert [line.node_seconds for line in usage.lines] == [60]
        assert usage.sealed_until == START + timedelta(seconds=60)
    await _observed(office, 0)
    whole = await _read(office, tenant, until=midnight)
    assert [line.node_seconds for line in whole.lines] == [int((midnight - START).total_seconds())]
    assert whole.sealed_until is None
