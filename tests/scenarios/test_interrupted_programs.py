"""The core scenarios with machines by programs, killed around each program's run: the same end (G4).

What the provider `exec` remembers lies in the database; a process that dies while a program runs leaves a
node held, and its successor waits until that run is over.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

import pytest

from ebbtide.backends.memory import StoredMemory
from ebbtide.providers.base import (
    ControlPlane,
    InstanceOrder,
    OutOfCapacity,
    Permanent,
    Provider,
    ProviderError,
)
from ebbtide.providers.exec import NEVER, NO_CAPACITY, VERBS, ExecProvider
from ebbtide.providers.memory import Memory
from ebbtide.providers.programs import Program, Run
from ebbtide.store.inline import InlineDatabase
from ebbtide.store.seal import Sealer, new_key
from tests.scenarios.conftest import Databases
from tests.scenarios.core_stories import CORE, HOSTS, SETTINGS, Summary, summary
from tests.scenarios.killing import Killed, Moment, Plan, at, everywhere, never
from tests.scenarios.story import Story, fleet

LATER = 75
NAMES = ("create and fill", "reclaim", "release", "delete", "lost host", "failing boot")


class WorldProgram:
    """A program of one verb, in this process: JSON in, JSON out, the simulated fleet behind it."""

    limit_s = 1

    def __init__(self, verb: str, plain: Provider) -> None:
        self.what = f"the {verb} program"
        self._verb = verb
        self._plain = plain

    async def run(self, asked: Mapping[str, object]) -> Run:
        told = json.loads(json.dumps(asked))  # as a pipe would
        try:
            answer = await getattr(self, "_" + self._verb)(told)
        except ProviderError as refusal:
            code = {OutOfCapacity: NO_CAPACITY, Permanent: NEVER}.get(type(refusal), LATER)
            return Run(self.what, code, b"", refusal.message)
        return Run(self.what, 0, json.dumps(answer).encode(), "")

    async def _create(self, told: dict[str, Any]) -> dict[str, Any]:
        names = {field.name for field in fields(InstanceOrder)}
        return _seen(await self._plain.create(InstanceOrder(**{k: v for k, v in told.items() if k in names})))

    async def _status(self, told: dict[str, Any]) -> dict[str, Any]:
        return _seen(await self._plain.status(told["node_uid"]))

    async def _stop(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"stopped": await self._plain.stop(told["node_uid"])}

    async def _delete(self, told: dict[str, Any]) -> dict[str, Any]:
        deletion = await self._plain.delete(told["node_uid"])
        return {"gone": deletion.gone, "wiped_by": deletion.wiped_by or None, "why": deletion.why}

    async def _list(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"instances": [_seen(one) for one in await self._plain.list(told["pool"])]}


def _seen(instance: Any) -> dict[str, Any]:
    return {"state": "not_found"} if instance is None else asdict(instance) | {"wiped_by": None}


class OnTheWorld(ExecProvider):
    """Machines by programs, control planes of the simulated fleet."""

    def __init__(self, programs: Mapping[str, Program], memory: Memory, plain: Provider) -> None:
        super().__init__(programs, memory, at_once=8, slot_wait_s=1)
        self._plain = plain

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        return await self._plain.create_control_plane(cluster_id, name)

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        return await self._plain.control_plane(cluster_id)

    async def delete_control_plane(self, cluster_id: str) -> bool:
        return await self._plain.delete_control_plane(cluster_id)

    async def list_control_planes(self) -> list[str]:
        return await self._plain.list_control_planes()


class ByPrograms(Story):
    def __init__(self, database_url: str) -> None:
        self._kept: list[InlineDatabase] = []
        self._sealer = Sealer([new_key()])
        self._database_url = database_url
        # Each run that was cut off costs some seconds; that must not be the whole time to join.
        settings = replace(SETTINGS, join_limit_s=300)
        super().__init__(database_url, settings=settings, provider=self._provider)

    def _provider(self, plain: Provider) -> Provider:
        verbs = [verb for verb in VERBS if verb != "reboot"]
        # Before and after each run of a program the process may die, besides before and after each call.
        run = {verb: self.killer.wrap(cast(Program, WorldProgram(verb, plain))) for verb in verbs}
        for verb, program in run.items():
            program.__dict__.update(what=f"the {verb} program", limit_s=WorldProgram.limit_s)
        return OnTheWorld(run, _Late(self), plain)

    def memory(self) -> StoredMemory:
        if not self._kept:
            database = InlineDatabase(self._database_url, self.sim.clock, self._sealer)
            self.killer.watch(database)
            self._kept.append(database)
        return StoredMemory(self._kept[0])

    async def end(self) -> None:
        await super().end()
        for database in self._kept:
            await database.close()


class _Late:
    """The story's memory, which is there once the story has its clock."""

    def __init__(self, story: ByPrograms) -> None:
        self._story = story

    def __getattr__(self, name: str) -> Any:
        return getattr(self._story.memory(), name)


async def told(databases: Databases, name: str, plan: Plan = never) -> tuple[Summary, int, int]:
    """The story told to its end: how it ends, how many points it has, how often it was killed."""
    with databases() as url:
        story = ByPrograms(url)
        try:
            await story.begin(fleet(HOSTS))
            cluster = await CORE[name].given(story)
            story.killer.plan, story.killer.armed, story.revives = plan, True, True
            await CORE[name].then(story, cluster)
            story.killer.armed = False
            held = story.watch.ask("SELECT 1 FROM instances WHERE gone_at IS NULL AND node_uid NOT IN "
                                   "(SELECT uid FROM nodes WHERE phase <> 'REMOVED')")  # fmt: skip
            assert held == []  # nothing is remembered of machines that nobody has
            return summary(story), story.killer.points, story.killer.kills
        finally:
            await story.end()


@pytest.mark.parametrize("name", NAMES)
async def test_killed_after_every_kind_of_step_it_ends_the_same(databases: Databases, name: str) -> None:
    expected, _, _ = await told(databases, name)
    found, _, kills = await told(databases, name, everywhere)
    assert found == expected
    assert kills > 20


async def test_killed_once_anywhere_it_ends_the_same(databases: Databases, rng: random.Random) -> None:
    name = rng.choice(NAMES)
    expected, points, _ = await told(databases, name)
    number, moment = rng.randint(1, points), rng.choice(list(Moment))
    print(f"{name}: killed {moment} point {number} of {points}")
    found, _, kills = await told(databases, name, at(number, moment))
    assert (found, kills) == (expected, 1)


def test_a_kill_goes_through_everything() -> None:
    """The provider holds nothing up that is no error."""
    assert not issubclass(Killed, Exception)
