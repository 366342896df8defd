"""The operator's view of the fleet, and the fleet file: what it adds, changes and retires at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.core.hosts import Bucket, HostState, bucket, split_headroom
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.pricing import Rate, half_price, rate_at
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.capacity import Planner
from ebbtide.services.details import Caller, HostDetails, NodeDetails, PoolDetails
from ebbtide.services.fleet_file import FleetFile, PoolSpec, parse
from ebbtide.services.maintenance import Maintainer
from ebbtide.services.views import node_details
from ebbtide.settings import Settings
from ebbtide.store import fleet, maintenance, pools, reading, visits
from ebbtide.store.db import Database, Tx
from ebbtide.store.fleet import HostRow
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

FILE = "file"  # hosts.source of what the fleet file lists
RETIRING = "no longer in the fleet file; it leaves the inventory when it is free"


@dataclass(frozen=True, slots=True)
class FleetChanges:
    """What applying a file did, in sentences, and what it left for later because a host is lent."""

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who writes a field.

    The fleet file (read again on reload) or the API (which the file never overwrites).
    """

    what: str
    owner: str
    note: str


OWNERSHIP = (
    Ownership(
        "regions: name, driver versions, order",
        "file",
        "a region that is not listed is retired when no pool uses it",
    ),
    Ownership(
        "pools: GPU model, GPUs per host, headroom, turn-over, machine size",
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


@dataclass(slots=True)
class _Report:
    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


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
        self._maintainer = Maintainer(settings, ids, planner)

    # -- reading

    async def pools(self, caller: Caller) -> tuple[PoolDetails, ...]:
        """Every pool with its hosts by bucket (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            rates = await fleet.all_rates(tx)
            return tuple([await _pool_details(tx, pool, rates) for pool in await pools.all_(tx)])

    async def hosts(self, caller: Caller, pool: str | None = None) -> tuple[HostDetails, ...]:
        """Hosts of a pool, or of all, with their occupants (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            return tuple(host_details(row) for row in await fleet.hosts_of(tx, pool))

    async def nodes(self, caller: Caller, cluster_id: str | None = None) -> tuple[NodeDetails, ...]:
        """Nodes that are not removed, with the sentence of their last visit (operators)."""
        require_operator(caller)
        async with self._db.read() as tx:
            return tuple(node_details(row) for row in await reading.live(tx, cluster_id))

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
            row = await fleet.host_by_name(tx, host)
            if row is None:
                raise NotFound(f"there is no host {host[:80]!r}", param="host")
            await pools.lock(tx, row.pool)
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
            changed = await fleet.host_by_name(tx, host)
            assert changed is not None
            return host_details(changed)

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
            report = _Report()
            # One file after the other; every pool that hosts may leave is locked before any host moves.
            await fleet.lock_file(tx)
            for known in await pools.all_(tx):
                await pools.lock(tx, known.name)
            await self._apply_regions(tx, file, report)
            for pool in sorted(file.pools, key=lambda one: one.name):
                await self._apply_pool(tx, pool, report)
            await self._retire_missing(tx, file, report)
            changes = FleetChanges(tuple(report.done), tuple(report.kept))
            if changes.done:
                await record(tx, caller, "fleet.apply", "fleet file", after={"done": changes.done})
            return changes

        changes = await self._db.run(work)
        if self._on_fleet:
            self._on_fleet(file)
        return changes

    async def _apply_regions(self, tx: Tx, file: FleetFile, report: _Report) -> None:
        known = {row.name for row in await fleet.all_regions(tx)}
        for position, region in enumerate(file.regions):
            versions = [
                {
                    "id": version.id,
                    "cuda_version": version.cuda_version,
                    "nvidia_driver_version": version.nvidia_driver_version,
                    "os": version.os,
                }
                for version in region.driver_versions
            ]
            await fleet.put_region(tx, region.name, position, versions)
            if region.name not in known:
                report.done.append(f"region {region.name} added")

    async def _apply_pool(self, tx: Tx, spec: PoolSpec, report: _Report) -> None:
        before = await pools.load(tx, spec.name)
        if before:
            before = await pools.lock(tx, spec.name)
            await _refuse_fixed(tx, before, spec)
        await fleet.put_pool(
            tx,
            spec.name,
            region=spec.region,
            gpu_type=spec.gpu_type,
            gpus_per_host=spec.gpus_per_host,
            headroom_hosts=spec.headroom_hosts,
            turn_over_s=spec.turn_over_s,
            boot_s=spec.boot_s,
            memory_gib=spec.memory_gib,
            cpu_cores=spec.cpu_cores,
            provider=spec.provider,
        )
        if not before:
            report.done.append(f"pool {spec.name} added")
        await self._apply_price(tx, spec, report)
        await self._apply_hosts(tx, spec, report)
        await visits.hint(tx, Loop.FULFILLMENT, [spec.name])
        await visits.hint(tx, Loop.LEAKS, [spec.name])

    async def _apply_price(self, tx: Tx, spec: PoolSpec, report: _Report) -> None:
        if spec.microdollars_per_gpu_hour is None:
            return
        now_s = epoch_s(tx.now)
        standard = Rate(spec.name, ComputeClass.STANDARD, now_s, spec.microdollars_per_gpu_hour)
        rates = await fleet.all_rates(tx)
        for rate in (standard, half_price(standard, self._settings.preemptible_discount_percent)):
            present = rate_at(rates, rate.pool, rate.compute_class, now_s)
            if present is None or present.microdollars_per_gpu_hour != rate.microdollars_per_gpu_hour:
                await fleet.put_rate(tx, rate)
                dollars = rate.microdollars_per_gpu_hour / 1_000_000
                report.done.append(
                    f"pool {spec.name}: {rate.compute_class} costs ${dollars:.4f} per GPU-hour from now on"
                )

    async def _apply_hosts(self, tx: Tx, spec: PoolSpec, report: _Report) -> None:
        known = {row.name: row for row in await fleet.hosts_by_names(tx, [host.name for host in spec.hosts])}
        added: list[dict[str, object]] = []
        for host in spec.hosts:
            row = known.get(host.name)
            if row is None:
                added.append(
                    {
                        "id": self._ids.uuid4(),
                        "pool": spec.name,
                        "name": host.name,
                        "fabric_block": host.fabric_block,
                        "source": FILE,
                    }
                )
            elif row.pool != spec.name and row.node_uid:
                report.kept.append(
                    f"host {host.name} stays in pool {row.pool} while it is lent; reload when it is free"
                )
            else:
                await _update_host(tx, row, spec.name, host.fabric_block, report)
        await fleet.add_hosts(tx, added)
        if added:
            report.done.append(f"pool {spec.name}: {len(added)} hosts added")

    async def _retire_missing(self, tx: Tx, file: FleetFile, report: _Report) -> None:
        """Retire what the file no longer lists. A lent host keeps its node until the node goes by itself."""
        listed = {host.name for pool in file.pools for host in pool.hosts}
        hosts = [row for row in await fleet.hosts_of(tx) if row.source == FILE and row.name not in listed]
        for row in hosts:
            if row.state is HostState.RETIRED:
                continue
            await fleet.retire(tx, row.id, RETIRING)
            await visits.hint(tx, Loop.FULFILLMENT, [row.pool])  # it may have been promised
            lent = row.node_uid and not await self._end_maintenance(tx, row)
            where = report.kept if lent else report.done
            where.append(f"host {row.name} {'leaves when it is free' if lent else 'retired'}")
        left = {row.pool for row in await fleet.hosts_of(tx)}
        names = {pool.name for pool in file.pools}
        for pool in await pools.all_(tx):
            if pool.name in names:
                continue
            if pool.name in left or await pools.in_use(tx, pool.name):
                report.kept.append(f"pool {pool.name} stays while it has lent hosts or clusters")
            else:
                await fleet.retire_pool(tx, pool.name)
                report.done.append(f"pool {pool.name} retired")
        used = {pool.region for pool in await pools.all_(tx)}
        for region in await fleet.all_regions(tx):
            if region.name not in used and region.name not in {one.name for one in file.regions}:
                await fleet.retire_region(tx, region.name)
                report.done.append(f"region {region.name} retired")

    async def _end_maintenance(self, tx: Tx, row: HostRow) -> bool:
        """End the maintenance of a host that leaves. Whether it is empty then."""
        going_on = await maintenance.open_of(tx, row.id)
        if going_on is None:
            return False
        pool = await pools.load(tx, row.pool)
        assert pool is not None
        await self._maintainer.end(tx, pool, going_on, "removed")
        return row.node_uid == going_on.node_uid


async def _refuse_fixed(tx: Tx, before: PoolRow, spec: PoolSpec) -> None:
    """Region, GPU model and GPUs per host are what clusters were promised.

    Fixed while any cluster uses the pool.
    """
    changed = [
        name
        for name in ("region", "gpu_type", "gpus_per_host")
        if getattr(before, name) != getattr(spec, name)
    ]
    if changed and await pools.in_use(tx, before.name):
        raise BadInput(
            f"pool {spec.name}: {', '.join(changed)} cannot change while clusters or claims use the pool. "
            "Add a pool of another name instead.",
            param=changed[0],
        )


async def _update_host(tx: Tx, row: HostRow, pool: str, block: str, report: _Report) -> None:
    changes: dict[str, object] = {}
    if row.state is HostState.RETIRED:
        state = await fleet.bring_back(tx, row.id)
        still = "" if state is HostState.AVAILABLE else f", still {state}"
        report.done.append(f"host {row.name} is back in the inventory{still}")
    if (row.pool, row.fabric_block) != (pool, block):
        changes |= {"pool": pool, "fabric_block": block}
        report.done.append(f"host {row.name} is now in pool {pool}, block {block}")
    if row.source != FILE:
        changes["source"] = FILE
    if changes:
        await fleet.set_host(tx, row.id, **changes)


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
