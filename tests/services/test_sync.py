"""Inventory from the operator's own source: the same as a fleet file, and careful with what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.errors import BadInput, Forbidden, NotFound
from ebbtide.services.details import Caller, Replay
from ebbtide.services.sync import SyncReport
from tests.builders import POOL, SIZE, Office, an_order, one_plan

FILE_HOSTS = [f"{POOL}-{number:05}" for number in range(4)]
TEN = [f"n-{number:02}" for number in range(10)]


async def sync(office: Office, operator: Caller, inventory: Any, **options: Any) -> SyncReport:
    return await office.services.sync.inventory(operator, json.dumps(inventory), **options)


async def names(office: Office, operator: Caller, source: str | None = None) -> list[str]:
    hosts = await office.services.fleet.hosts(operator, POOL)
    return [host.name for host in hosts if host.state != "retired" and source in (None, host.source)]


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
    with pytest.raises(BadInput, match="from 0 to 100"):
        await sync(office, operator, TEN, pool=POOL, most_removed_percent=101)
