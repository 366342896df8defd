"""Organisations: made, renamed, disabled; a project belongs to one, and its keys go with it."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.services.details import Caller, Replay, Role
from tests.builders import Office, an_order


async def test_projects_are_made_in_the_organisation_named_or_in_ones_own(
    office: Office, operator: Caller
) -> None:
    organizations, access = office.services.organizations, office.services.access
    acme = await organizations.create(operator, "Acme Corp")
    assert (acme.name, acme.projects, acme.disabled_at) == ("Acme Corp", 0, None)
    by_name = await access.create_project(operator, "lab", organization="Acme Corp")
    by_id = await access.create_project(operator, "shop", organization=acme.id)
    own = await access.create_project(operator, "own")
    assert {by_name.organization_id, by_id.organization_id} == {acme.id}
    assert own.organization_id == operator.organization_id
    listed = {one.name: one.projects for one in await organizations.list(operator)}
    assert listed["Acme Corp"] == 2
    with pytest.raises(NotFound):
        await access.create_project(operator, "nowhere", organization="Nobody")


async def test_a_new_name_is_shown_with_every_key_and_project(office: Office, operator: Caller) -> None:
    organizations, access = office.services.organizations, office.services.access
    acme = await organizations.create(operator, "Acme Corp")
    await access.create_project(operator, "lab", organization=acme.id)
    key = await access.issue_key(operator, "lab", Role.MEMBER)
    renamed = await organizations.change(operator, "Acme Corp", name="  Acme ")
    assert (renamed.id, renamed.name) == (acme.id, "Acme")
    assert (await access.authenticate(key.secret)).organization_name == "Acme"
    (project,) = [one for one in await access.projects(operator) if one.slug == "lab"]
    assert project.organization_name == "Acme"


async def test_a_disabled_organisations_keys_are_refused_and_its_clusters_go_on(
    office: Office, operator: Caller
) -> None:
    organizations, access = office.services.organizations, office.services.access
    acme = await organizations.create(operator, "Acme")
    await access.create_project(operator, "lab", organization=acme.id)
    key = await access.issue_key(operator, "lab", Role.MEMBER)
    tenant = await access.authenticate(key.secret)
    cluster = await office.services.clusters.create(tenant, an_order(), Replay("x"))
    for _ in range(2):
        disabled = await organizations.change(operator, acme.id, disabled=True)
        assert disabled.disabled_at == office.clock.now()
    with pytest.raises(Forbidden) as refusal:
        await access.authenticate(key.secret)
    assert refusal.value.code == "organization_disabled"
    assert cluster.id in {one.id for one in await office.services.clusters.list(operator)}
    await organizations.change(operator, acme.id, disabled=False)
    assert (await access.authenticate(key.secret)).project_slug == "lab"


async def test_no_operator_locks_the_service_out_of_itself(office: Office, operator: Caller) -> None:
    """The first start's organisation, disabled by another's operator; the next start needs a key of it."""
    organizations, access = office.services.organizations, office.services.access
    acme = await organizations.create(operator, "Acme")
    await access.create_project(operator, "lab", organization=acme.id)
    key = await access.issue_key(operator, "lab", Role.OPERATOR)
    other = await access.authenticate(key.secret)
    await organizations.change(other, operator.organization_id, disabled=True)
    starting = await office.operator()
    enabled = await organizations.change(starting, starting.organization_id, disabled=False)
    assert enabled.disabled_at is None


async def test_names_are_unique_also_when_two_give_one_at_once(office: Office, operator: Caller) -> None:
    organizations = office.services.organizations
    made = [await organizations.create(operator, name) for name in ("One", "Two")]
    answers = await asyncio.gather(
        *(organizations.change(operator, one.id, name="Same") for one in made),
        organizations.create(operator, "Same"),
        return_exceptions=True,
    )
    assert [type(one) for one in answers].count(Conflict) == 2
    with pytest.raises(BadInput):
        await organizations.create(operator, "   ")
    with pytest.raises(NotFound):
        await organizations.change(operator, "Nobody", name="x")


async def test_a_tenant_sees_its_own_and_changes_none(office: Office, operator: Caller) -> None:
    tenant = await office.caller("acme")
    await office.services.organizations.create(operator, "Others")
    (own,) = await office.services.organizations.list(tenant)
    assert (own.id, own.projects) == (tenant.organization_id, None)
    for attempt in (
        office.services.organizations.create(tenant, "x"),
        office.services.organizations.change(tenant, own.id, name="y"),
    ):
        with pytest.raises(Forbidden):
            await attempt
