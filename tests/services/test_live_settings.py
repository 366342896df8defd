"""Settings that change while processes run: who may, what fits, who reads it, and what it changes."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from ebbtide import assembly
from ebbtide import services as services_room
from ebbtide.clock import ManualClock
from ebbtide.errors import BadInput, Forbidden
from ebbtide.ids import SeededIds
from ebbtide.playground.behaviours import BootFails
from ebbtide.services.details import Caller, Role
from ebbtide.services.live_settings import SettingDetails
from ebbtide.settings import DECLARED, LiveSettings, Settings
from ebbtide.store import settings
from tests.builders import START, Office
from tests.scenarios.story import GPUS, JOINED_BY_S, Story, fleet


def _by_name(found: tuple[SettingDetails, ...]) -> dict[str, SettingDetails]:
    return {one.name: one for one in found}


async def test_a_setting_says_where_its_value_comes_from(office: Office, operator: Caller) -> None:
    service = office.services.settings
    listed = await service.list(operator)
    assert {one.name for one in listed} == {one.name for one in fields(Settings)}
    assert [one.live for one in listed] == sorted((one.live for one in listed), reverse=True)
    before = _by_name(listed)["cooldown_s"]
    assert (before.value, before.source, before.stored) == (120, "default", None)
    assert (before.variable, before.least, before.most) == ("EBBTIDE_COOLDOWN_S", 0, 86_400)
    after = _by_name(await service.change(operator, {"cooldown_s": 300}))["cooldown_s"]
    assert (after.value, after.source, after.stored, after.default) == (300, "stored", 300, 120)
    assert (after.changed_by, after.changed_at) == (operator.key_id, office.clock.now())
    again = _by_name(await service.change(operator, {}, ["cooldown_s"]))["cooldown_s"]
    assert again == before


async def test_the_environments_value_is_shown_and_comes_back(database_url: str) -> None:
    system = assembly.build(replace(Settings(), cooldown_s=7), database_url, clock=ManualClock(START))
    try:
        key = await system.first_key(Role.OPERATOR, "ops", "Ops")
        operator = await system.services.access.authenticate(key.secret)
        one = _by_name(await system.services.settings.change(operator, {"cooldown_s": 8}))["cooldown_s"]
        assert (one.value, one.source, one.environment, one.default) == (8, "stored", 7, 120)
        assert system.settings.cooldown_s == 8
        one = _by_name(await system.services.settings.change(operator, {}, ["cooldown_s"]))["cooldown_s"]
        assert (one.value, one.source) == (7, "environment")
        assert system.settings.cooldown_s == 7
    finally:
        await system.close()


@pytest.mark.parametrize(
    ("values", "reset", "said"),
    [
        ({"mood": 1}, [], "there is no setting 'mood'"),
        ({"drain_window_s": 60}, [], "set EBBTIDE_DRAIN_WINDOW_S for every process"),
        ({"cooldown_s": -1}, [], "cooldown_s is between 0 and 86,400, got -1"),
        ({"cooldown_s": "long"}, [], "cooldown_s must be a whole number"),
        ({"cooldown_s": True}, [], "cooldown_s must be a whole number"),
        ({"remediation_approval": 1}, [], "remediation_approval must be a text"),
        ({"remediation_approval": "HOPE"}, [], "there is no remediation mode 'HOPE'"),
        ({"retry_limit_s": 1}, [], "retry_s is 2 and retry_limit_s would be 1"),
        ({"retry_s": 90}, [], "retry_s would be 90 and retry_limit_s is 60"),
        ({"observe_every_s": 60}, [], "nodes would be lost between two looks"),
        ({"cooldown_s": 1}, ["cooldown_s"], "set and reset at once"),
        ({}, ["mood"], "there is no setting 'mood'"),
    ],
)
async def test_what_does_not_fit_is_refused_and_nothing_is_stored(
    office: Office, operator: Caller, values: dict[str, object], reset: list[str], said: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        await office.services.settings.change(operator, {"min_life_s": 1, **values}, reset)
    assert said in refusal.value.message
    assert refusal.value.param in {*values, *reset}
    assert not [one for one in await office.services.settings.list(operator) if one.source == "stored"]


async def test_pairs_are_judged_only_where_one_of_them_changes(database_url: str) -> None:
    """An environment that was started all the same keeps nobody from changing something else."""
    system = assembly.build(replace(Settings(), observe_every_s=300), database_url, clock=ManualClock(START))
    try:
        key = await system.first_key(Role.OPERATOR, "ops", "Ops")
        operator = await system.services.access.authenticate(key.secret)
        await system.services.settings.change(operator, {"cooldown_s": 9})
        await system.services.settings.change(operator, {"observe_every_s": 60, "lost_after_s": 90})
    finally:
        await system.close()


async def test_tenants_neither_see_nor_change_them(office: Office, tenant: Caller) -> None:
    for attempt in (
        office.services.settings.list(tenant),
        office.services.settings.change(tenant, {"cooldown_s": 1}),
    ):
        with pytest.raises(Forbidden):
            await attempt


async def test_another_process_reads_it_and_one_that_starts_later_too(
    office: Office, operator: Caller
) -> None:
    other = LiveSettings(Settings())
    services = services_room.build(office.db, other, SeededIds(9))
    await office.services.settings.change(operator, {"max_joining": 3, "retry_limit_s": 90})
    assert other.max_joining == 50
    await services.settings.refresh()
    assert (other.max_joining, other.retry_limit_s, other.retry_in_s(9)) == (3, 90, 90)
    await office.services.settings.change(operator, {}, ["max_joining"])
    await services.settings.refresh()
    assert (other.max_joining, other.retry_limit_s) == (50, 90)


async def test_changes_at_once_are_judged_together(office: Office, operator: Caller) -> None:
    """Each alone would do; both would leave the longest wait below the first one."""
    service = office.services.settings
    for _ in range(5):
        answers = await asyncio.gather(
            service.change(operator, {"retry_s": 50}),
            service.change(operator, {"retry_limit_s": 30}),
            return_exceptions=True,
        )
        assert [isinstance(one, BadInput) for one in answers].count(True) == 1
        await service.change(operator, {}, ["retry_s", "retry_limit_s"])


def test_what_another_version_stored_is_passed_over() -> None:
    live = LiveSettings(Settings(), {"cooldown_s": "long", "mood": 3, "drain_window_s": 1, "min_life_s": 5})
    assert (live.cooldown_s, live.drain_window_s, live.min_life_s) == (120, 300, 5)
    assert live.drain == Settings().drain


def test_only_its_owner_changes_it() -> None:
    live = LiveSettings(Settings())
    with pytest.raises(FrozenInstanceError):
        live.cooldown_s = 1  # type: ignore[misc]  # that it is refused is the point


def test_every_live_number_has_a_range_that_holds_its_default() -> None:
    for one in DECLARED.values():
        if one.live and isinstance(one.default, int) and not isinstance(one.default, bool):
            assert one.least is not None
            assert one.most is not None
            assert one.least <= one.default <= one.most, one.name


async def test_a_running_system_obeys_at_once(database_url: str) -> None:
    """Nodes join one at a time; a host is set aside after one failure; and so it is after a restart."""
    story = Story(database_url)
    try:
        await story.begin(fleet(6))
        settings, operator = story.sim.system.services.settings, await story.operator()
        await settings.change(operator, {"max_joining": 1, "boot_failures_limit": 1})
        story.world.set_behaviour(BootFails(5), host=(await story.hosts())[1].name)
        acme = await story.orders(target=2 * GPUS)
        await story.passes(10)
        assert len(await acme.nodes()) == 1
        await story.passes(3 * JOINED_BY_S)
        assert "broken" in (await story.pool()).counts
        await story.dies()
        await story.starts()
        assert story.sim.system.settings.max_joining == 1
    finally:
        await story.end()


async def test_what_waits_for_the_next_look_is_looked_at_again(database_url: str) -> None:
    """Looks an hour apart: a shorter span counts from now on, not from the next hour."""
    settings = replace(Settings(), fill_every_s=3_600, observe_every_s=3_000, lost_after_s=3_600)
    story = Story(database_url, settings=settings)
    try:
        await story.begin(fleet(1))
        acme = await story.orders(target=GPUS)
        await story.passes(JOINED_BY_S)
        service, operator = story.sim.system.services.settings, await story.operator()
        await service.change(operator, {"fill_every_s": 30, "observe_every_s": 20})
        await story.passes(1)
        due = {row["loop"]: row["due_at"] for row in story.watch.ask("SELECT loop, due_at FROM visits")}
        assert due["fulfillment"] <= story.now + timedelta(seconds=30)
        assert due["observation"] <= story.now + timedelta(seconds=20)
        assert not await acme.running()
    finally:
        await story.end()


async def test_a_process_looks_every_few_seconds(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "KEEP_SETTINGS_S", 0.05)
    one, other = (assembly.build(Settings(), database_url, clock=ManualClock(START)) for _ in range(2))
    keeping = asyncio.create_task(other.keep_settings())
    try:
        key = await one.first_key(Role.OPERATOR, "ops", "Ops")
        operator = await one.services.access.authenticate(key.secret)
        await one.services.settings.change(operator, {"cooldown_s": 5})
        async with asyncio.timeout(10):
            while other.settings.cooldown_s != 5:  # noqa: ASYNC110  # nothing tells when it is taken
                await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await one.close()
        await other.close()


async def test_an_odd_answer_of_the_database_does_not_end_the_looking(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "KEEP_SETTINGS_S", 0.05)
    system = assembly.build(Settings(), database_url, clock=ManualClock(START))
    async with system.db.transaction() as tx:
        await tx.conn.execute(sa.text("ALTER TABLE stored_settings RENAME TO elsewhere"))
    keeping = asyncio.create_task(system.keep_settings())
    try:
        with capture_logs() as told:
            async with asyncio.timeout(10):
                while len(told) < 2:  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0.02)
        async with system.db.transaction() as tx:
            await tx.conn.execute(sa.text("ALTER TABLE elsewhere RENAME TO stored_settings"))
            await settings.put(tx, "cooldown_s", 5, None)
        async with asyncio.timeout(10):
            while system.settings.cooldown_s != 5:  # noqa: ASYNC110  # nothing tells when it is taken
                await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await system.close()
