"""Demand from other systems: promised in the request, handed over by name, given back by name."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ebbtide.core.claims import ClaimState
from ebbtide.errors import BadInput, Conflict, EbbtideError, Forbidden, NotFound
from ebbtide.services.details import Caller, ClaimDetails, Replay
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


async def _lend_all(office: Office) -> None:
    """A tenant holds every host: one standard node, the rest preemptible."""
    tenant = await office.caller("borrower")
    await office.services.clusters.create(tenant, an_order("big", target=800), Replay("big"))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)


async def test_free_hosts_are_handed_over_at_once(office: Office, operator: Caller) -> None:
    claim = await office.services.claims.create(operator, POOL, 2, "job-1", "a training job")
    assert claim.state is ClaimState.SERVED
    assert (len(claim.given), claim.waiting, claim.draining) == (2, 0, ())
    hosts = {host.name: host for host in await office.services.fleet.hosts(operator)}
    assert {hosts[name].bucket for name in claim.given} == {"external"}
    assert {hosts[name].lent_to for name in claim.given} == {"a training job"}


async def test_the_same_reference_is_the_same_claim_also_at_once(office: Office, operator: Caller) -> None:
    answers = await asyncio.gather(
        *(office.services.claims.create(operator, POOL, 2, "job-1", "a job") for _ in range(8))
    )
    assert len({one.id for one in answers}) == 1
    async with office.db.read() as tx:
        assert await count(tx, "nodes") == 2
    with pytest.raises(Conflict) as refused:
        await office.services.claims.create(operator, POOL, 1, "job-1", "a job")
    assert refused.value.code == "ref_reused"


async def test_one_reference_in_two_pools_at_once_is_one_claim_and_a_refusal(database_url: str) -> None:
    async with an_office(database_url, a_fleet(a_pool(4, name="a"), a_pool(4, name="b"))) as office:
        operator = await office.operator()
        answers = await asyncio.gather(
            *(office.services.claims.create(operator, pool, 1, "job-1", "a job") for pool in "abababab"),
            return_exceptions=True,
        )
        odd = [one for one in answers if not isinstance(one, ClaimDetails | Conflict)]
        assert not odd, odd[:2]
        assert len({one.id for one in answers if isinstance(one, ClaimDetails)}) == 1
        async with office.db.read() as tx:
            assert await count(tx, "nodes") == 1


async def test_a_claim_that_must_wait_says_for_which_hosts_and_until_when(
    office: Office, operator: Caller
) -> None:
    await _lend_all(office)
    claim = await office.services.claims.create(operator, POOL, 2, "job-1", "a job")
    until = office.clock.now() + timedelta(seconds=300)
    assert claim.state is ClaimState.OPEN
    assert (claim.given, claim.waiting) == ((), 2)
    assert [one.deadline for one in claim.draining] == [until, until]
    async with office.db.transaction() as tx:
        await promises_kept(tx)
        await all_leave(tx)
    await one_plan(office)
    served = await office.services.claims.retrieve(operator, "job-1")
    assert served.state is ClaimState.SERVED
    assert set(served.given) == {one.host for one in claim.draining}
    assert (served.waiting, served.draining) == (0, ())


async def test_too_much_is_refused_whole_and_says_what_there_is(office: Office, operator: Caller) -> None:
    await _lend_all(office)
    with pytest.raises(Conflict, match="24 reclaimable") as refused:
        await office.services.claims.create(operator, POOL, 4, "job-1", "a job")
    assert refused.value.code == "out_of_stock"
    async with office.db.read() as tx:
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 0
        assert await count(tx, "claims", "kind = 'external'") == 0


async def test_giving_back_some_then_all(office: Office, operator: Caller) -> None:
    claims = office.services.claims
    first, second = (await claims.create(operator, POOL, 2, "job-1", "a job")).given
    part = await claims.give_back(operator, "job-1", (first,))
    assert (part.given, part.state) == ((second,), ClaimState.SERVED)
    assert (await claims.give_back(operator, "job-1", (first,))).given == (second,)  # again: nothing changes
    with pytest.raises(NotFound, match="never had"):
        await claims.give_back(operator, "job-1", (second, "somebody-elses"))
    done = await claims.give_back(operator, "job-1")
    assert (done.given, done.state) == ((), ClaimState.ENDED)
    assert (await claims.give_back(operator, "job-1")).ended_at == done.ended_at
    async with office.db.transaction() as tx:
        await all_leave(tx)
        assert await count(tx, "hosts", "node_uid IS NULL") == 4


async def test_giving_back_a_claim_that_waits_cancels_what_was_promised(
    office: Office, operator: Caller
) -> None:
    await _lend_all(office)
    await office.services.claims.create(operator, POOL, 2, "job-1", "a job")
    done = await office.services.claims.give_back(operator, "job-1")
    assert (done.state, done.waiting) == (ClaimState.ENDED, 0)
    async with office.db.read() as tx:
        assert await count(tx, "nodes", "end_reason = 'cancelled' AND host_id IS NULL") == 2
        assert await count(tx, "nodes", "phase = 'DRAINING'") == 2  # a notice is final


async def test_a_reference_may_be_used_again_once_its_claim_has_ended(
    office: Office, operator: Caller
) -> None:
    claims = office.services.claims
    first = await claims.create(operator, POOL, 1, "job-1", "a job")
    await claims.give_back(operator, "job-1")
    second = await claims.create(operator, POOL, 2, "job-1", "another job")
    assert second.id != first.id
    assert (await claims.retrieve(operator, "job-1")).id == second.id
    await claims.give_back(operator, "job-1")
    assert (await claims.retrieve(operator, "job-1")).id == second.id  # the last one, of those that ended
    assert await claims.list(operator) == ()


async def test_hosts_of_a_claim_are_never_taken_for_another(office: Office, operator: Caller) -> None:
    await office.services.claims.create(operator, POOL, 3, "job-1", "a job")
    with pytest.raises(Conflict, match="8 free, 0 coming free, 0 reclaimable"):
        await office.services.claims.create(operator, POOL, 2, "job-2", "another")


async def test_claims_without_sense(office: Office, operator: Caller) -> None:
    senseless: list[tuple[str, int, type[EbbtideError]]] = [
        ("no-such-pool", 1, NotFound),
        (POOL, 0, BadInput),
        (POOL, -1, BadInput),
        (POOL, 10**9, BadInput),
    ]
    for pool, hosts, error in senseless:
        with pytest.raises(error):
            await office.services.claims.create(operator, pool, hosts, "job-1", "a job")


async def test_claims_are_the_operators(office: Office, tenant: Caller) -> None:
    claims = office.services.claims
    for attempt in (
        claims.create(tenant, POOL, 1, "r", "me"),
        claims.list(tenant),
        claims.retrieve(tenant, "r"),
        claims.give_back(tenant, "r"),
    ):
        with pytest.raises(Forbidden):
            await attempt


async def test_a_standard_claim_ends_with_its_last_node(office: Office, operator: Caller) -> None:
    """What is listed as in force holds something or waits for something."""
    tenant = await office.caller()
    made = await office.services.clusters.create(tenant, an_order(gpus=2 * SIZE), Replay("x"))
    assert [(one.kind, len(one.given)) for one in await office.services.claims.list(operator)] == [
        ("standard", 2)
    ]
    await office.services.clusters.delete(tenant, made.id)
    assert await office.services.claims.list(operator) == ()
