"""The operator's view of the fleet, and the fleet file: what it adds, changes and retires at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ebbtide.core.hosts import Bucket, HostState, bucket, split_headroom
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.pricing import Rate, rate_at
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Caller, DriverVersion, HostDetails, NodeDetails, PoolDetails
from ebbtide.services.fleet_apply import FILE, Applier, FleetChanges
from ebbtide.services.fleet_file import FleetFile, parse
from ebbtide.services.maintenance import Maintainer
from ebbtide.services.views import node_details
from ebbtide.settings import Settings
from ebbtide.store import fleet, instances, maintenance, pools, reading, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.fleet import HostRow
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

__all__ = [
    "FILE",
    "OWNERSHIP",
    "FleetChanges",
    "FleetService",
    "Ownership",
    "host_details",
    "host_named",
    "locked_host",
]


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who writes a field.

    The fleet file (read again on reload) or the API (which the file never overwrites).
    """

    what: str
    owner: str
    note: str


@dataclass(frozen=True, slots=True)
class FleetRegion:
    name: str
    driver_versions: tuple[DriverVersion, ...]
    pools: tuple[PoolDetails, ...]


OWNERSHIP = (
    Ownership(
        "regions: name, driver versions, order",
        "file",
        "a region that is not listed is retired when no pool uses it",
    ),
    Ownership(
        "pools: GPU model, GPUs per host, headroom, turn-over, machine size, wipe policy",
        "file",
        "region, GPU model and GPUs per host are fixed while the pool is in use",
    ),
    Ownership(
        "prices",
        "file",
        "a new price is valid from the reload on; past time keeps the price it was used at",
    ),
    Ownership(
        "hosts: existence, pool, fabric block",
        "file",
        "a host that is not listed leaves when it is free; a lent one is never forgotten",
    ),
    Ownership(
        "hosts: cordoned or quarantined",
        "api",
        "`ebbtide fleet cordon` and `uncordon`; a reload does not touch it",
    ),
    Ownership("claims, clusters, nodes, projects, keys", "api", "the file knows nothing of them"),
)


class FleetService:
    def __init__(
        self,
        db: Database,
        ids: Ids,
        settings: Settings,
        planner: Planner,
        on_fleet: Callable[[FleetFile], None] | None = None,
    ) -> None:
        self._db = db
        self._on_fleet = on_fleet
        self._ids = ids
        self._settings = settings
        self._planner = planner
        self._applier = Applier(ids, settings, Maintainer(settings, ids, planner))

    # -- reading

    async def pools(self, caller: Caller) -> tuple[PoolDetails, ...]:
        """Every pool with its hosts by bucket (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            rates = await fleet.all_rates(tx)
            return tuple([await _pool_details(tx, pool, rates) for pool in await pools.all_(tx)])

    async def regions(self, caller: Caller) -> tuple[FleetRegion, ...]:
        """Regions in the fleet file's order, with their pools and driver versions (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            rates = await fleet.all_rates(tx)
            found = [await _pool_details(tx, pool, rates) for pool in await pools.all_(tx)]
            return tuple(
                FleetRegion(
                    row.name,
                    tuple(DriverVersion(**version) for version in row.driver_versions),
                    tuple(pool for pool in found if pool.region == row.name),
                )
                for row in await fleet.all_regions(tx)
            )

    async def hosts(self, caller: Caller, pool: str | None = None) -> tuple[HostDetails, ...]:
        """Hosts of a pool, or of all, with their occupants (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            return tuple(host_details(row) for row in await fleet.hosts_of(tx, pool))

    async def nodes(self, caller: Caller, cluster_id: str | None = None) -> tuple[NodeDetails, ...]:
        """Nodes that are not removed, with the sentence of their last visit (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            rows = await reading.live(tx, cluster_id)
            runs = await instances.last_runs(tx, [row.uid for row in rows])
        return tuple(
            replace(node_details(row), said=runs[row.uid].last_line if row.uid in runs else None)
            for row in rows
        )

    async def ownership(self, caller: Caller) -> tuple[Ownership, ...]:
        """Which fields the fleet file owns, and which the API (operators)."""
        require_operator(caller)
        return OWNERSHIP

    # -- acting

    async def reclaim(self, caller: Caller, pool: str, hosts: int, reason: str) -> tuple[NodeDetails, ...]:
        """Take up to `hosts` preemptible nodes back with the full drain, for no claim (operators).

        The hosts come back free and rest for the cooldown; who wants to keep them makes a claim instead.
        """
        require_operator(caller)
        if hosts < 1:
            raise BadInput(f"hosts is 1 or more, got {hosts}", param="hosts")

        async def work(tx: Tx) -> tuple[NodeDetails, ...]:
            uids = await self._planner.take(tx, await pools.lock(tx, pool), hosts, reason)
            after = {"reason": reason, "asked": hosts, "nodes": uids}
            await record(tx, caller, "fleet.reclaim", pool, after=after)
            return tuple(node_details(row) for row in await reading.by_uids(tx, uids))

        return await self._db.run(work)

    async def set_cordon(
        self, caller: Caller, host: str, *, cordoned: bool, reason: str | None = None
    ) -> HostDetails:
        """Keep a host from new occupants, or let it have them again; the present one stays (operators).
        Raises NotFound, and Conflict while it is in maintenance.

        Letting it have them again also ends a quarantine.
        """
        require_operator(caller)

        async def work(tx: Tx) -> HostDetails:
            _, row = await locked_host(tx, host)
            if await maintenance.open_of(tx, row.id):
                raise Conflict(
                    f"{row.name} is in maintenance, which keeps it from new occupants; `ebbtide fleet hosts "
                    f"return {row.name}` puts it back into service",
                    code="in_maintenance",
                )
            state = HostState.CORDONED if cordoned else HostState.AVAILABLE
            failures = row.boot_failures if cordoned else 0
            await fleet.set_host(
                tx, row.id, state=state, state_reason=reason if cordoned else None, boot_failures=failures
            )
            await visits.hint(tx, Loop.FULFILLMENT, [row.pool])
            after = {"state": state, "reason": reason}
            await record(tx, caller, "host.cordon", row.name, before={"state": row.state}, after=after)
            return host_details(await host_named(tx, host))

        return await self._db.run(work)

    async def apply(self, caller: Caller, text: str | bytes, source: str = "fleet.yaml") -> FleetChanges:
        """Bring regions, pools, prices and hosts in line with a fleet file (operators). All or nothing.

        Raises BadInput naming lines, or the field that cannot change while hosts are lent.
        """
        require_operator(caller)
        return await self.apply_file(parse(text, source), caller)

    async def apply_file(self, file: FleetFile, caller: Caller | None = None) -> FleetChanges:
        """The same for a file that was read already; without a caller, by the process that owns the fleet."""

        async def work(tx: Tx) -> FleetChanges:
            changes = await self._applier.file(tx, file)
            if changes.done or changes.kept:  # a lent host that leaves later has left the inventory now
                after = {"done": changes.done, "kept": changes.kept}
                await record(tx, caller, "fleet.apply", "fleet file", after=after)
            return changes

        changes = await self._db.run(work)
        if self._on_fleet:
            self._on_fleet(file)
        return changes


async def host_named(tx: Tx, name: str) -> HostRow:
    """A host that is in the inventory. Raises NotFound."""
    row = await fleet.host_by_name(tx, name)
    if row is None:
        raise NotFound(
            f"there is no host {name[:80]!r}; `ebbtide fleet hosts` lists them",
            param="host",
            code="host_not_found",
        )
    return row


async def locked_host(tx: Tx, name: str) -> tuple[PoolRow, HostRow]:
    """A host under its pool's lock. A fleet file that moves or retires hosts meanwhile is waited for."""
    await fleet.lock_file(tx)
    pool = await pools.lock(tx, (await host_named(tx, name)).pool)
    return pool, await host_named(tx, name)


async def _pool_details(tx: Tx, pool: PoolRow, rates: list[Rate]) -> PoolDetails:
    counts: Counter[Bucket] = Counter()
    for state, compute_class, phase, number in await pools.bucket_counts(tx, pool.name):
        found = bucket(
            HostState(state),
            ComputeClass(compute_class) if compute_class else None,
            Phase(phase) if phase else None,
        )
        if found is not None:
            counts[found] += number
    view = await pools.view(tx, pool)
    now_s = epoch_s(tx.now)
    prices = {
        one: rate_at(rates, pool.name, one, now_s)
        for one in (ComputeClass.STANDARD, ComputeClass.PREEMPTIBLE)
    }
    return PoolDetails(
        name=pool.name,
        region=pool.region,
        gpu_type=pool.gpu_type,
        gpus_per_host=pool.gpus_per_host,
        hosts=sum(counts.values()),
        headroom_hosts=pool.headroom_hosts,
        counts={
            one.value: number for one, number in split_headroom(dict(counts), pool.headroom_hosts).items()
        },
        promised=view.promised,
        microdollars_per_gpu_hour=_price(prices[ComputeClass.STANDARD]),
        preemptible_microdollars_per_gpu_hour=_price(prices[ComputeClass.PREEMPTIBLE]),
        provider=pool.provider,
        wipe=pool.wipe,
    )


def _price(rate: Rate | None) -> int | None:
    return rate.microdollars_per_gpu_hour if rate else None


def host_details(row: HostRow) -> HostDetails:
    found = bucket(
        row.state,
        ComputeClass(row.node_class) if row.node_class else None,
        Phase(row.node_phase) if row.node_phase else None,
    )
    return HostDetails(
        id=row.id,
        name=row.name,
        pool=row.pool,
        fabric_block=row.fabric_block,
        state=row.state,
        state_reason=row.state_reason,
        source=row.source,
        bucket=found.value if found else "retired",
        node_name=row.node_name,
        node_uid=row.node_uid,
        cluster_id=row.cluster_id,
        lent_to=row.lent_to,
        since=row.node_since,
    )
