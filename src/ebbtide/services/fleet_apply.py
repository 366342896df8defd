"""Bringing the inventory in line with a list: regions, pools, prices and hosts added, changed and retired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.core.hosts import HostState
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass
from ebbtide.core.pricing import Rate, half_price, rate_at
from ebbtide.errors import BadInput, NotFound
from ebbtide.ids import Ids
from ebbtide.services.fleet_file import FleetFile, HostSpec, PoolSpec
from ebbtide.services.maintenance import Maintainer
from ebbtide.settings import Settings
from ebbtide.store import fleet, maintenance, pools, visits
from ebbtide.store.db import Tx
from ebbtide.store.fleet import HostRow
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

# hosts.source: who lists a host, and may let it go by listing it no longer.
FILE = "file"
SYNC = "sync"
_RETIRING = {
    FILE: "no longer in the fleet file; it leaves the inventory when it is free",
    SYNC: "no longer in the inventory of its source; it leaves when it is free",
}
_FIXED = ("region", "gpu_type", "gpus_per_host")
_TOLD = ("headroom_hosts", "turn_over_s", "boot_s", "memory_gib", "cpu_cores", "provider", "wipe")
_NAMED = 8  # hosts that a sentence names


@dataclass(frozen=True, slots=True)
class FleetChanges:
    """What applying a list did, in sentences, and what it left for later because a host is lent."""

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(slots=True)
class _Report:
    before: Counter[str]  # by pool: the hosts that could leave by this list
    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    removed: Counter[str] = field(default_factory=Counter)
    moved: set[str] = field(default_factory=set)  # pools that some of the removed went from to another


class Applier:
    """Applies lists inside the caller's transaction, one after the other."""

    def __init__(self, ids: Ids, settings: Settings, maintainer: Maintainer) -> None:
        self._ids = ids
        self._settings = settings
        self._maintainer = maintainer

    async def file(self, tx: Tx, file: FleetFile, *, most_removed_percent: int | None = None) -> FleetChanges:
        """Everything as the file has it.

        most_removed_percent: how many of a pool's hosts may leave by it. Raises BadInput.
        """
        # One file after the other; every pool that hosts may leave is locked before any host moves.
        await fleet.lock_file(tx)
        for known in await pools.all_(tx):
            await pools.lock(tx, known.name)
        before = await fleet.hosts_of(tx)
        report = _Report(_counted(before, FILE))
        await self._regions(tx, file, report)
        for pool in sorted(file.pools, key=lambda one: one.name):
            await self._pool(tx, pool, report)
        listed = {host.name for pool in file.pools for host in pool.hosts}
        await self._retire_missing(tx, before, listed, FILE, report)
        await _retire_pools(tx, file, report)
        return _changes(report, most_removed_percent)

    async def hosts(
        self, tx: Tx, pool: str, hosts: Sequence[HostSpec], *, most_removed_percent: int | None = None
    ) -> FleetChanges:
        """The hosts of one pool as their source has them; those that others list stay.

        Only with most_removed_percent=100 it takes hosts from other pools, or from who else lists them.
        Raises BadInput, NotFound (no such pool, or a retired one).
        """
        await fleet.lock_file(tx)
        used = await pools.all_(tx)
        if pool not in {one.name for one in used}:
            raise NotFound(f"there is no pool {pool[:80]!r}; `ebbtide fleet pools` lists them", param="pool")
        for known in used:  # a host may come from another one
            await pools.lock(tx, known.name)
        before = await fleet.hosts_of(tx)
        listed = {host.name for host in hosts}
        if most_removed_percent is not None and most_removed_percent < 100:
            _refuse_others(before, pool, listed)
        report = _Report(_counted(before, SYNC))
        await self._hosts(tx, pool, hosts, SYNC, report)
        await self._retire_missing(tx, [row for row in before if row.pool == pool], listed, SYNC, report)
        await _wake(tx, pool)
        return _changes(report, most_removed_percent)

    async def _regions(self, tx: Tx, file: FleetFile, report: _Report) -> None:
        known = {row.name: row for row in await fleet.all_regions(tx)}
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
            elif list(known[region.name].driver_versions) != versions:
                now, was = _told(versions), _told(known[region.name].driver_versions)
                report.done.append(f"region {region.name}: driver versions are {now} (were {was})")

    async def _pool(self, tx: Tx, spec: PoolSpec, report: _Report) -> None:
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
            wipe=spec.wipe,
        )
        if before:
            for name in (*_FIXED, *_TOLD):
                was, now = getattr(before, name), getattr(spec, name)
                if was != now:
                    report.done.append(f"pool {spec.name}: {name} is {now} (was {was})")
        else:
            report.done.append(f"pool {spec.name} added")
        await self._price(tx, spec, report)
        await self._hosts(tx, spec.name, spec.hosts, FILE, report)
        await _wake(tx, spec.name)

    async def _price(self, tx: Tx, spec: PoolSpec, report: _Report) -> None:
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

    async def _hosts(
        self, tx: Tx, pool: str, hosts: Sequence[HostSpec], source: str, report: _Report
    ) -> None:
        known = {row.name: row for row in await fleet.hosts_by_names(tx, [host.name for host in hosts])}
        added: list[dict[str, object]] = []
        for host in hosts:
            row = known.get(host.name)
            if row is None:
                added.append(
                    {
                        "id": self._ids.uuid4(),
                        "pool": pool,
                        "name": host.name,
                        "fabric_block": host.fabric_block,
                        "source": source,
                    }
                )
            elif row.pool != pool and row.node_uid:
                report.kept.append(
                    f"host {host.name} stays in pool {row.pool} while it is lent; reload when it is free"
                )
            else:
                await _update_host(tx, row, pool, host.fabric_block, source, report)
        await fleet.add_hosts(tx, added)
        if added:
            names = ", ".join(str(one["name"]) for one in added[:_NAMED])
            more = ", ..." if len(added) > _NAMED else ""
            report.done.append(f"pool {pool}: {len(added)} hosts added ({names}{more})")

    async def _retire_missing(
        self, tx: Tx, before: Sequence[HostRow], listed: Collection[str], source: str, report: _Report
    ) -> None:
        """Retire what its source no longer lists of what it had before.

        A lent host keeps its node until the node goes by itself.
        """
        for row in before:
            if row.source != source or row.state is HostState.RETIRED or row.name in listed:
                continue
            report.removed[row.pool] += 1
            await fleet.retire(tx, row.id, _RETIRING[source])
            await visits.hint(tx, Loop.FULFILLMENT, [row.pool])  # it may have been promised
            lent = row.node_uid and not await self._end_maintenance(tx, row)
            where = report.kept if lent else report.done
            where.append(f"host {row.name} {'leaves when it is free' if lent else 'retired'}")

    async def _end_maintenance(self, tx: Tx, row: HostRow) -> bool:
        """End the maintenance of a host that leaves. Whether it is empty then."""
        going_on = await maintenance.open_of(tx, row.id)
        if going_on is None:
            return False
        pool = await pools.load(tx, row.pool)
        assert pool is not None
        await self._maintainer.end(tx, pool, going_on, "removed")
        return row.node_uid == going_on.node_uid


def _counted(hosts: Sequence[HostRow], source: str) -> Counter[str]:
    """How many hosts of each pool a source lists."""
    return Counter(row.pool for row in hosts if row.source == source and row.state is not HostState.RETIRED)


def _refuse_others(hosts: Sequence[HostRow], pool: str, listed: Collection[str]) -> None:
    """Raises BadInput when a list of a pool's hosts names some that are not its own to change."""
    others = [
        row
        for row in hosts
        if row.name in listed
        and row.state is not HostState.RETIRED
        and (row.pool, row.source) != (pool, SYNC)
    ]
    if others:
        named = ", ".join(f"{row.name} (pool {row.pool}, {_OWNERS[row.source]})" for row in others[:_NAMED])
        more = ", ..." if len(others) > _NAMED else ""
        raise BadInput(
            f"{len(others)} hosts that are listed are known otherwise: {named}{more}. Nothing was changed. "
            f"Look whether the list is the one of pool {pool}; if it is to take them over, say so "
            "(`--force`, `most_removed_percent=100`).",
            param="pool",
            code="hosts_of_others",
        )


def _changes(report: _Report, most_removed_percent: int | None) -> FleetChanges:
    """What was done. Raises BadInput when more hosts leave a pool than may at once.

    One host may leave always, unless it is the pool's last: a percentage of few is less than one.
    """
    for pool, removed in sorted(report.removed.items()):
        before = report.before[pool]
        if (
            most_removed_percent is not None
            and removed * 100 > before * most_removed_percent
            and (removed > 1 or before == 1)
        ):
            elsewhere = " or listed in another pool" if pool in report.moved else ""
            raise BadInput(
                f"{removed} of {before} hosts of pool {pool} are no longer listed{elsewhere}, more than "
                f"{most_removed_percent} % of them. Nothing was changed. Look whether the list is whole; if "
                "they are to leave, say so (`--force`, `most_removed_percent=100`).",
                param="most_removed_percent",
                code="too_many_removed",
            )
    return FleetChanges(tuple(report.done), tuple(report.kept))


def _told(versions: Sequence[Mapping[str, str]]) -> str:
    fields = ("id", "cuda_version", "nvidia_driver_version", "os")
    return ", ".join("/".join(version[name] for name in fields) for version in versions)


async def _wake(tx: Tx, pool: str) -> None:
    await visits.hint(tx, Loop.FULFILLMENT, [pool])
    await visits.hint(tx, Loop.LEAKS, [pool])


async def _retire_pools(tx: Tx, file: FleetFile, report: _Report) -> None:
    """Pools and regions that the file no longer has leave with their last host."""
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


async def _refuse_fixed(tx: Tx, before: PoolRow, spec: PoolSpec) -> None:
    """Region, GPU model and GPUs per host are what clusters were promised.

    Fixed while any cluster uses the pool.
    """
    changed = [name for name in _FIXED if getattr(before, name) != getattr(spec, name)]
    if changed and await pools.in_use(tx, before.name):
        raise BadInput(
            f"pool {spec.name}: {', '.join(changed)} cannot change while clusters or claims use the pool. "
            "Add a pool of another name instead.",
            param=changed[0],
        )


async def _update_host(tx: Tx, row: HostRow, pool: str, block: str, source: str, report: _Report) -> None:
    changes: dict[str, object] = {}
    if row.state is HostState.RETIRED:
        state = await fleet.bring_back(tx, row.id)
        still = "" if state is HostState.AVAILABLE else f", still {state}"
        report.done.append(f"host {row.name} is back in the inventory{still}")
    elif row.pool != pool:  # it leaves the other pool as one that is listed no longer does
        report.removed[row.pool] += 1
        report.before[row.pool] += row.source != source
        report.moved.add(row.pool)
        await visits.hint(tx, Loop.FULFILLMENT, [row.pool])
    if (row.pool, row.fabric_block) != (pool, block):
        changes |= {"pool": pool, "fabric_block": block}
        report.done.append(f"host {row.name} is now in pool {pool}, block {block}")
    if row.source != source:
        changes["source"] = source
        report.done.append(f"host {row.name} is listed by the {_LISTS[source]} now")
    if changes:
        await fleet.set_host(tx, row.id, **changes)


_LISTS = {FILE: "fleet file", SYNC: "synchronised inventory"}
_OWNERS = {FILE: "of the fleet file", SYNC: "of an inventory", "api": "added by hand"}
