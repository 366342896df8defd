"""The fleet file at run time, and the operator's hand on hosts: a lent host is never forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from ebbtide.core.nodes import Phase
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.services.details import Caller, HostDetails, Replay
from ebbtide.services.fleet_file import FleetFile, RegionSpec
from ebbtide.store import fleet, visits
from ebbtide.store.visits import Finish, Loop
from tests.builders import (
    POOL,
    SIZE,
    Office,
    a_fleet,
    a_pool,
    all_join,
    all_leave,
    an_order,
    control_planes_are_ready,
    one_plan,
    promises_kept,
    rows,
)

NAMES = [f"{POOL}-{number:05}" for number in range(4)]


async def _hosts(office: Office, operator: Caller) -> dict[str, HostDetails]:
    return {host.name: host for host in await office.services.fleet.hosts(operator)}


async def _lend(office: Office, count: int = 1) -> list[str]:
    """A tenant's cluster with so many standard nodes; the names of its hosts."""
    tenant = await office.caller("acme")
    made = await office.services.clusters.create(tenant, an_order(gpus=count * SIZE), Replay("x"))
    return [node.host_name or "" for node in made.nodes]


async def test_regions_pools_and_hosts_are_added_at_run_time(office: Office, operator: Caller) -> None:
    bigger = a_fleet(a_pool(6), a_pool(2, name="b200", region="us-2", gpu_type="B200_SXM"))
    changes = await office.services.fleet.apply_file(bigger)
    assert any("2 hosts added" in one for one in changes.done)
    assert {"region us-2 added", "pool b200 added"} <= set(changes.done)
    regions = {region.name: region.gpu_types for region in await office.services.clusters.regions()}
    assert regions == {"eu-1": ("H100_SXM",), "us-2": ("B200_SXM",)}
    order = an_order(region="us-2", gpu_type="B200_SXM", gpus=16)
    made = await office.services.clusters.create(await office.caller(), order, Replay("x"))
    assert made.pool == "b200"


async def test_the_same_file_again_changes_nothing(office: Office, operator: Caller) -> None:
    before = await _hosts(office, operator)
    again = await asyncio.gather(*(office.services.fleet.apply_file(a_fleet()) for _ in range(4)))
    assert {(one.done, one.kept) for one in again} == {((), ())}
    assert await _hosts(office, operator) == before


async def test_a_lent_host_that_is_not_listed_stays_until_it_is_free_and_may_come_back(
    office: Office, operator: Caller
) -> None:
    (lent,) = await _lend(office)
    without = a_fleet(a_pool([name for name in NAMES if name != lent]))
    changes = await office.services.fleet.apply_file(without)
    assert [lent in one for one in changes.kept] == [True]
    seen = (await _hosts(office, operator))[lent]
    assert (seen.state, seen.lent_to) == ("retired", "demo")
    pool = (await office.services.fleet.pools(operator))[0]
    assert sum(pool.counts.values()) == pool.hosts == 4  # it is in a bucket as long as somebody has it
    changes = await office.services.fleet.apply_file(a_fleet())
    assert f"host {lent} is back in the inventory" in changes.done
    assert (await _hosts(office, operator))[lent].state == "available"


async def test_once_free_an_unlisted_host_is_out_and_is_lent_to_nobody(
    office: Office, operator: Caller
) -> None:
    (lent,) = await _lend(office)
    await office.services.fleet.apply_file(a_fleet(a_pool([name for name in NAMES if name != lent])))
    tenant = await office.caller("acme")
    (cluster,) = await office.services.clusters.list(tenant)
    await office.services.clusters.delete(tenant, cluster.id)
    async with office.db.transaction() as tx:
        await all_leave(tx)
    assert lent not in await _hosts(office, operator)
    with pytest.raises(Conflict, match="24 free"):
        await office.services.clusters.create(tenant, an_order(gpus=4 * SIZE), Replay("y"))


async def test_a_host_that_comes_back_is_as_cordoned_or_quarantined_as_it_was(
    office: Office, operator: Caller
) -> None:
    service = office.services.fleet
    await service.set_cordon(operator, NAMES[0], cordoned=True, reason="fans")
    async with office.db.transaction() as tx:
        await fleet.quarantine(tx, (await _hosts(office, operator))[NAMES[1]].id, "3 boots in a row failed")
    for _ in range(2):
        await service.apply_file(a_fleet(a_pool(NAMES[3:])))
        changes = await service.apply_file(a_fleet())
    assert {
        f"host {NAMES[0]} is back in the inventory, still cordoned",
        f"host {NAMES[1]} is back in the inventory, still quarantined",
        f"host {NAMES[2]} is back in the inventory",
    } == set(changes.done)
    hosts = await _hosts(office, operator)
    assert [(hosts[name].state, hosts[name].state_reason) for name in NAMES] == [
        ("cordoned", "fans"),
        ("quarantined", "3 boots in a row failed"),
        ("available", None),
        ("available", None),
    ]


async def test_a_host_in_maintenance_that_the_file_drops_leaves_and_comes_back_cordoned(
    office: Office, operator: Caller
) -> None:
    await office.services.hosts.drain(operator, NAMES[0], "fans")
    changes = await office.services.fleet.apply_file(a_fleet(a_pool(NAMES[1:])))
    assert changes.done == (f"host {NAMES[0]} retired",)
    async with office.db.transaction() as tx:
        await all_leave(tx)
    assert NAMES[0] not in await _hosts(office, operator)
    await office.services.fleet.apply_file(a_fleet())
    seen = await office.services.hosts.show(operator, NAMES[0])
    assert (seen.host.state, seen.host.state_reason) == ("cordoned", "maintenance: fans")
    assert seen.maintenance is not None
    assert seen.maintenance.ended_how == "removed"


async def test_the_file_leaves_alone_what_the_api_added_until_it_lists_it(
    office: Office, operator: Caller
) -> None:
    await office.services.hosts.add(operator, "spare-1", POOL)
    assert (await office.services.fleet.apply_file(a_fleet())).done == ()
    assert (await _hosts(office, operator))["spare-1"].source == "api"
    await office.services.fleet.apply_file(a_fleet(a_pool([*NAMES, "spare-1"])))
    assert (await _hosts(office, operator))["spare-1"].source == "file"
    changes = await office.services.fleet.apply_file(a_fleet())
    assert changes.done == ("host spare-1 retired",)


async def test_hosts_that_leave_while_they_are_promised_are_made_good_elsewhere(
    office: Office, operator: Caller
) -> None:
    """A pool that the file drops plans again, too: what it promised must come from somewhere."""
    borrower = await office.caller("borrower")
    await office.services.clusters.create(borrower, an_order("big", target=800), Replay("big"))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
    await office.services.claims.create(operator, POOL, 1, "r", "x")
    async with office.db.transaction() as tx:
        (visit,) = await visits.claim(tx, Loop.FULFILLMENT, "me", limit=9, lease_s=60)
        await visits.finish(tx, [Finish(visit, "planned", None)])
    other = a_fleet(a_pool(1, name="another"))
    await office.services.fleet.apply_file(other)
    async with office.db.read() as tx:
        (row,) = await rows(tx, "visits", "loop = 'fulfillment' AND key = :pool", pool=POOL)
    assert row["due_at"] is not None


async def test_a_free_host_moves_to_another_pool_and_a_lent_one_stays(
    office: Office, operator: Caller
) -> None:
    (lent,) = await _lend(office)
    free = next(name for name in NAMES if name != lent)
    rest = [name for name in NAMES if name not in (lent, free)]
    changes = await office.services.fleet.apply_file(
        a_fleet(a_pool(rest), a_pool([lent, free], name="other", gpu_type="H200"))
    )
    hosts = await _hosts(office, operator)
    assert (hosts[lent].pool, hosts[free].pool) == (POOL, "other")
    assert any(lent in one for one in changes.kept)
    async with office.db.read() as tx:
        await promises_kept(tx)


async def test_what_clusters_were_promised_cannot_change_while_they_use_it(
    office: Office, operator: Caller
) -> None:
    await _lend(office)
    for changed in (
        a_pool(4, gpus_per_host=4),
        a_pool(4, gpu_type="OTHER"),
        a_pool(4, region="elsewhere"),
    ):
        with pytest.raises(BadInput, match="cannot change while"):
            await office.services.fleet.apply_file(a_fleet(changed, a_pool(1, name="more")))
    assert [pool.name for pool in await office.services.fleet.pools(operator)] == [POOL]  # all or nothing
    await office.services.fleet.apply_file(a_fleet(a_pool(4, headroom=2)))
    (pool,) = await office.services.fleet.pools(operator)
    assert pool.headroom_hosts == 2


async def test_an_unused_pool_may_change_and_retire_with_its_region(office: Office, operator: Caller) -> None:
    await office.services.fleet.apply_file(a_fleet(a_pool(4, gpus_per_host=4)))
    (pool,) = await office.services.fleet.pools(operator)
    assert pool.gpus_per_host == 4
    changes = await office.services.fleet.apply_file(a_fleet(a_pool(1, name="new", region="us-2")))
    assert {f"pool {POOL} retired", "region eu-1 retired"} <= set(changes.done)
    assert [region.name for region in await office.services.clusters.regions()] == ["us-2"]
    with pytest.raises(BadInput, match="no region 'eu-1'"):
        await office.services.clusters.create(await office.caller(), an_order(), Replay("x"))
    back = await office.services.fleet.apply_file(a_fleet())
    assert any("is back in the inventory" in one for one in back.done)
    assert len(await _hosts(office, operator)) == 4


async def test_a_pool_in_use_that_is_not_listed_stays(office: Office, operator: Caller) -> None:
    (lent,) = await _lend(office)
    changes = await office.services.fleet.apply_file(a_fleet(a_pool(1, name="new", region="us-2")))
    assert f"pool {POOL} stays while it has lent hosts or clusters" in changes.kept
    assert {pool.name for pool in await office.services.fleet.pools(operator)} == {POOL, "new"}
    assert set(await _hosts(office, operator)) == {lent, "new-00000"}


async def test_a_new_price_counts_from_now_on(office: Office, operator: Caller) -> None:
    await office.services.fleet.apply_file(a_fleet(a_pool(4, dollars=3.0)))
    (pool,) = await office.services.fleet.pools(operator)
    assert (pool.microdollars_per_gpu_hour, pool.preemptible_microdollars_per_gpu_hour) == (
        3_000_000,
        1_500_000,
    )
    changes = await office.services.fleet.apply_file(a_fleet(a_pool(4, dollars=None)))
    assert changes.done == ()  # a file without a price leaves the price alone


async def test_driver_versions_are_the_files(office: Office, operator: Caller) -> None:
    file = a_fleet()
    changed = FleetFile(
        (RegionSpec("eu-1", (replace(file.regions[0].driver_versions[0], id="v2"),)),), file.pools
    )
    changes = await office.services.fleet.apply_file(changed)
    assert changes.done == (
        "region eu-1: driver versions are v2/12.8/570/ubuntu-22.04 (were v1/12.8/570/ubuntu-22.04)",
    )
    (told,) = await office.services.audit.read(operator, limit=1)
    assert told.after == {"done": list(changes.done), "kept": []}
    assert (await office.services.fleet.apply_file(changed)).done == ()
    (region,) = await office.services.clusters.regions()
    assert [version.id for version in region.driver_versions] == ["v2"]


async def test_a_cordoned_host_gets_nobody_new_and_a_reload_does_not_free_it(
    office: Office, operator: Caller
) -> None:
    fleet = office.services.fleet
    for name in NAMES[:3]:
        seen = await fleet.set_cordon(operator, name, cordoned=True, reason="fans")
        assert (seen.state, seen.state_reason, seen.bucket) == ("cordoned", "fans", "cordoned")
    await fleet.apply_file(a_fleet())
    assert await _lend(office) == [NAMES[3]]
    with pytest.raises(Conflict):
        await office.services.claims.create(operator, POOL, 1, "r", "x")
    assert (await fleet.set_cordon(operator, NAMES[0], cordoned=False)).bucket == "free"
    assert (await office.services.claims.create(operator, POOL, 1, "r", "x")).given == (NAMES[0],)


async def test_cordoning_leaves_the_present_occupant_alone(office: Office, operator: Caller) -> None:
    (lent,) = await _lend(office)
    seen = await office.services.fleet.set_cordon(operator, lent, cordoned=True)
    assert seen.lent_to == "demo"
    assert [node.phase for node in await office.services.fleet.nodes(operator)] == [Phase.SCHEDULING]


async def test_there_is_no_such_host_or_pool(office: Office, operator: Caller) -> None:
    with pytest.raises(NotFound):
        await office.services.fleet.set_cordon(operator, "nowhere", cordoned=True)
    with pytest.raises(NotFound):
        await office.services.fleet.reclaim(operator, "nowhere", 1, "x")
    with pytest.raises(BadInput):
        await office.services.fleet.reclaim(operator, POOL, 0, "x")


async def test_every_host_is_in_one_bucket(office: Office, operator: Caller) -> None:
    await _lend(office)
    await office.services.claims.create(operator, POOL, 1, "r", "x")
    free = next(h.name for h in (await _hosts(office, operator)).values() if h.bucket == "free")
    await office.services.fleet.set_cordon(operator, free, cordoned=True)
    (pool,) = await office.services.fleet.pools(operator)
    seen = Counter(host.bucket for host in (await _hosts(office, operator)).values())
    assert {name: number for name, number in pool.counts.items() if number} == dict(seen)
    assert seen == {"turning_over": 1, "external": 1, "cordoned": 1, "free": 1}


async def test_the_fleet_is_the_operators(office: Office, tenant: Caller) -> None:
    fleet, hosts = office.services.fleet, office.services.hosts
    for attempt in (
        fleet.pools(tenant),
        fleet.hosts(tenant),
        fleet.nodes(tenant),
        fleet.ownership(tenant),
        fleet.reclaim(tenant, POOL, 1, "x"),
        fleet.set_cordon(tenant, NAMES[0], cordoned=True),
        fleet.apply(tenant, "regions: {}"),
        hosts.show(tenant, NAMES[0]),
        hosts.add(tenant, "spare-1", POOL),
        hosts.drain(tenant, NAMES[0], "x"),
        hosts.give_back(tenant, NAMES[0]),
        hosts.remove(tenant, NAMES[0]),
    ):
        with pytest.raises(Forbidden):
            await attempt


async def test_a_file_with_a_fault_changes_nothing(office: Office, operator: Caller) -> None:
    before = await office.services.fleet.pools(operator)
    with pytest.raises(BadInput, match=r"fleet\.yaml"):
        await office.services.fleet.apply(operator, "regions: {eu-9: {}}\npools: {x: {region: eu-8}}")
    assert await office.services.fleet.pools(operator) == before


async def test_a_host_that_moves_pools_while_orders_come_is_never_lost(
    office: Office, operator: Caller
) -> None:
    """Files that move hosts to and fro, and orders for both pools, at once: every host has one place."""
    tenant = await office.caller()
    here = a_fleet(a_pool(NAMES), a_pool(1, name="a-pool", gpu_type="A"))
    there = a_fleet(a_pool(NAMES[:2]), a_pool(["a-pool-00000", *NAMES[2:]], name="a-pool", gpu_type="A"))
    orders = [an_order(f"c{n}", gpu_type="A" if n % 2 else "H100_SXM") for n in range(10)]
    answers = await asyncio.gather(
        *(office.services.fleet.apply_file(file) for file in (here, there) * 4),
        *(office.services.clusters.create(tenant, one, Replay(one.cluster_name)) for one in orders),
        return_exceptions=True,
    )
    odd = [one for one in answers if isinstance(one, Exception) and not isinstance(one, Conflict | BadInput)]
    assert not odd, odd[:2]
    async with office.db.read() as tx:
        for pool in (POOL, "a-pool"):
            await promises_kept(tx, pool)
    hosts = await office.services.fleet.hosts(operator)
    assert len(hosts) == 5
    nodes = {node.uid: node for node in await office.services.fleet.nodes(operator)}
    clusters = {one.id: one.pool for one in await office.services.clusters.list(operator)}
    assert all(
        host.pool == clusters[nodes[host.node_uid].cluster_id or ""] for host in hosts if host.node_uid
    )
