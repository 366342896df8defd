"""Many requests at once on connections of their own: exactly the capacity is granted, no deadlocks."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from ebbtide.core import events as core_events
from ebbtide.core.nodes import Phase
from ebbtide.core.wipes import SEVERAL
from ebbtide.errors import Conflict, EbbtideError, NotFound
from ebbtide.services.details import (
    Caller,
    ClusterChange,
    ClusterDetails,
    ImportChange,
    ImportOrder,
    Replay,
)
from ebbtide.store import clusters, fleet, nodes, pools, wipes
from ebbtide.store.db import Tx
from ebbtide.store.nodes import Move, NodeRow
from tests.builders import (
    GPU_TYPE,
    POOL,
    REGION,
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
    promises_kept,
)

CREATES, HOSTS, CONNECTIONS = 200, 100, 20


async def _at_once(
    office: Office, caller: Caller, creates: int
) -> tuple[list[ClusterDetails], list[Conflict]]:
    """So many orders of one host each, at once; who got it and who was refused."""
    services = office.services
    answers = await asyncio.gather(
        *(services.clusters.create(caller, an_order(f"c{n}"), Replay(f"body-{n}")) for n in range(creates)),
        return_exceptions=True,
    )
    granted = [one for one in answers if isinstance(one, ClusterDetails)]
    refused = [one for one in answers if isinstance(one, Conflict)]
    assert len(granted) + len(refused) == creates, [one for one in answers if isinstance(one, Exception)][:3]
    return granted, refused


async def test_two_hundred_creates_on_a_hundred_hosts_grant_exactly_a_hundred(database_url: str) -> None:
    async with an_office(database_url, a_fleet(a_pool(HOSTS)), connections=CONNECTIONS) as office:
        granted, refused = await _at_once(office, await office.caller(), CREATES)
        async with office.db.read() as tx:
            await promises_kept(tx)
            occupied = await count(tx, "hosts", "node_uid IS NOT NULL")
            made = await count(tx, "clusters")
    assert (len(granted), len(refused), occupied, made) == (HOSTS, CREATES - HOSTS, HOSTS, HOSTS)
    for one in refused:
        assert one.code == "out_of_stock"
        assert re.search(r"8 GPUs asked for, 0 free, .*0 reclaimable", one.message), one.message


async def test_creates_into_a_pool_full_of_preemptible_nodes_take_exactly_what_they_need(
    database_url: str,
) -> None:
    """100 hosts: 1 standard, 79 preemptible, 20 free. 60 orders take 20 free ones and 40 nodes, no more."""
    async with an_office(
        database_url, a_fleet(a_pool(HOSTS, headroom=20)), connections=CONNECTIONS
    ) as office:
        borrower, buyer = await office.caller("borrower"), await office.caller("buyer")
        await office.services.clusters.create(borrower, an_order("big", target=HOSTS * SIZE), Replay("big"))
        async with office.db.transaction() as tx:
            await control_planes_are_ready(tx)
        for _ in range(2):  # at most 50 join at once
            await one_plan(office)
            async with office.db.transaction() as tx:
                await all_join(tx)
        async with office.db.read() as tx:
            assert await count(tx, "nodes", "phase = 'RUNNING' AND compute_class = 'preemptible'") == 79
        granted, refused = await _at_once(office, buyer, 60)
        async with office.db.read() as tx:
            await promises_kept(tx)
            draining = await count(tx, "nodes", "phase = 'DRAINING'")
            preempted = await count(tx, "lifecycle_events", "reason = 'TogetherPreempted'")
            standard_ended = await count(tx, "nodes", "compute_class = 'standard' AND end_reason IS NOT NULL")
    assert (len(granted), len(refused)) == (60, 0)
    assert (draining, preempted, standard_ended) == (40, 40, 0)


async def test_when_all_is_taken_the_refusal_says_what_there_was(database_url: str) -> None:
    async with an_office(database_url, a_fleet(a_pool(3)), connections=CONNECTIONS) as office:
        caller = await office.caller()
        await office.services.clusters.create(caller, an_order("one", target=8), Replay("one"))
        async with office.db.transaction() as tx:
            await control_planes_are_ready(tx)
        await one_plan(office)
        async with office.db.transaction() as tx:
            await all_join(tx)
        with pytest.raises(Conflict) as refused:
            await office.services.clusters.create(caller, an_order("four", gpus=4 * SIZE), Replay("four"))
        assert "32 GPUs asked for, 8 free, 0 coming free, 8 reclaimable" in refused.value.message
        assert "at most 16 GPUs" in refused.value.message
        async with office.db.read() as tx:
            assert await count(tx, "nodes", "phase = 'DRAINING'") == 0  # never half
            assert await count(tx, "clusters") == 1


Act = Callable[[], Awaitable[object]]


def _next_move(node: NodeRow, now: datetime) -> Move | None:
    after = {
        Phase.SCHEDULING: Phase.BOOTING,
        Phase.BOOTING: Phase.BOOTSTRAPPING,
        Phase.BOOTSTRAPPING: Phase.RUNNING,
        Phase.DRAINING: Phase.REMOVING,
        Phase.REMOVING: Phase.REMOVED,
    }.get(node.phase)
    if after is None:
        return None
    event = core_events.joined("a", now, 1) if after is Phase.RUNNING else None
    return Move(node.uid, node.phase, after, event=event)


async def test_everything_at_once_never_waits_in_a_circle(database_url: str, rng: random.Random) -> None:
    """Creates, changes, deletes, claims, reclaims, plans, looks, and nodes that come and go, side by side."""
    unexpected: list[BaseException] = []
    async with an_office(database_url, a_fleet(a_pool(24)), connections=CONNECTIONS) as office:
        services = office.services
        operator, tenants = await office.operator(), [await office.caller(slug) for slug in ("a", "b", "c")]
        known: list[tuple[Caller, str]] = []
        deadlocks = _counted_retries(office)

        async def create(number: int) -> None:
            tenant = tenants[number % 3]
            made = await services.clusters.create(
                tenant, an_order(f"c{number}", target=rng.randrange(4) * SIZE), Replay(f"body-{number}")
            )
            known.append((tenant, made.id))

        async def update() -> None:
            if known:
                tenant, cluster_id = rng.choice(known)
                change = ClusterChange(rng.randrange(1, 4) * SIZE, rng.randrange(5) * SIZE)
                await services.clusters.update(tenant, cluster_id, change)

        async def delete() -> None:
            if known:
                tenant, cluster_id = rng.choice(known)
                await services.clusters.delete(tenant, cluster_id)

        async def claim(number: int) -> None:
            await services.claims.create(
                operator, POOL, rng.randrange(1, 4), f"ref-{number % 5}", f"for {number % 5}"
            )

        async def give_back(number: int) -> None:
            await services.claims.give_back(operator, f"ref-{number % 5}")

        async def drain() -> None:
            host = f"{POOL}-{rng.randrange(24):05}"
            await services.hosts.drain(operator, host, "a drill", dry_run=rng.random() < 0.2)

        async def give_host_back() -> None:
            await services.hosts.give_back(operator, f"{POOL}-{rng.randrange(24):05}")

        async def a_node_goes_on() -> None:
            """As a visit of the lifecycle loop: one node, one move, with its event; no lock of the pool."""

            async def work(tx: Tx) -> None:
                there = [node for pool in (POOL,) for node in await nodes.of_pool(tx, pool)]
                for node in rng.sample(there, min(1, len(there))):
                    move = _next_move(node, tx.now)
                    if move and await nodes.move(tx, [move]) and move.after is Phase.REMOVED and node.host_id:
                        if rng.random() < 0.5:
                            await wipes.wiped(tx, node.host_id, node.uid, "after", "dd")
                        else:
                            await wipes.left_unwiped(tx, node.host_id, node.project_id or SEVERAL)

            await office.db.run(work)

        async def hosts_come_and_go() -> None:
            """As an inventory that changes: some hosts appear, some are listed no longer."""
            listed = json.dumps(rng.sample([f"extra-{number}" for number in range(6)], rng.randrange(7)))
            await services.sync.inventory(operator, listed, pool=POOL, most_removed_percent=100)

        async def clusters_are_seen() -> None:
            """As a look of the observation loop: several clusters in one statement."""

            async def work(tx: Tx) -> None:
                rows = await clusters.live(tx)
                for row in rows:
                    if not row.control_plane_ready:
                        await clusters.set_fields(tx, row.id, control_plane_ready=True)
                        return
                await clusters.mark_observed(tx, {row.id: tx.now for row in rng.sample(rows, len(rows))})

            await office.db.run(work)

        async def act(number: int) -> None:
            acts: list[Act] = [
                lambda: create(number),
                update,
                update,
                delete,
                lambda: claim(number),
                lambda: give_back(number),
                lambda: services.fleet.reclaim(operator, POOL, 1, "a drill"),
                lambda: one_plan(office),
                drain,
                give_host_back,
                give_host_back,
                hosts_come_and_go,
                *[a_node_goes_on] * 8,
                clusters_are_seen,
                clusters_are_seen,
            ]
            for _ in range(25):
                try:
                    await rng.choice(acts)()
                except EbbtideError as refusal:
                    if not isinstance(refusal, Conflict | NotFound):
                        unexpected.append(refusal)
                except Exception as error:  # noqa: BLE001  # whatever the database raised
                    unexpected.append(error)

        await asyncio.gather(*(act(number) for number in range(12)))
        await one_plan(office)
        async with office.db.read() as tx:
            await promises_kept(tx)
            assert await count(tx, "nodes", "compute_class = 'standard' AND end_reason = 'preempted'") == 0
    assert not unexpected, unexpected[:3]
    assert deadlocks() == 0


async def test_a_change_and_a_joining_node_do_not_wait_for_each_other(database_url: str) -> None:
    """A loop has the node and wants its cluster, for the event; the change takes them in that order, too."""
    async with an_office(database_url, a_fleet(a_pool(4)), connections=CONNECTIONS) as office:
        tenant = await office.caller()
        retries = _counted_retries(office)
        for number, change in enumerate((office.services.clusters.delete, _shrink(office))):
            made = await office.services.clusters.create(tenant, an_order(f"c{number}"), Replay(f"{number}"))
            async with office.db.transaction() as tx:
                (node,) = await nodes.of_cluster(tx, made.id)
                await nodes.set_facts(tx, node.uid, workload_pods=1)
                changing = asyncio.ensure_future(change(tenant, made.id))
                await asyncio.sleep(0.3)  # long enough for it to reach its first lock that is taken
                await clusters.mark_observed(tx, {made.id: tx.now})
            await changing
        assert retries() == 0


@pytest.mark.parametrize("cordoned", [True, False])
async def test_a_host_that_a_fleet_file_retires_meanwhile_stays_retired(
    database_url: str, cordoned: bool
) -> None:
    async with an_office(database_url, a_fleet(a_pool(2)), connections=CONNECTIONS) as office:
        operator, host = await office.operator(), f"{POOL}-00001"
        async with office.db.transaction() as tx:  # as one that applies a file
            await fleet.lock_file(tx)
            await pools.lock(tx, POOL)
            (row,) = await fleet.hosts_by_names(tx, [host])
            await fleet.retire(tx, row.id, "no longer in the fleet file")
            cordoning = asyncio.ensure_future(
                office.services.fleet.set_cordon(operator, host, cordoned=cordoned)
            )
            await asyncio.sleep(0.3)  # long enough for it to reach its first lock that is taken
        with pytest.raises(NotFound, match="there is no host"):
            await cordoning
        async with office.db.read() as tx:
            (row,) = await fleet.hosts_by_names(tx, [host])
    assert row.state == "retired"


def _shrink(office: Office) -> Callable[[Caller, str], Awaitable[None]]:
    async def change(caller: Caller, cluster_id: str) -> None:
        await office.services.clusters.update(caller, cluster_id, ClusterChange(num_preemptible_gpus=SIZE))
        await office.services.clusters.update(caller, cluster_id, ClusterChange(num_preemptible_gpus=0))

    return change


def _counted_retries(office: Office) -> Callable[[], int]:
    """How often a transaction had to be run again because PostgreSQL ended it."""
    first: set[int] = set()
    again = 0
    run = office.db.run

    async def counted(work: Callable[..., Awaitable[object]]) -> object:
        async def once(tx: object) -> object:
            nonlocal again
            again += id(once) in first
            first.add(id(once))
            return await work(tx)

        try:
            return await run(once)
        finally:
            first.discard(id(once))

    office.db.run = counted  # type: ignore[method-assign,assignment]  # counted, otherwise the same
    return lambda: again


async def test_of_imports_and_renewals_that_name_one_server_one_has_it(database_url: str) -> None:
    """Two imports that fill one cluster from one pool would not know of each other."""
    async with an_office(database_url, a_fleet(), connections=CONNECTIONS) as office:
        imports, operator = office.services.imports, await office.operator()

        def order(name: str) -> ImportOrder:
            return ImportOrder(name, REGION, GPU_TYPE, f"https://{name}", "pool=gpu")

        made = [await imports.create(operator, order(name), Replay(name)) for name in "abc"]
        again = await imports.renew(operator, made[0].id, ImportChange("https://a"))
        assert again.id == made[0].id  # another token for its own server
        with pytest.raises(Conflict, match="imported already, as a"):
            await imports.renew(operator, made[1].id, ImportChange("https://a"))
        answers = await asyncio.gather(
            *(imports.renew(operator, one.id, ImportChange("https://new")) for one in made),
            imports.create(operator, order("new"), Replay("new")),
            return_exceptions=True,
        )
    assert [type(one) for one in answers].count(Conflict) == 3, answers
