"""A pool's capacity: the lock, the view that plans are made from, free hosts, and who could be taken.

Everything here is arithmetic over rows; no "free" number is stored. `lock` comes first in every capacity
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.capacity import Candidate, Holding, PoolView
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.errors import NotFound
from ebbtide.store.db import Tx


@dataclass(frozen=True, slots=True)
class PoolRow:
    name: str
    region: str
    gpu_type: str
    gpus_per_host: int
    headroom_hosts: int
    turn_over_s: int
    boot_s: int
    memory_gib: int
    cpu_cores: int
    provider: str
    wipe: str
    generation: int


_COLUMNS = (
    "name, region, gpu_type, gpus_per_host, headroom_hosts, turn_over_s, boot_s, memory_gib, "
    "cpu_cores, provider, wipe, generation"
)


def _row(row: sa.Row[tuple[object, ...]]) -> PoolRow:
    return PoolRow(**row._mapping)


async def lock(tx: Tx, pool: str) -> PoolRow:
    """Lock the pool by writing to it.

    Raises NotFound. Every plan for the pool waits here for the one before.
    """
    row = (
        await tx.conn.execute(
            sa.text(f"UPDATE pools SET generation = generation + 1 WHERE name = :name RETURNING {_COLUMNS}"),
            {"name": pool},
        )
    ).first()
    if row is None:
        raise NotFound(f"there is no pool {pool!r}")
    tx.refresh_now()
    return _row(row)


async def load(tx: Tx, pool: str) -> PoolRow | None:
    row = (
        await tx.conn.execute(sa.text(f"SELECT {_COLUMNS} FROM pools WHERE name = :name"), {"name": pool})
    ).first()
    return _row(row) if row else None


async def all_(tx: Tx) -> list[PoolRow]:
    """Every pool that is in use, by name."""
    rows = await tx.conn.execute(
        sa.text(f"SELECT {_COLUMNS} FROM pools WHERE retired_at IS NULL ORDER BY name")
    )
    return [_row(row) for row in rows]


async def find(tx: Tx, region: str, gpu_type: str) -> list[PoolRow]:
    """Pools of a region with that GPU model, by name."""
    rows = await tx.conn.execute(
        sa.text(
            f"SELECT {_COLUMNS} FROM pools WHERE region = :r AND gpu_type = :g AND retired_at IS NULL "
            f"ORDER BY name"
        ),
        {"r": region, "g": gpu_type},
    )
    return [_row(row) for row in rows]


# One statement, so that all counts are of one instant: a host on its way from "leaving" to "free" is seen
# exactly once.
_VIEW = sa.text("""
SELECT
  (SELECT jsonb_object_agg(fabric_block, n) FROM (
      SELECT fabric_block, count(*) AS n FROM hosts
      WHERE pool = :pool AND state = 'available' AND node_uid IS NULL GROUP BY fabric_block) AS f) AS free,
  (SELECT count(*) FROM hosts
      WHERE pool = :pool AND state = 'available' AND node_uid IS NULL AND lendable_at > :now) AS cooling,
  (SELECT min(lendable_at) FROM hosts
      WHERE pool = :pool AND state = 'available' AND node_uid IS NULL AND lendable_at > :now) AS
      cooling_until,
  (SELECT count(*) FROM nodes n JOIN hosts h ON h.id = n.host_id
      WHERE n.pool = :pool AND n.phase IN ('DRAINING', 'REMOVING') AND n.phase <> 'REMOVED' AND h.state =
      'available') AS leaving,
  (SELECT count(*) FROM nodes
      WHERE pool = :pool AND phase = 'PENDING' AND compute_class <> 'maintenance' AND phase <> 'REMOVED') AS
      promised
""")


async def view(tx: Tx, pool: PoolRow) -> PoolView:
    """The pool as counts of hosts, all of one instant."""
    row = (await tx.conn.execute(_VIEW, {"pool": pool.name, "now": tx.now})).one()
    return PoolView(
        pool=pool.name,
        gpus_per_host=pool.gpus_per_host,
        free=row.free or {},
        cooling=row.cooling,
        cooling_until=row.cooling_until,
        leaving=row.leaving,
        promised=row.promised,
        headroom=pool.headroom_hosts,
    )


async def free_hosts(
    tx: Tx, pool: str, blocks: Mapping[str, int], *, lendable_only: bool = False
) -> list[str]:
    """Ids of so many free hosts of each block, by name. Under the pool's lock they stay free."""
    ids: list[str] = []
    for block, count in sorted(blocks.items()):
        rows = await tx.conn.execute(
            sa.text("""
            SELECT id FROM hosts WHERE pool = :pool AND fabric_block = :block AND state = 'available' AND
            node_uid IS NULL
              AND (NOT :lendable OR lendable_at IS NULL OR lendable_at <= :now)
            ORDER BY name LIMIT :count
            """),
            {"pool": pool, "block": block, "count": count, "lendable": lendable_only, "now": tx.now},
        )
        ids += rows.scalars()
    return ids


async def lendable_blocks(tx: Tx, pool: str) -> dict[str, int]:
    """Free hosts per block that are not cooling."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT fabric_block, count(*) AS n FROM hosts
        WHERE pool = :pool AND state = 'available' AND node_uid IS NULL AND (lendable_at IS NULL OR
        lendable_at <= :now)
        GROUP BY fabric_block
        """),
        {"pool": pool, "now": tx.now},
    )
    return {row.fabric_block: row.n for row in rows}


async def blocks_of(tx: Tx, pool: str, cluster_id: str) -> dict[str, int]:
    """How many hosts of each block the cluster holds in the pool."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT h.fabric_block, count(*) AS n FROM nodes n JOIN hosts h ON h.id = n.host_id
        WHERE n.cluster_id = :cluster AND n.pool = :pool AND n.phase NOT IN ('PENDING', 'REMOVING', 'REMOVED')
        GROUP BY h.fabric_block
        """),
        {"cluster": cluster_id, "pool": pool},
    )
    return {row.fabric_block: row.n for row in rows}


_TAKEABLE = (Phase.SCHEDULING, Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.RUNNING)


async def count_reclaimable(tx: Tx, pool: str) -> int:
    """Preemptible nodes that a claim could take."""
    found: int = (
        await tx.conn.execute(
            sa.text("""
            SELECT count(*) FROM nodes n JOIN hosts h ON h.id = n.host_id
            WHERE n.pool = :pool AND n.phase = ANY(:phases) AND n.phase <> 'REMOVED' AND n.compute_class =
            'preemptible'
              AND h.state = 'available'
            """),
            {"pool": pool, "phases": list(_TAKEABLE)},
        )
    ).scalar_one()
    return found


async def candidates(tx: Tx, pool: str, *, cluster_id: str | None = None) -> list[Candidate]:
    """Preemptible nodes that could be taken. A host that would not come back as available does not serve a
    claim, so a reclaim (no cluster given) leaves nodes on cordoned hosts alone."""
    return await _candidates(tx, pool, ComputeClass.PREEMPTIBLE, cluster_id)


async def standard_candidates(tx: Tx, pool: str, cluster_id: str) -> list[Candidate]:
    """A cluster's own standard nodes, for scaling down."""
    return await _candidates(tx, pool, ComputeClass.STANDARD, cluster_id)


async def _candidates(
    tx: Tx, pool: str, compute_class: ComputeClass, cluster_id: str | None
) -> list[Candidate]:
    rows = await tx.conn.execute(
        sa.text("""
        SELECT n.uid, n.cluster_id, n.project_id, n.phase, n.workload_pods, n.running_at, n.cordoned,
        h.fabric_block
        FROM nodes n JOIN hosts h ON h.id = n.host_id
        WHERE n.pool = :pool AND n.phase = ANY(:phases) AND n.phase <> 'REMOVED' AND n.compute_class = :class
          AND (n.cluster_id = :cluster OR CAST(:cluster AS text) IS NULL AND h.state = 'available')
        """),
        {"pool": pool, "phases": list(_TAKEABLE), "class": compute_class, "cluster": cluster_id},
    )
    return [
        Candidate(
            uid=row.uid,
            cluster_id=row.cluster_id,
            project_id=row.project_id,
            phase=Phase(row.phase),
            busy=row.workload_pods > 0,
            running_at=row.running_at,
            cordoned=row.cordoned,
            block=row.fabric_block,
        )
        for row in rows
    ]


_HOLDINGS = """
SELECT c.id, c.project_id, c.weight, p.weight AS project_weight, pool.gpus_per_host,
       CASE WHEN c.phase IN ('DELETING', 'DELETED') THEN 0 ELSE c.target_hosts END AS target,
       c.fill_backoff_until,
       count(n.uid) AS held, count(n.uid) FILTER (WHERE n.phase IN ('SCHEDULING', 'BOOTING', 'BOOTSTRAPPING'))
       AS joining,
       count(n.uid) FILTER (WHERE n.phase = 'DRAINING') AS draining
FROM clusters c JOIN projects p ON p.id = c.project_id JOIN pools pool ON pool.name = c.pool
LEFT JOIN nodes n ON n.cluster_id = c.id AND n.compute_class = 'preemptible' AND n.phase <> 'REMOVED'
     AND n.phase IN ('SCHEDULING', 'BOOTING', 'BOOTSTRAPPING', 'RUNNING', 'DRAINING')
WHERE c.pool = :pool AND c.phase <> 'DELETED' AND c.control_plane_ready
GROUP BY c.id, p.weight, pool.gpus_per_host
HAVING count(n.uid) > 0 OR c.target_hosts > 0 OR c.fill_reason IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class ClusterHolding:
    """A cluster's holding, and until when its filling is held off after repeated failures."""

    holding: Holding
    backoff_until: datetime | None
    gpus_per_host: int

    @property
    def missing_hosts(self) -> int:
        return max(0, self.holding.wanted_gpus - self.holding.held_gpus) // self.gpus_per_host


async def holdings(tx: Tx, pool: str) -> list[ClusterHolding]:
    """What each cluster of the pool holds and wants in preemptible GPUs.

    Only clusters that nodes could join.
    """
    rows = await tx.conn.execute(sa.text(_HOLDINGS), {"pool": pool})
    return [
        ClusterHolding(
            Holding(
                cluster_id=row.id,
                project_id=row.project_id,
                held_gpus=row.held * row.gpus_per_host,
                wanted_gpus=row.target * row.gpus_per_host,
                cluster_weight=row.weight,
                project_weight=row.project_weight,
                joining=row.joining,
                leaving_gpus=row.draining * row.gpus_per_host,
            ),
            row.fill_backoff_until,
            row.gpus_per_host,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A promised node that has no host yet. `pinned` is the host a maintenance claim names."""

    uid: str
    claim_id: str
    cluster_id: str | None
    compute_class: ComputeClass


async def waiting(tx: Tx, pool: str, limit: int) -> list[Waiting]:
    """Promised nodes of the pool, those of the oldest claim first."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT n.uid, n.claim_id, n.cluster_id, n.compute_class FROM nodes n JOIN claims c ON c.id =
        n.claim_id
        WHERE n.pool = :pool AND n.phase = 'PENDING' AND n.phase <> 'REMOVED' AND n.compute_class <>
        'maintenance'
        ORDER BY c.no, n.no LIMIT :limit
        """),
        {"pool": pool, "limit": limit},
    )
    return [Waiting(row.uid, row.claim_id, row.cluster_id, ComputeClass(row.compute_class)) for row in rows]


@dataclass(frozen=True, slots=True)
class StandardGap:
    """A live cluster that has fewer standard nodes, waiting ones included, than it ordered."""

    cluster_id: str
    project_id: str
    node_group: str
    missing_hosts: int


async def standard_gaps(tx: Tx, pool: str) -> list[StandardGap]:
    """Clusters whose standard nodes failed or vanished and were not replaced yet, oldest first."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT c.id, c.project_id, c.node_group, c.standard_hosts - count(n.uid) AS missing
        FROM clusters c LEFT JOIN nodes n ON n.cluster_id = c.id AND n.compute_class = 'standard' AND n.phase
        <> 'REMOVED'
             AND n.phase NOT IN ('DRAINING', 'REMOVING')
        WHERE c.pool = :pool AND c.phase NOT IN ('DELETING', 'DELETED')
        GROUP BY c.id HAVING c.standard_hosts > count(n.uid) ORDER BY c.created_at, c.id
        """),
        {"pool": pool},
    )
    return [StandardGap(row.id, row.project_id, row.node_group, row.missing) for row in rows]


async def bucket_counts(tx: Tx, pool: str) -> list[tuple[str, str | None, str | None, int]]:
    """(host state, occupant's class, occupant's phase, hosts), for `core.hosts.bucket`."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT h.state, n.compute_class, n.phase, count(*) AS n FROM hosts h LEFT JOIN nodes n ON n.uid =
        h.node_uid
        WHERE h.pool = :pool GROUP BY h.state, n.compute_class, n.phase
        """),
        {"pool": pool},
    )
    return [(row.state, row.compute_class, row.phase, row.n) for row in rows]


async def in_use(tx: Tx, pool: str) -> bool:
    """Whether a cluster that is not gone, or a claim in force, rests on the pool."""
    found = await tx.conn.execute(
        sa.text("""
        SELECT 1 FROM clusters WHERE pool = :pool AND phase <> 'DELETED'
        UNION ALL SELECT 1 FROM claims WHERE pool = :pool AND ended_at IS NULL
        UNION ALL SELECT 1 FROM hosts WHERE pool = :pool AND node_uid IS NOT NULL LIMIT 1
        """),
        {"pool": pool},
    )
    return found.first() is not None
