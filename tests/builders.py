"""What tests of store, services and loops start from: a fleet, a tenant, a cluster, nodes in any phase.

Each builder says only what matters to its test. They write through the store's own functions, so that what
they make is what the system would have made.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from ebbtide import services as services_room
from ebbtide.clock import ManualClock
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase, node_name
from ebbtide.ids import SeededIds
from ebbtide.services.access import bootstrap
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Caller, ClusterOrder, DriverVersion, Role
from ebbtide.services.fleet_file import FleetFile, HostSpec, PoolSpec, RegionSpec
from ebbtide.settings import Settings
from ebbtide.store import access, clusters, fleet, nodes, pools
from ebbtide.store.access import ProjectRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NewNode

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
REGION, POOL, GPU_TYPE = "eu-1", "h100", "H100_SXM"
SIZE = 8  # GPUs of a host, unless said otherwise
DRIVER = {"id": "v1", "cuda_version": "12.8", "nvidia_driver_version": "570", "os": "ubuntu-22.04"}

_WAY = (Phase.SCHEDULING, Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.RUNNING)


def a_database(url: str, clock: ManualClock | None = None, *, connections: int = 10) -> Database:
    """The database of a test on a clock that stands still."""
    return Database(url, clock or ManualClock(START), pool_size=connections)


# -- a fleet as a file


def a_pool(
    hosts: int | Sequence[str] = 4,
    *,
    name: str = POOL,
    region: str = REGION,
    gpu_type: str = GPU_TYPE,
    gpus_per_host: int = SIZE,
    dollars: float | None = 2.0,
    headroom: int = 0,
    blocks: int = 1,
) -> PoolSpec:
    """A pool of so many hosts, dealt out over `blocks` fabric blocks, or of the hosts named."""
    names = [f"{name}-{number:05}" for number in range(hosts)] if isinstance(hosts, int) else hosts
    return PoolSpec(
        name=name,
        region=region,
        gpu_type=gpu_type,
        gpus_per_host=gpus_per_host,
        microdollars_per_gpu_hour=None if dollars is None else round(dollars * 1_000_000),
        headroom_hosts=headroom,
        turn_over_s=5,
        boot_s=10,
        hosts=tuple(HostSpec(host, f"b{number % blocks}") for number, host in enumerate(names)),
    )


def a_fleet(*pools: PoolSpec) -> FleetFile:
    """The pools given (by default one of four hosts) and the regions that they name."""
    listed = pools or (a_pool(),)
    names = dict.fromkeys(pool.region for pool in listed)
    return FleetFile(tuple(RegionSpec(name, (DriverVersion(**DRIVER),)) for name in names), tuple(listed))


def an_order(name: str = "demo", gpus: int = SIZE, target: int = 0, **more: object) -> ClusterOrder:
    """A cluster of so many standard GPUs and a target of so many preemptible ones."""
    given = {"region": REGION, "gpu_type": GPU_TYPE, **more}
    return ClusterOrder(cluster_name=name, num_gpus=gpus, num_preemptible_gpus=target, **given)  # type: ignore[arg-type]  # fields by name


# -- services over a database, no loops


@dataclass
class Office:
    """Services, ids and a clock over one database; nothing runs by itself."""

    db: Database
    clock: ManualClock
    settings: Settings
    ids: SeededIds = field(default_factory=lambda: SeededIds(7))

    def __post_init__(self) -> None:
        self.services = services_room.build(self.db, self.settings, self.ids, check_kubeconfig=str)
        self.planner = Planner(self.settings, self.ids)

    async def caller(self, slug: str = "acme", role: Role = Role.MEMBER) -> Caller:
        """A caller of that project, which is made if it is not there."""
        key = await bootstrap(
            self.db,
            self.ids,
            project_slug=slug,
            project_name=slug.title(),
            organization_name="Local",
            role=role,
        )
        return await self.services.access.authenticate(key.secret)

    async def operator(self) -> Caller:
        return await self.caller("operations", Role.OPERATOR)


@asynccontextmanager
async def an_office(
    url: str, file: FleetFile | None = None, *, settings: Settings | None = None, connections: int = 10
) -> AsyncIterator[Office]:
    """An office over a fleet."""
    clock = ManualClock(START)
    db = a_database(url, clock, connections=connections)
    office = Office(db, clock, settings or Settings())
    try:
        if file:
            await office.services.fleet.apply_file(file)
        yield office
    finally:
        await db.close()


# -- rows


@dataclass
class Rows:
    """Writes rows for tests of the store, with readable ids: hosts `host-0`, nodes `node-0` and so on."""

    project_id: str = "project"
    cluster_id: str = "cluster"

    async def ground(self, tx: Tx, hosts: int = 4) -> None:
        """A region, a pool of so many hosts, a project and a READY cluster."""
        await self.pool(tx, hosts)
        await self.project(tx)
        await self.cluster(tx)

    async def pool(self, tx: Tx, hosts: int, name: str = POOL) -> None:
        await fleet.put_region(tx, REGION, 0, [DRIVER])
        await fleet.put_pool(
            tx,
            name,
            region=REGION,
            gpu_type=GPU_TYPE,
            gpus_per_host=SIZE,
            headroom_hosts=0,
            turn_over_s=20,
            boot_s=30,
            memory_gib=1024,
            cpu_cores=96,
            provider="simulated",
        )
        prefix = "host" if name == POOL else f"{name}-host"
        await fleet.add_hosts(
            tx,
            [
                {"id": host, "pool": name, "name": host, "fabric_block": "b1", "source": "file"}
                for host in (f"{prefix}-{number}" for number in range(hosts))
            ],
        )

    async def project(self, tx: Tx, id_: str | None = None) -> None:
        name = id_ or self.project_id
        await access.insert_project(tx, ProjectRow(name, name, name, "org", "Org", 1, tx.now))

    async def cluster(self, tx: Tx, id_: str | None = None, *, target: int = 0, **more: object) -> None:
        """A READY cluster of one standard node; `more` overrides columns."""
        values: dict[str, object] = {
            "id": id_ or self.cluster_id,
            "project_id": self.project_id,
            "name": id_ or self.cluster_id,
            "region": REGION,
            "pool": POOL,
            "gpu_type": GPU_TYPE,
            "billing_type": "ON_DEMAND",
            "cluster_type": "KUBERNETES",
            "cuda_version": "12.8",
            "nvidia_driver_version": "570",
            "nvidia_version_id": "v1",
            "echo": {},
            "node_group": "group",
            "gpus_per_host": SIZE,
            "standard_hosts": 1,
            "target_hosts": target,
            "phase": ClusterPhase.READY,
            "control_plane_ready": True,
            "created_at": tx.now,
            **more,
        }
        await clusters.insert(tx, **values)

    def new_node(
        self,
        number: int,
        *,
        compute_class: ComputeClass = ComputeClass.PREEMPTIBLE,
        cluster_id: str | None = None,
        host: bool = True,
        claim_id: str | None = None,
    ) -> NewNode:
        ours = compute_class in (ComputeClass.STANDARD, ComputeClass.PREEMPTIBLE)
        return NewNode(
            uid=f"node-{number}",
            name=node_name(compute_class, "group", f"{number:05}"),
            cluster_id=(cluster_id or self.cluster_id) if ours else None,
            project_id=self.project_id,
            pool=POOL,
            compute_class=compute_class,
            gpus=SIZE,
            claim_id=claim_id,
            host_id=f"host-{number}" if host else None,
        )

    async def node(self, tx: Tx, number: int, phase: Phase = Phase.RUNNING, **more: object) -> str:
        """Node `node-<number>` on `host-<number>`, in the phase given; its uid."""
        new = self.new_node(number, **more)  # type: ignore[arg-type]  # handed on as they are
        await nodes.place(tx, [new])
        await advance(tx, [new.uid], phase)
        return new.uid

    async def nodes(self, tx: Tx, count: int, phase: Phase = Phase.RUNNING, **more: object) -> list[str]:
        """So many of them at once."""
        new = [self.new_node(number, **more) for number in range(count)]  # type: ignore[arg-type]  # handed on
        await nodes.place(tx, new)
        await advance(tx, [one.uid for one in new], phase)
        return [one.uid for one in new]


async def advance(tx: Tx, uids: Sequence[str], phase: Phase) -> None:
    """Move SCHEDULING nodes along their way to the phase."""
    way = _WAY if phase in (*_WAY, Phase.DRAINING, Phase.REMOVING, Phase.REMOVED) else ()
    for before, after in itertools.pairwise(way):
        if before is phase:
            return
        await nodes.move(tx, [Move(uid, before, after) for uid in uids])
    if phase in (Phase.DRAINING, Phase.REMOVING, Phase.REMOVED):
        await nodes.move(tx, [a_notice(uid, tx.now) for uid in uids])
    if phase in (Phase.REMOVING, Phase.REMOVED):
        await nodes.move(tx, [Move(uid, Phase.DRAINING, Phase.REMOVING) for uid in uids])
    if phase is Phase.REMOVED:
        await nodes.move(tx, [Move(uid, Phase.REMOVING, Phase.REMOVED) for uid in uids])


def a_notice(uid: str, now: datetime, *, window_s: int = 300, **more: object) -> Move:
    """The move of a reclaim: RUNNING to DRAINING with its deadline."""
    given: dict[str, object] = {
        "end_reason": EndReason.PREEMPTED,
        "drain_kind": DrainKind.RECLAIM,
        "deadline": now + timedelta(seconds=window_s),
        **more,
    }
    return Move(uid, Phase.RUNNING, Phase.DRAINING, **given)  # type: ignore[arg-type]  # fields by name


async def rows(tx: Tx, table: str, where: str = "true", **values: object) -> list[dict[str, object]]:
    """Rows of a table as dictionaries, for what no function of the store reads."""
    found = await tx.conn.execute(sa.text(f"SELECT * FROM {table} WHERE {where}"), values)
    return [dict(row._mapping) for row in found]


async def count(tx: Tx, table: str, where: str = "true", **values: object) -> int:
    """How many rows there are."""
    query = sa.text(f"SELECT count(*) FROM {table} WHERE {where}")
    number: int = (await tx.conn.execute(query, values)).scalar_one()
    return number


# -- loops


async def one_plan(office: Office, pool: str = POOL) -> None:
    """The pool's regular plan, once, as its loop makes it."""
    planner = office.planner

    async def work(tx: Tx) -> None:
        locked = await pools.lock(tx, pool)
        await planner.assign(tx, locked)
        await planner.replace_standard(tx, locked)
        await planner.replan(tx, locked)
        await planner.refill(tx, locked)

    await office.db.run(work)


async def control_planes_are_ready(tx: Tx) -> None:
    """As the clusters' loop leaves it once each control plane is up."""
    for row in await clusters.live(tx):
        await clusters.set_fields(tx, row.id, control_plane_ready=True, observed_until=tx.now)


async def all_join(tx: Tx) -> None:
    """Every node that has a host comes up, as the lifecycle loop would bring it."""
    for before, after in itertools.pairwise(_WAY):
        waiting = await nodes.in_phase(tx, before)
        await nodes.move(tx, [Move(node.uid, before, after) for node in waiting])


async def all_leave(tx: Tx) -> None:
    """Every drain ends and every host comes back."""
    for before, after in ((Phase.DRAINING, Phase.REMOVING), (Phase.REMOVING, Phase.REMOVED)):
        leaving = await nodes.in_phase(tx, before)
        await nodes.move(tx, [Move(node.uid, before, after) for node in leaving])


async def promises_kept(tx: Tx, pool: str = POOL) -> None:
    """Invariant 1: one occupant per host, and promised <= free + leaving."""
    row = await pools.load(tx, pool)
    assert row is not None
    view = await pools.view(tx, row)
    assert view.promised <= view.free_total + view.leaving, view
    held = "SELECT host_id, uid FROM nodes WHERE phase NOT IN ('PENDING', 'REMOVED') ORDER BY 1, 2"
    said = "SELECT id, node_uid FROM hosts WHERE node_uid IS NOT NULL ORDER BY 1, 2"
    occupants = [tuple(row) for row in await tx.conn.execute(sa.text(held))]
    assert occupants == [tuple(row) for row in await tx.conn.execute(sa.text(said))]
    assert len({host for host, _ in occupants}) == len(occupants)
