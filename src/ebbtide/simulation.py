"""The whole system stepped on a manual clock: for scenarios, for trying settings out, for a month in minutes.

Nothing sleeps. `run_until` visits whatever is due, in order, and moves the clock to the next thing that
happens: a due visit,
or a change of the simulated world by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from ebbtide import assembly
from ebbtide.assembly import System
from ebbtide.clock import ManualClock
from ebbtide.drivers.base import Driver
from ebbtide.drivers.simulated import SimulatedDriver
from ebbtide.ids import SeededIds
from ebbtide.playground.world import World
from ebbtide.providers.base import Provider
from ebbtide.providers.simulated import SimulatedProvider
from ebbtide.providers.simulated_storage import SimulatedStorage
from ebbtide.providers.storage import Storage
from ebbtide.services.details import Caller, Role
from ebbtide.services.fleet_file import FleetFile
from ebbtide.settings import Settings
from ebbtide.store.runs import HEARTBEAT_S
from ebbtide.store.seal import new_key
from ebbtide.store.visits import Loop
from ebbtide.workers.runner import Findings
from ebbtide.workers.webhook_sender import Sender

_MOST_STEPS = 100_000  # at one instant; a fleet of 12,500 hosts needs a few thousand


class Stuck(Exception):
    """Visits are due without end at one instant: a loop wakes itself, or two wake each other."""


class Simulation:
    """A system on a manual clock over one migrated, empty database.

    provider, driver, storage: wrap the simulated ones, to lose replies or to be killed at a given call
    inline: visits run one after the other instead of side by side: much faster, and always in the same order
    """

    def __init__(
        self,
        database_url: str,
        *,
        settings: Settings | None = None,
        seed: int = 0,
        start: datetime | None = None,
        provider: Callable[[Provider], Provider] = lambda plain: plain,
        driver: Callable[[Driver], Driver] = lambda plain: plain,
        storage: Callable[[Storage], Storage] = lambda plain: plain,
        inline: bool = False,
        sender: Sender | None = None,
    ) -> None:
        self.clock = ManualClock(start) if start else ManualClock()
        self.ids = SeededIds(seed)
        self.world = World(self.clock, seed=seed)
        self.settings = settings or Settings()
        self._url = database_url
        self._wrap_provider = provider
        self._wrap_driver = driver
        self._wrap_storage = storage
        self._inline = inline
        self.secret_keys = [new_key()]
        self._sender = sender
        self._changes = 0
        self._beaten_at = self.clock.now()
        self.after_step: list[Callable[[], None]] = []
        self.system = self._build()

    def _build(self) -> System:
        return assembly.build(
            self.settings,
            self._url,
            clock=self.clock,
            ids=self.ids,
            world=self.world,
            provider=self._wrap_provider(SimulatedProvider(self.world)),
            driver=self._wrap_driver(SimulatedDriver(self.world)),
            storage=self._wrap_storage(SimulatedStorage(self.world)),
            alone=True,
            inline=self._inline,
            secret_keys=self.secret_keys,
            sender=self._sender,
        )

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def begin(self, fleet: FleetFile | None = None) -> None:
        """Begin a life of the worker; with a fleet, apply it first."""
        if fleet:
            await self.system.apply_fleet(fleet)
        await self.system.begin()

    async def kill(self) -> None:
        """The process dies at once, without a goodbye; the world goes on."""
        await self.system.runner.beat()  # the last sign of life; time stands still between heartbeats here
        await self.system.db.close()

    async def start(self) -> Findings:
        """Start another process over the same database and world; answer what it found of those before it."""
        self.system = self._build()
        return await self.system.begin()

    async def restart(self) -> Findings:
        """Kill the process and start another at once."""
        await self.kill()
        return await self.start()

    async def caller(self, slug: str = "acme", role: Role = Role.MEMBER) -> Caller:
        """A caller of that project, made if need be."""
        key = await self.system.first_key(role, slug, slug.title())
        return await self.system.services.access.authenticate(key.secret)

    # -- time

    async def settle(self) -> int:
        """Carry out everything that is due now; answer how many visits that were."""
        visited = 0
        for _ in range(_MOST_STEPS):
            await self._hint_changes()
            due = await self.system.runner.next_due()
            if due is None or due[0] > self.now:
                return visited
            await self._beat(due[1])
            outcomes = await self.system.runner.step(due[1])
            visited += len(outcomes)
            for check in self.after_step:
                check()
        raise Stuck(f"visits are due without end at {self.now}")

    async def _beat(self, loop: Loop) -> None:
        """A sign of life, where one is looked for: drains ask whether a worker lived all the time."""
        if loop is Loop.LIFECYCLE and self.now - self._beaten_at >= timedelta(seconds=HEARTBEAT_S):
            await self.system.runner.beat()
            self._beaten_at = self.now

    async def _hint_changes(self) -> None:
        changes = self.world.changes_after(self._changes)
        if not changes:
            return
        self._changes = changes[-1].number
        async with self.system.db.transaction() as tx:
            await assembly.hint_changes(tx, sorted({change.cluster_id for change in changes}))

    async def run_until(self, instant: datetime) -> int:
        """Let time pass until the instant, carrying out everything on the way.

        Answer how many visits that were.
        """
        visited = await self.settle()
        while (moment := await self._next_moment(instant)) is not None:
            self.clock.set(moment)
            visited += await self.settle()
        self.clock.set(instant)
        return visited + await self.settle()

    async def _next_moment(self, until: datetime) -> datetime | None:
        due = await self.system.runner.next_due()
        moments = [
            moment for moment in (due and due[0], self.world.next_change_at()) if moment and moment <= until
        ]
        return max(min(moments), self.now) if moments else None

    async def run_for(self, seconds: float) -> int:
        """Let so much time pass."""
        return await self.run_until(self.now + timedelta(seconds=seconds))


@asynccontextmanager
async def simulation(database_url: str, fleet: FleetFile, **options: object) -> AsyncIterator[Simulation]:
    """A simulation with a fleet, begun, and closed at the end. Options as for `Simulation`."""
    simulated = Simulation(database_url, **options)  # type: ignore[arg-type]  # handed on as they are
    await simulated.begin(fleet)
    try:
        yield simulated
    finally:
        await simulated.system.close()
