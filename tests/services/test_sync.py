"""Inventory from the operator's own source: the same as a fleet file, and careful with what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import BadInput, Forbidden, NotFound
from ebbtide.services.details import Caller, Replay
from ebbtide.services.sync import SyncReport
from tests.builders import POOL, SIZE, Office, a_fleet, a_pool, an_order, one_plan, rows

FILE_HOSTS = [f"{POOL}-{number:05}" for number in range(4)]
TEN = [f"n-{number:02}" for number in range(10)]


async def sync(office: Office, operator: Caller, inventory: Any, **options: Any) -> SyncReport:
    return await office.services.sync.inventory(operator, json.dumps(inventory), **options)


async def names(office: Office, operator: Caller, source: str | None = None) -> list[str]:
    hosts = await office.services.fleet.hosts(operator, POOL)
    return [host.name for host in hosts if host.state != "retired" and source in (None, host.source)]


def two_pools(hosts: list[str], new_hosts: list[str]) -> dict[str, Any]:
    """A whole fleet: the usual pool, and one that is new, with the hosts given."""
    pool = {"region": "eu-1", "gpus_per_host": SIZE}
    usual, new = pool | {"gpu_type": "H100_SXM"}, pool | {"gpu_type": "H200_SXM"}
    pools = {POOL: usual | {"hosts": hosts}, "new": new | {"hosts": new_hosts}}
    return {"regions": {"eu-1": {}}, "pools": pools}


async def test_hosts_of_a_pool_come_from_elsewhere_beside_those_of_the_file(
    office: Office, operator: Caller
) -> None:
    report = await sync(office, operator, [*TEN[:2], {"name": TEN[2], "fabric_block": "rack-7"}], pool=POOL)
    assert report.done == (f"pool {POOL}: 3 hosts added (n-00, n-01, n-02)",)
    assert set(await names(office, operator)) == {*FILE_HOSTS, *TEN[:3]}
    again = await sync(
        office, operator, {"hosts": [*TEN[:2], {"name": TEN[2], "fabric_block": "rack-7"}]}, pool=POOL
    )
    assert (again.done, again.kept) == ((), ())
    less = await sync(office, operator, {"hosts": TEN[:2]}, pool=POOL)
    assert less.done == ("host n-02 retired",)
    assert set(await names(office, operator)) == {*FILE_HOSTS, *TEN[:2]}


async def test_a_dry_run_changes_nothing(office: Office, operator: Caller) -> None:
    before = await names(office, operator)
    report = await sync(office, operator, TEN, pool=POOL, dry_run=True)
    assert report.dry_run
    assert "10 hosts added" in report.done[0]
    assert await names(office, operator) == before
    assert not [one for one in await office.services.audit.read(operator) if one.action == "fleet.sync"]


@pytest.mark.parametrize(
    ("keeps", "percent", "refused"),
    [
        (9, 20, False),
        (8, 20, False),
        (7, 20, True),
        (0, 20, True),
        (9, 0, False),  # one may always leave
        (8, 0, True),
        (0, 100, False),
    ],
)
async def test_an_inventory_that_answers_with_little_empties_no_fleet(
    office: Office, operator: Caller, keeps: int, percent: int, refused: bool
) -> None:
    await sync(office, operator, TEN, pool=POOL)
    given = sync(office, operator, TEN[:keeps], pool=POOL, most_removed_percent=percent)
    if refused:
        with pytest.raises(BadInput, match=rf"{10 - keeps} of 10 hosts of pool {POOL} are no longer listed"):
            await given
        assert len(await names(office, operator, "sync")) == 10
    else:
        await given
        assert len(await names(office, operator, "sync")) == keeps


async def test_the_last_host_of_a_pool_leaves_only_when_told(office: Office, operator: Caller) -> None:
    await sync(office, operator, TEN[:1], pool=POOL)
    with pytest.raises(BadInput, match="1 of 1 hosts"):
        await sync(office, operator, [], pool=POOL)


async def test_new_hosts_do_not_make_up_for_those_that_leave(office: Office, operator: Caller) -> None:
    await sync(office, operator, TEN, pool=POOL)
    with pytest.raises(BadInput, match="10 of 10 hosts"):
        await sync(office, operator, [f"other-{number:03}" for number in range(90)], pool=POOL)


async def test_hosts_that_move_to_another_pool_leave_the_one_they_were_in(
    office: Office, operator: Caller
) -> None:
    whole = two_pools(FILE_HOSTS[:1], FILE_HOSTS[1:])
    with pytest.raises(
        BadInput,
        match=rf"3 of 4 hosts of pool {POOL} are no longer listed or listed in another pool, more than",
    ):
        await sync(office, operator, whole)
    assert await names(office, operator) == FILE_HOSTS
    report = await sync(office, operator, whole, most_removed_percent=75)
    assert f"host {FILE_HOSTS[3]} is now in pool new, block default" in report.done
    assert await names(office, operator) == FILE_HOSTS[:1]


async def test_hosts_of_another_list_move_as_well(office: Office, operator: Caller) -> None:
    """Those that the list could not let go count among those that were there once they move."""
    await sync(office, operator, TEN, pool=POOL)
    whole = two_pools(FILE_HOSTS, TEN[:2])
    with pytest.raises(BadInput, match=rf"2 of 6 hosts of pool {POOL} are no longer listed or listed in"):
        await sync(office, operator, whole)
    await sync(office, operator, whole, most_removed_percent=34)
    assert set(await names(office, operator, "sync")) == set(TEN[2:])


async def test_one_pools_inventory_takes_no_hosts_of_others(office: Office, operator: Caller) -> None:
    """Not from another pool, as when `--pool` names the wrong one, and not from another list of this pool."""
    await office.services.fleet.apply_file(a_fleet(a_pool(), a_pool(["z-1"], name="another")))
    await office.services.hosts.add(operator, "by-hand", POOL)
    for host, said in (
        (
            "z-1",
            "1 hosts that are listed are known otherwise: z-1 (pool another, of the fleet file). Nothing",
        ),
        (FILE_HOSTS[0], f"{FILE_HOSTS[0]} (pool {POOL}, of the fleet file)"),
        ("by-hand", f"by-hand (pool {POOL}, added by hand)"),
    ):
        with pytest.raises(BadInput) as refused:
            await sync(office, operator, [*TEN, host], pool=POOL)
        assert said in refused.value.message
        assert refused.value.code == "hosts_of_others"
    assert await names(office, operator, "sync") == []
    async with office.db.transaction() as tx:
        await tx.conn.execute(sa.text("DELETE FROM visits"))
    await sync(office, operator, [*TEN, "z-1", "by-hand"], pool=POOL, most_removed_percent=100)
    assert set(await names(office, operator, "sync")) == {*TEN, "z-1", "by-hand"}
    async with office.db.read() as tx:
        woken = await rows(tx, "visits", "loop = 'fulfillment'")
    assert {row["key"] for row in woken} == {POOL, "another"}


async def test_a_whole_fleet_as_json(office: Office, operator: Caller) -> None:
    """The fleet file's structure; a pool that is missing counts as all its hosts missing."""
    pool = {"region": "eu-1", "gpu_type": "H100_SXM", "gpus_per_host": SIZE, "hosts": FILE_HOSTS}
    whole = {"regions": {"eu-1": {}}, "pools": {POOL: pool}}
    report = await sync(office, operator, whole, dry_run=True)
    assert not [one for one in report.done if "retired" in one]
    with pytest.raises(BadInput, match=f"4 of 4 hosts of pool {POOL} are no longer listed, more than 20 %"):
        await sync(office, operator, {"regions": {"eu-1": {}}, "pools": {"new": pool | {"hosts": ["a"]}}})
    changed = whole | {"pools": {POOL: pool | {"headroom_hosts": 1, "wipe": "never"}}}
    report = await sync(office, operator, changed)
    assert f"pool {POOL}: headroom_hosts is 1 (was 0)" in report.done
    assert f"pool {POOL}: wipe is never (was always)" in report.done


async def test_a_lent_host_is_kept_until_it_is_free(office: Office, operator: Caller) -> None:
    await sync(office, operator, TEN, pool=POOL)
    cluster = an_order(gpus=14 * SIZE)
    await office.services.clusters.create(await office.caller("acme"), cluster, Replay("x"))
    await one_plan(office)
    report = await sync(office, operator, TEN[:9], pool=POOL)
    assert report.kept == ("host n-09 leaves when it is free",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the inventory must be a list of hosts, or an object with `hosts`, not nothing"),
        ("5", "not '5'"),
        ("{}", f"pool '{POOL}' has no hosts"),
        ('{"host": []}', "did you mean `hosts`?"),
        ('["UPPER"]', "a host name must be lower-case letters"),
        ('["a", "a"]', "host 'a' is here twice"),
        ("[", "this is not YAML"),
    ],
)
async def test_a_malformed_inventory_is_refused_whole(
    office: Office, operator: Caller, text: str, said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await office.services.sync.inventory(operator, text, pool=POOL)
    assert said in refused.value.message


async def test_who_may_and_where(office: Office, operator: Caller) -> None:
    with pytest.raises(Forbidden):
        await sync(office, await office.caller("acme"), TEN, pool=POOL)
    with pytest.raises(NotFound, match="there is no pool 'nowhere'"):
        await sync(office, operator, TEN, pool="nowhere")
    await office.services.fleet.apply_file(a_fleet(a_pool(), a_pool(0, name="another")))
    await office.services.fleet.apply_file(a_fleet())
    with pytest.raises(NotFound, match="there is no pool 'another'"):  # it is retired
        await sync(office, operator, TEN, pool="another")
    with pytest.raises(BadInput, match="from 0 to 100"):
        await sync(office, operator, TEN, pool=POOL, most_removed_percent=101)
