"""Keys and roles."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.errors import BadInput, Conflict, EbbtideError, Forbidden, NotFound, Unauthenticated
from ebbtide.services.access import ProjectDetails, secret_hash
from ebbtide.services.details import Caller, Role
from tests.builders import Office, rows


async def test_a_key_says_who_asks(office: Office, operator: Caller) -> None:
    made = await office.services.access.create_project(operator, "reef", "The Reef")
    key = await office.services.access.issue_key(operator, "reef", Role.MEMBER)
    caller = await office.services.access.authenticate(key.secret)
    assert (caller.project_id, caller.project_name, caller.role) == (made.id, "The Reef", Role.MEMBER)
    assert caller.organization_id == operator.organization_id
    assert key.secret.startswith("ebb_")
    assert key.secret.endswith(key.details.hint)


async def test_an_unknown_key_says_nothing_more(office: Office) -> None:
    for bearer in (None, "", "ebb_", "nonsense", "ebb_" + "0" * 64):
        with pytest.raises(Unauthenticated):
            await office.services.access.authenticate(bearer)


async def test_only_the_hash_is_stored(office: Office, operator: Caller) -> None:
    key = await office.services.access.issue_key(operator, operator.project_id, Role.MEMBER)
    async with office.db.read() as tx:
        stored = [row for row in await rows(tx, "api_keys") if row["id"] == key.details.id]
    assert stored[0]["secret_hash"] == secret_hash(key.secret)
    assert key.secret not in str(stored)


async def test_a_revoked_key_ends_at_once_and_for_good(office: Office, operator: Caller) -> None:
    access = office.services.access
    key = await access.issue_key(operator, operator.project_id, Role.MEMBER)
    await access.revoke_key(operator, key.details.id)
    with pytest.raises(Unauthenticated):
        await access.authenticate(key.secret)
    with pytest.raises(NotFound):
        await access.revoke_key(operator, key.details.id)


async def test_a_key_ends_at_its_instant(office: Office, operator: Caller) -> None:
    access = office.services.access
    key = await access.issue_key(operator, operator.project_id, Role.MEMBER)
    async with office.db.transaction() as tx:
        await tx.conn.execute(
            sa.text("UPDATE api_keys SET expires_at = :at WHERE id = :id"),
            {"at": tx.now + timedelta(seconds=60), "id": key.details.id},
        )
    office.clock.advance(59)
    await access.authenticate(key.secret)
    office.clock.advance(1)
    with pytest.raises(Unauthenticated):
        await access.authenticate(key.secret)


async def test_who_may_make_which_key(office: Office) -> None:
    rules: list[tuple[Role, Role, type[EbbtideError] | None]] = [
        (Role.MEMBER, Role.MEMBER, Forbidden),
        (Role.ADMIN, Role.MEMBER, None),
        (Role.ADMIN, Role.ADMIN, None),
        (Role.ADMIN, Role.OPERATOR, Forbidden),
        (Role.OPERATOR, Role.OPERATOR, None),
    ]
    for asks, makes, error in rules:
        caller = await office.caller("reef", asks)
        if error is None:
            assert (await office.services.access.issue_key(caller, "reef", makes)).details.role is makes
        else:
            with pytest.raises(error):
                await office.services.access.issue_key(caller, "reef", makes)


async def test_an_admin_sees_and_touches_only_the_own_project(office: Office, operator: Caller) -> None:
    access = office.services.access
    mine, _ = await office.caller("mine", Role.ADMIN), await office.caller("theirs", Role.ADMIN)
    with pytest.raises(NotFound):
        await access.issue_key(mine, "theirs", Role.MEMBER)
    theirs = next(key for key in await access.keys(operator) if key.project_name == "Theirs")
    with pytest.raises(NotFound):
        await access.revoke_key(mine, theirs.id)
    assert {key.project_name for key in await access.keys(mine)} == {"Mine"}
    assert [project.slug for project in await access.projects(mine)] == ["mine"]
    assert {project.slug for project in await access.projects(operator)} == {"mine", "theirs", "operations"}


async def test_a_member_revokes_no_key_but_its_own(office: Office) -> None:
    member, colleague = await office.caller("mine"), await office.caller("mine")
    with pytest.raises(Forbidden):
        await office.services.access.revoke_key(member, colleague.key_id)


async def test_a_slug_is_a_dns_label(office: Office, operator: Caller) -> None:
    for slug in ("", "Reef", "-reef", "reef-", "a" * 64, "reef_1", "re ef", "reef\n"):
        with pytest.raises(BadInput):
            await office.services.access.create_project(operator, slug)


async def test_of_projects_made_at_once_under_one_slug_one_is_made(office: Office, operator: Caller) -> None:
    answers = await asyncio.gather(
        *(office.services.access.create_project(operator, "reef") for _ in range(6)), return_exceptions=True
    )
    assert [type(one) for one in answers].count(ProjectDetails) == 1
    assert {type(one) for one in answers} == {ProjectDetails, Conflict}


async def test_weights_start_at_one(office: Office, operator: Caller) -> None:
    with pytest.raises(BadInput):
        await office.services.access.create_project(operator, "reef", weight=0)
    tenant = await office.caller()
    with pytest.raises(Forbidden):
        await office.services.access.create_project(tenant, "reef")
