"""Keys over time: expiry, rotation with an overlap, last use, and who may end whose."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from ebbtide.errors import BadInput, EbbtideError, Forbidden, NotFound, Unauthenticated
from ebbtide.services.access import IssuedKey, KeyDetails
from ebbtide.services.details import Caller, Role
from tests.builders import START, Office

DAY_S = 86_400


async def _issue(office: Office, operator: Caller, role: Role = Role.MEMBER, **more: object) -> IssuedKey:
    return await office.services.access.issue_key(operator, "acme", role, **more)  # type: ignore[arg-type]  # fields by name


async def _works(office: Office, secret: str) -> bool:
    try:
        await office.services.access.authenticate(secret)
    except Unauthenticated:
        return False
    return True


async def _seen(office: Office, operator: Caller, key_id: str) -> KeyDetails:
    return next(key for key in await office.services.access.keys(operator) if key.id == key_id)


@pytest.fixture(autouse=True)
async def _acme(office: Office) -> None:
    await office.caller("acme")


async def test_a_key_ends_after_its_days(office: Office, operator: Caller) -> None:
    key = await _issue(office, operator, name="ci", expires_in_days=2)
    assert (key.details.name, key.details.expires_at) == ("ci", START + timedelta(days=2))
    office.clock.advance(2 * DAY_S - 1)
    assert await _works(office, key.secret)
    office.clock.advance(1)
    assert not await _works(office, key.secret)


@pytest.mark.parametrize("days", [0, -1, 3_651])
async def test_days_that_are_none(office: Office, operator: Caller, days: int) -> None:
    with pytest.raises(BadInput, match="expires_in_days"):
        await _issue(office, operator, expires_in_days=days)


class TestRotation:
    async def test_both_work_during_the_overlap_and_one_after_it(
        self, office: Office, operator: Caller
    ) -> None:
        old = await _issue(office, operator, Role.ADMIN, name="ci")
        new = await office.services.access.rotate_key(operator, old.details.id, overlap_s=100)
        assert (new.details.role, new.details.name) == (Role.ADMIN, "ci")
        assert new.details.project_id == old.details.project_id
        office.clock.advance(99)
        assert [await _works(office, each.secret) for each in (old, new)] == [True, True]
        office.clock.advance(1)
        assert [await _works(office, each.secret) for each in (old, new)] == [False, True]

    async def test_no_overlap_ends_the_old_one_at_once(self, office: Office, operator: Caller) -> None:
        old = await _issue(office, operator)
        new = await office.services.access.rotate_key(operator, old.details.id, overlap_s=0)
        assert [await _works(office, each.secret) for each in (old, new)] == [False, True]
        with pytest.raises(NotFound):
            await office.services.access.rotate_key(operator, old.details.id)

    async def test_an_overlap_gives_the_old_one_no_longer_life(
        self, office: Office, operator: Caller
    ) -> None:
        old = await _issue(office, operator, expires_in_days=1)
        await office.services.access.rotate_key(operator, old.details.id, overlap_s=2 * DAY_S)
        office.clock.advance(DAY_S)
        assert not await _works(office, old.secret)

    async def test_nobody_lengthens_a_keys_life_by_rotating_it(
        self, office: Office, operator: Caller
    ) -> None:
        key = await _issue(office, operator, expires_in_days=1)
        holder = await office.services.access.authenticate(key.secret)
        turned = await office.services.access.rotate_key(holder, key.details.id)
        assert turned.details.expires_at == key.details.expires_at
        office.clock.advance(DAY_S)
        assert not await _works(office, turned.secret)

    @pytest.mark.parametrize("overlap_s", [-1, 7 * DAY_S + 1])
    async def test_overlaps_that_are_none(self, office: Office, operator: Caller, overlap_s: int) -> None:
        key = await _issue(office, operator)
        with pytest.raises(BadInput, match="overlap_s"):
            await office.services.access.rotate_key(operator, key.details.id, overlap_s=overlap_s)


async def test_last_use_is_kept_to_the_minute(office: Office, operator: Caller) -> None:
    key = await _issue(office, operator)

    async def last() -> datetime | None:
        return (await _seen(office, operator, key.details.id)).last_used_at

    assert await last() is None
    await office.services.access.authenticate(key.secret)
    assert await last() == START
    office.clock.advance(59)
    await office.services.access.authenticate(key.secret)
    assert await last() == START  # not a write for every request
    office.clock.advance(1)
    await office.services.access.authenticate(key.secret)
    assert await last() == START + timedelta(seconds=60)


class TestWhoMayEndWhose:
    @pytest.mark.parametrize(
        ("whose", "role", "error"),
        [
            ("acme", Role.MEMBER, Forbidden),
            ("acme", Role.ADMIN, None),
            ("beta", Role.ADMIN, NotFound),
            ("beta", Role.OPERATOR, None),
        ],
    )
    async def test_anothers_key(
        self, office: Office, operator: Caller, whose: str, role: Role, error: type[EbbtideError] | None
    ) -> None:
        access = office.services.access
        key = await _issue(office, operator)
        asks = await office.caller(whose, role)
        for act in (access.rotate_key, access.revoke_key):
            if error is None:
                await act(asks, key.details.id)
                continue
            with pytest.raises(error):
                await act(asks, key.details.id)
        assert await _works(office, key.secret) == (error is not None)

    async def test_ones_own(self, office: Office, operator: Caller) -> None:
        key = await _issue(office, operator)
        holder = await office.services.access.authenticate(key.secret)
        await office.services.access.revoke_key(holder, holder.key_id)
        assert not await _works(office, key.secret)

    async def test_an_admin_ends_no_operators_key_of_its_project(
        self, office: Office, operator: Caller
    ) -> None:
        above = await _issue(office, operator, Role.OPERATOR)
        admin = await office.caller("acme", Role.ADMIN)
        for act in (office.services.access.rotate_key, office.services.access.revoke_key):
            with pytest.raises(Forbidden):
                await act(admin, above.details.id)
        assert await _works(office, above.secret)

    async def test_an_admin_is_not_made_more_by_rotating(self, office: Office, operator: Caller) -> None:
        key = await _issue(office, operator, Role.ADMIN)
        admin = await office.services.access.authenticate(key.secret)
        turned = await office.services.access.rotate_key(admin, key.details.id)
        caller = await office.services.access.authenticate(turned.secret)
        assert (caller.role, caller.project_id) == (Role.ADMIN, admin.project_id)
