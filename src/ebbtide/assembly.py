"""The one place that chooses concrete parts and wires them.

Database, provider, driver, services, loops, app.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml
from fastapi import FastAPI

from ebbtide import services as services_room
from ebbtide.api.app import create_app
from ebbtide.backends import backend
from ebbtide.backends.base import Backend, Setup
from ebbtide.clock import AnchoredClock, Clock
from ebbtide.core.volumes import DEFAULT_TEMPLATE, check_template
from ebbtide.drivers.base import Driver
from ebbtide.errors import BadInput, StartupError, Unavailable
from ebbtide.ids import Ids, SystemIds
from ebbtide.playground.levers import Levers
from ebbtide.playground.world import World
from ebbtide.providers.base import Provider
from ebbtide.providers.storage import Storage
from ebbtide.services import Services
from ebbtide.services.access import IssuedKey, bootstrap
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Role
from ebbtide.services.fleet import FleetChanges
from ebbtide.services.fleet_file import FleetFile
from ebbtide.settings import LiveSettings, Settings
from ebbtide.store import hints, migrate, sealed, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.embedded import EmbeddedPostgres
from ebbtide.store.inline import InlineDatabase
from ebbtide.store.seal import Sealer, new_key
from ebbtide.store.visits import Loop
from ebbtide.workers.clusters import Clusters
from ebbtide.workers.fulfillment import Fulfillment
from ebbtide.workers.leaks import Leaks
from ebbtide.workers.lifecycle import Lifecycle
from ebbtide.workers.metering import Metering
from ebbtide.workers.notify import Notify
from ebbtide.workers.observation import Observation
from ebbtide.workers.outcome import LoopWorker
from ebbtide.workers.remediation import Remediations
from ebbtide.workers.retention import Retention
from ebbtide.workers.runner import Findings, Runner
from ebbtide.workers.volumes import Volumes
from ebbtide.workers.watches import Watches
from ebbtide.workers.webhook_sender import HttpSender, Sender

log = structlog.get_logger()

KEYS_VARIABLE = "EBBTIDE_SECRET_KEYS"
KEEP_TIME_S = 10.0
KEEP_SETTINGS_S = 2.0
WATCH_S = 0.25  # how soon a change in the simulated world is looked at
JOURNAL = "playground.jsonl"


def embedded_database(data_dir: Path, *, durable: bool = True) -> EmbeddedPostgres:
    """The private PostgreSQL server of a data folder; `start()` answers its URL."""
    return EmbeddedPostgres(data_dir, durable=durable)


def prepare_database(url: str) -> None:
    """Bring the schema up to date. Raises StartupError when the database cannot be used."""
    if not url.startswith("postgresql"):
        raise StartupError(
            f"Ebbtide needs PostgreSQL: write postgresql://user@host/name, not {url.split(':')[0]}:..."
        )
    migrate.upgrade(driver_url(url))


def secret_keys_of(environment: Mapping[str, str]) -> list[str]:
    """The keys in EBBTIDE_SECRET_KEYS, the newest first."""
    return [key for key in environment.get(KEYS_VARIABLE, "").split(",") if key]


def secret_keys_in(data_dir: Path) -> list[str]:
    """The keys for a data folder.

    From the environment, else from the folder's private file, made at the first start.
    """
    if keys := secret_keys_of(os.environ):
        return keys
    path = data_dir / "secret.key"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_key() + "\n")
    return path.read_text().split()


async def reseal(database_url: str, keys: Sequence[str]) -> int:
    """Seal every stored secret with the newest key.

    Answer how many. Old keys can go when every process has the new.
    """
    db = Database(driver_url(database_url), AnchoredClock(), sealer=Sealer(keys))
    try:
        async with db.transaction() as tx:
            return await sealed.reseal(tx)
    finally:
        await db.close()


def driver_url(url: str) -> str:
    """The URL with the driver that we use, whatever form the operator wrote."""
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else url


def template_of(settings: Settings) -> Mapping[str, Any]:
    """The PersistentVolume that shows a volume in its cluster. Raises StartupError."""
    if not settings.storage_template:
        return DEFAULT_TEMPLATE
    try:
        text = Path(settings.storage_template).read_text(encoding="utf-8")
        return check_template(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, BadInput) as error:
        raise StartupError(
            f"EBBTIDE_STORAGE_TEMPLATE={settings.storage_template!r} cannot be used: {error}"
        ) from error


def loops(
    db: Database,
    settings: Settings,
    ids: Ids,
    provider: Provider,
    driver: Driver,
    storage: Storage,
    sender: Sender | None = None,
) -> list[LoopWorker]:
    """Every loop, over one provider, one driver and one storage system."""
    return [
        Lifecycle(db, settings, provider, driver),
        Clusters(db, settings, provider, driver),
        Observation(db, settings, provider, driver),
        Fulfillment(db, settings, Planner(settings, ids)),
        Metering(db, settings),
        Leaks(db, settings, provider),
        Retention(db, settings),
        Volumes(db, settings, storage, driver, template_of(settings)),
        Remediations(db, settings, provider, driver),
        Notify(db, settings, sender or HttpSender(private_allowed=settings.webhook_private)),
    ]


@dataclass(slots=True)
class System:
    """A wired Ebbtide. Which parts run (API, loops, or both) is up to the caller.

    backend:    machines, clusters and storage, and what runs beside the loops for them
    listen_url: where other processes' hints are heard; None where there are no others
    """

    settings: Settings
    db: Database
    ids: Ids
    services: Services
    runner: Runner
    backend: Backend
    listen_url: str | None = None

    @property
    def world(self) -> World | None:
        """The simulated fleet, where there is one."""
        return self.backend.world

    def app(self) -> FastAPI:
        """The HTTP API."""
        levers = Levers(self.world) if self.world else None
        return create_app(self.services, self.settings, playground=levers, clock=self.db.clock, ids=self.ids)

    async def apply_fleet(self, file: FleetFile) -> FleetChanges:
        """Bring the fleet in line with a file, the simulated world's habits too."""
        return await self.services.fleet.apply_file(file)

    async def first_key(
        self, role: Role, project_slug: str, project_name: str, organization_name: str = "Local"
    ) -> IssuedKey:
        """A new key for a project, which is made if it is not there."""
        return await bootstrap(
            self.db,
            self.ids,
            project_slug=project_slug,
            project_name=project_name,
            organization_name=organization_name,
            role=role,
        )

    async def begin(self) -> Findings:
        """Take the database's time, and say that this process lives.

        Answers what was found of killed ones.
        """
        await self._anchor()
        await self.services.settings.refresh()
        await self.backend.begin()
        return await self.runner.begin()

    async def run(self, stop: asyncio.Event) -> None:
        """Run the loops until `stop`, then say goodbye. `begin` comes first."""
        beside = [asyncio.create_task(self.keep_settings())]
        if self.world:
            beside.append(asyncio.create_task(self._watch()))
        if self.listen_url:
            beside.append(asyncio.create_task(hints.listen(self.listen_url, self.runner.wake)))
        if self.backend.watcher:
            beside.append(asyncio.create_task(Watches(self.db, self.backend.watcher).run()))
        for task in beside:
            task.add_done_callback(_say_if_failed)
        try:
            await self.runner.run(stop)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self.runner.end()

    async def keep_time(self) -> None:
        """Take the database's time now and then, for ever: for a process that runs no loops."""
        await _keep("the database's time", self._anchor, KEEP_TIME_S)

    async def keep_settings(self) -> None:
        """Let settings that were changed apply here within seconds, for ever."""
        await _keep("settings that were changed", self.services.settings.refresh, KEEP_SETTINGS_S)

    async def _anchor(self) -> None:
        if isinstance(self.db.clock, AnchoredClock):
            self.db.clock.anchor(await self.db.database_now())

    async def _watch(self) -> None:
        """Turn changes in the simulated world into hints, as a watch on a real cluster would."""
        assert self.world is not None
        last = 0
        while True:
            changes = self.world.changes_after(last)
            if changes:
                with contextlib.suppress(Unavailable):  # the same changes are told at the next look
                    async with self.db.transaction() as tx:
                        await hint_changes(tx, sorted({change.cluster_id for change in changes}))
                    last = changes[-1].number
            await asyncio.sleep(WATCH_S)

    async def close(self) -> None:
        """Let go of the backend, the journal and the database."""
        await self.backend.close()
        if self.world:
            self.world.close()
        await self.db.close()


async def _keep(what: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Do it now and then, for ever. A failure is told, and the next time may go well."""
    while True:
        try:
            with contextlib.suppress(Unavailable):
                await work()
        except Exception:  # whatever it was: ended, it would keep what it has until the next start
            log.exception("not taken from the database; trying again", what=what)
        await asyncio.sleep(every_s)


def _say_if_failed(task: asyncio.Task[None]) -> None:
    """What runs beside the loops makes them faster, or keeps their settings up to date.

    Without it they still do all there is to do.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("hints or changed settings come late from now on", why=repr(error))


async def hint_changes(tx: Tx, cluster_ids: list[str]) -> None:
    """Make due an observation of clusters in which something changed, if they are observed at all."""
    await visits.wake_existing(tx, Loop.OBSERVATION, cluster_ids)


def build(
    settings: Settings,
    database_url: str,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    data_dir: Path | None = None,
    journal: Path | None = None,
    world: World | None = None,
    provider: Provider | None = None,
    driver: Driver | None = None,
    storage: Storage | None = None,
    sender: Sender | None = None,
    alone: bool = False,
    inline: bool = False,
    secret_keys: Sequence[str] = (),
) -> System:
    """Wire a system over a migrated database.

    data_dir: a folder that outlives the process, for backends that keep something; None without one
    journal: where the simulated world keeps its acts; None keeps it in memory
    world, provider, driver, storage, sender: given by tests and simulations instead of the ones made here
    alone: no other worker process can use this database
    secret_keys: seal secrets at rest, the newest first; none: what is sealed can be opened by this system
    only
    inline: nothing else uses the database or this event loop (a simulation): statements run at once
    """
    settings = LiveSettings(settings)
    clock = clock or AnchoredClock()
    ids = ids or SystemIds()
    url = driver_url(database_url)
    sealer = Sealer(secret_keys or [new_key()])
    db = (
        InlineDatabase(url, clock, sealer)
        if inline
        else Database(url, clock, sealer=sealer, announce=not alone)
    )
    setup = Setup(settings, clock, ids, db, data_dir=data_dir, journal=journal, world=world)
    parts = backend(setup)
    parts.provider = provider or parts.provider
    parts.driver = driver or parts.driver
    parts.storage = storage or parts.storage
    workers = loops(db, settings, ids, parts.provider, parts.driver, parts.storage, sender)
    runner = Runner(db, settings, ids, workers, alone=alone)
    services = services_room.build(
        db, settings, ids, on_fleet=parts.on_fleet, check_kubeconfig=parts.check_kubeconfig
    )
    return System(settings, db, ids, services, runner, parts, None if alone else url)
