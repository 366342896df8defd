"""A cluster's settings beside the contract, and who may read receipts."""

from __future__ import annotations

import pytest

from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.services.details import Caller, Replay
from tests.builders import Office, an_order


async def _cluster(office: Office, caller: Caller) -> str:
    return (await office.services.clusters.create(caller, an_order(), Replay("a"))).id


async def test_a_new_cluster_warns_not_and_is_open(office: Office, tenant: Caller) -> None:
    found = await office.services.cluster_settings.read(tenant, await _cluster(office, tenant))
    assert (found.warn_first_s, found.placement, found.longest_warn_first_s) == (0, "open", 240)


async def test_what_is_given_changes_and_the_rest_stays(office: Office, tenant: Caller) -> None:
    cluster_id = await _cluster(office, tenant)
    settings = office.services.cluster_settings
    first = await settings.update(tenant, cluster_id, warn_first_s=60)
    assert (first.warn_first_s, first.placement) == (60, "open")
    second = await settings.update(tenant, cluster_id, placement="explicit")
    assert (second.warn_first_s, second.placement) == (60, "explicit")
    third = await settings.update(tenant, cluster_id, warn_first_s=0)
    assert (third.warn_first_s, third.placement) == (0, "explicit")
    assert await settings.read(tenant, cluster_id) == third


@pytest.mark.parametrize("seconds", [-1, 241, 300, 10**9])
async def test_a_warning_leaves_time_for_sigterm(office: Office, tenant: Caller, seconds: int) -> None:
    cluster_id = await _cluster(office, tenant)
    with pytest.raises(BadInput, match="between 0 and 240"):
        await office.services.cluster_settings.update(tenant, cluster_id, warn_first_s=seconds)
    longest = await office.services.cluster_settings.update(tenant, cluster_id, warn_first_s=240)
    assert longest.warn_first_s == 240


async def test_an_unknown_placement_is_refused(office: Office, tenant: Caller) -> None:
    cluster_id = await _cluster(office, tenant)
    with pytest.raises(BadInput, match="'open' or 'explicit'"):
        await office.services.cluster_settings.update(tenant, cluster_id, placement="sideways")


async def test_another_tenants_cluster_is_not_there(office: Office, tenant: Caller, other: Caller) -> None:
    cluster_id = await _cluster(office, tenant)
    services = office.services
    for call in (
        services.cluster_settings.read(other, cluster_id),
        services.cluster_settings.update(other, cluster_id, warn_first_s=1),
        services.receipts.list(other, cluster_id),
        services.receipts.retrieve(other, cluster_id, "n"),
        services.supply.cluster_history(other, cluster_id),
    ):
        with pytest.raises(NotFound, match="there is no cluster"):
            await call
    assert (await services.cluster_settings.read(tenant, cluster_id)).warn_first_s == 0


async def test_operators_see_all(office: Office, tenant: Caller, operator: Caller) -> None:
    cluster_id = await _cluster(office, tenant)
    assert (await office.services.cluster_settings.read(operator, cluster_id)).cluster_id == cluster_id
    assert await office.services.receipts.list(operator, cluster_id) == ()


async def test_a_cluster_that_goes_is_set_no_more(office: Office, tenant: Caller) -> None:
    cluster_id = await _cluster(office, tenant)
    await office.services.clusters.delete(tenant, cluster_id)
    with pytest.raises(Conflict, match="being deleted"):
        await office.services.cluster_settings.update(tenant, cluster_id, warn_first_s=5)
