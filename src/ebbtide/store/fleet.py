"""What the operator owns: regions, pools, hosts, rates. Written by the fleet file and the operator's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import ComputeClass
from ebbtide.core.pricing import Rate
from ebbtide.store.db import Tx
from ebbtide.store.tables import hosts, pools, rates, regions


@dataclass(frozen=True, slots=True)
class RegionRow:
    name: str
    position: int
    driver_versions: Sequence[Mapping[str, str]]


async def all_regions(tx: Tx) -> list[RegionRow]:
    """Regions in use, in the fleet file's order."""
    rows = await tx.conn.execute(
        sa.select(regions.c.name, regions.c.position, regions.c.driver_versions)
        .where(regions.c.retired_at.is_(None))
        .order_by(regions.c.position, regions.c.name)
    )
    return [RegionRow(**row._mapping) for row in rows]


async def lock_file(tx: Tx) -> None:
    """Let fleet files be applied one after the other: the next waits here until the transaction ends."""
    await tx.conn.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('fleet file', 0))"))


async def put_region(tx: Tx, name: str, position: int, driver_versions: Sequence[Mapping[str, str]]) -> None:
    values = {"position": position, "driver_versions": list(driver_versions), "retired_at": None}
    await tx.conn.execute(
        upsert(regions)
        .values(name=name, **values)
        .on_conflict_do_update(index_elements=["name"], set_=values)
    )


async def retire_region(tx: Tx, name: str) -> None:
    await tx.conn.execute(sa.update(regions).where(regions.c.name == name).values(retired_at=tx.now))


async def put_pool(tx: Tx, name: str, **values: object) -> None:
    """Write a pool's fields; a retired pool of that name is in use again."""
    values = {**values, "retired_at": None}
    await tx.conn.execute(
        upsert(pools)
        .values(name=name, created_at=tx.now, **values)
        .on_conflict_do_update(index_elements=["name"], set_=values)
    )


async def retire_pool(tx: Tx, name: str) -> None:
    await tx.conn.execute(sa.update(pools).where(pools.c.name == name).values(retired_at=tx.now))


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host with its occupant, if any. `lent_to` is the cluster's name or whom the claim is for."""

    id: str
    name: str
    pool: str
    fabric_block: str
    state: HostState
    state_reason: str | None
    source: str
    boot_failures: int
    node_uid: str | None
    node_name: str | None
    node_class: str | None
    node_phase: str | None
    node_since: datetime | None
    cluster_id: str | None
    lent_to: str | None


_HOSTS = """
SELECT h.id, h.name, h.pool, h.fabric_block, h.state, h.state_reason, h.source, h.boot_failures, h.node_uid,
       n.name AS node_name, n.compute_class AS node_class, n.phase AS node_phase, n.phase_since AS node_since,
       n.cluster_id,
       COALESCE(c.name, k.for_whom) AS lent_to
FROM hosts h LEFT JOIN nodes n ON n.uid = h.node_uid LEFT JOIN clusters c ON c.id = n.cluster_id
LEFT JOIN claims k ON k.id = n.claim_id
"""


def _host(row: sa.Row[tuple[object, ...]]) -> HostRow:
    values = dict(row._mapping)
    return HostRow(**{**values, "state": HostState(values["state"])})


async def hosts_of(tx: Tx, pool: str | None = None) -> list[HostRow]:
    """Hosts of a pool, or of all, that are in the inventory or still lent."""
    rows = await tx.conn.execute(
        sa.text(
            _HOSTS + " WHERE (CAST(:pool AS text) IS NULL OR h.pool = :pool) AND (h.state <> 'retired' OR "
            "h.node_uid IS NOT NULL)"
            " ORDER BY h.pool, h.fabric_block, h.name"
        ),
        {"pool": pool},
    )
    return [_host(row) for row in rows]


async def host_by_name(tx: Tx, name: str) -> HostRow | None:
    """A host that is in the inventory."""
    row = (
        await tx.conn.execute(
            sa.text(_HOSTS + " WHERE h.name = :name AND h.state <> 'retired'"), {"name": name}
        )
    ).first()
    return _host(row) if row else None


async def hosts_by_names(tx: Tx, names: Sequence[str]) -> list[HostRow]:
    """Hosts of those names, retired ones too; of several with one name the one in use, else the latest."""
    rows = await tx.conn.execute(
        sa.text(_HOSTS + " WHERE h.name = ANY(:names) ORDER BY h.state <> 'retired', h.created_at"),
        {"names": list(names)},
    )
    return list({row.name: _host(row) for row in rows}.values())


async def add_hosts(tx: Tx, rows: Sequence[Mapping[str, object]]) -> None:
    """Add hosts: id, pool, name, fabric_block, source."""
    if rows:
        await tx.conn.execute(
            sa.insert(hosts), [{"state": HostState.AVAILABLE, "created_at": tx.now, **row} for row in rows]
        )


async def set_host(tx: Tx, host_id: str, **values: object) -> None:
    if "node_uid" in values:
        raise AssertionError("occupants are written by store.nodes.move")
    await tx.conn.execute(sa.update(hosts).where(hosts.c.id == host_id).values(**values))


async def retire(tx: Tx, host_id: str, why: str) -> None:
    """Take a host out of the inventory; what it was is remembered for when it comes back."""
    await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id, hosts.c.state != HostState.RETIRED)
        .values(
            state=HostState.RETIRED,
            retired_at=tx.now,
            state_reason=why,
            state_before=hosts.c.state,
            reason_before=hosts.c.state_reason,
        )
    )


async def bring_back(tx: Tx, host_id: str) -> HostState:
    """Put a retired host back into the inventory, as cordoned or quarantined as it was; answer its state."""
    result = await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id)
        .values(
            state=sa.func.coalesce(hosts.c.state_before, HostState.AVAILABLE.value),
            state_reason=hosts.c.reason_before,
            retired_at=None,
            state_before=None,
            reason_before=None,
        )
        .returning(hosts.c.state)
    )
    return HostState(result.scalar_one())


async def quarantine(tx: Tx, host_id: str, reason: str) -> None:
    """Take a host out of use that keeps failing; one that is cordoned or retired stays as it is."""
    await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id, hosts.c.state == HostState.AVAILABLE)
        .values(state=HostState.QUARANTINED, state_reason=reason)
    )


async def count_boot_failure(tx: Tx, host_id: str) -> int:
    """Count a failed boot of a host; answer how many there were in a row."""
    result = await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id)
        .values(boot_failures=hosts.c.boot_failures + 1)
        .returning(hosts.c.boot_failures)
    )
    count: int = result.scalar_one()
    return count


_NOT_BACK = "not given back: "


async def set_aside(tx: Tx, host_id: str, why: str) -> bool:
    """Quarantine a host whose last machine does not go. False when it was not available before."""
    result = await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id, hosts.c.state == HostState.AVAILABLE)
        .values(state=HostState.QUARANTINED, state_reason=_NOT_BACK + why)
    )
    return bool(result.rowcount)


async def take_back(tx: Tx, host_id: str) -> None:
    """Its machine is gone after all: end what `set_aside` began, and nothing else."""
    await tx.conn.execute(
        sa.update(hosts)
        .where(
            hosts.c.id == host_id,
            hosts.c.state == HostState.QUARANTINED,
            hosts.c.state_reason.startswith(_NOT_BACK),
        )
        .values(state=HostState.AVAILABLE, state_reason=None)
    )


async def put_rate(tx: Tx, rate: Rate) -> None:
    """Write a rate that begins now or later. Rates that applied are never changed: a new price is a new row.

    Of two prices written in one second the later one counts; no time was used at the other.
    """
    await tx.conn.execute(
        upsert(rates)
        .values(
            pool=rate.pool,
            compute_class=rate.compute_class,
            effective_from_s=rate.effective_from_s,
            microdollars_per_gpu_hour=rate.microdollars_per_gpu_hour,
        )
        .on_conflict_do_update(
            index_elements=["pool", "compute_class", "effective_from_s"],
            set_={"microdollars_per_gpu_hour": rate.microdollars_per_gpu_hour},
        )
    )


async def all_rates(tx: Tx) -> list[Rate]:
    """Every rate, by pool, class and time."""
    rows = await tx.conn.execute(
        sa.select(rates).order_by(rates.c.pool, rates.c.compute_class, rates.c.effective_from_s)
    )
    return [
        Rate(row.pool, ComputeClass(row.compute_class), row.effective_from_s, row.microdollars_per_gpu_hour)
        for row in rows
    ]
