"""Clusters: the wish, the phase, and what clients read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.core.clusters import ClusterPhase, check_move
from ebbtide.store.db import Tx
from ebbtide.store.tables import clusters, phase_transitions
from ebbtide.store.tables_receipts import target_changes


@dataclass(frozen=True, slots=True)
class ClusterRow:
    id: str
    project_id: str
    name: str
    region: str
    pool: str
    gpu_type: str
    billing_type: str
    cluster_type: str
    cuda_version: str
    nvidia_driver_version: str
    nvidia_version_id: str | None
    echo: Mapping[str, object]
    node_group: str
    gpus_per_host: int
    standard_hosts: int
    target_hosts: int
    weight: int
    phase: ClusterPhase
    control_plane_ready: bool
    kubeconfig: str | None
    driver_kubeconfig: str | None
    imported: bool
    standard_selector: str | None
    standard_seen: Sequence[Mapping[str, Any]] | None
    import_problem: str | None
    placement: str
    warn_first_s: int
    event_number: int
    observed_until: datetime | None
    fill_reason: str | None
    fill_since: datetime | None
    fill_last_try: datetime | None
    fill_next_try: datetime | None
    fill_backoff_until: datetime | None
    created_at: datetime
    first_ready_at: datetime | None
    deleting_at: datetime | None
    deleted_at: datetime | None


def _row(row: sa.Row[tuple[object, ...]]) -> ClusterRow:
    values = dict(row._mapping)
    return ClusterRow(**{**values, "phase": ClusterPhase(values["phase"])})


async def insert(tx: Tx, **values: object) -> None:
    """Write a new cluster and its first phase."""
    await tx.conn.execute(sa.insert(clusters).values(**values))
    await _note_target(tx, str(values["id"]), values)
    await _write_history(tx, str(values["id"]), str(values["phase"]))


async def load(tx: Tx, cluster_id: str, *, for_update: bool = False) -> ClusterRow | None:
    """One cluster, tombstones included; None when there is none. Locks the row if asked."""
    query = sa.select(clusters).where(clusters.c.id == cluster_id)
    row = (await tx.conn.execute(query.with_for_update() if for_update else query)).first()
    return _row(row) if row else None


async def live(tx: Tx, *, project_id: str | None = None) -> list[ClusterRow]:
    """Clusters that are not gone, of one project or of all, oldest first."""
    query = sa.select(clusters).where(clusters.c.phase != ClusterPhase.DELETED)
    if project_id is not None:
        query = query.where(clusters.c.project_id == project_id)
    rows = await tx.conn.execute(query.order_by(clusters.c.created_at, clusters.c.id))
    return [_row(row) for row in rows]


async def by_ids(tx: Tx, ids: Sequence[str]) -> list[ClusterRow]:
    rows = await tx.conn.execute(sa.select(clusters).where(clusters.c.id.in_(list(ids))))
    return [_row(row) for row in rows]


async def set_fields(tx: Tx, cluster_id: str, **fields: object) -> None:
    """Write fields other than the phase."""
    if "phase" in fields:
        raise AssertionError("phases go through move_phase")
    if fields:
        await tx.conn.execute(sa.update(clusters).where(clusters.c.id == cluster_id).values(**fields))
        await _note_target(tx, cluster_id, fields)


async def _note_target(tx: Tx, cluster_id: str, fields: Mapping[str, object]) -> None:
    """Remember when the preemptible target was changed, whoever changes it: see `store.history`."""
    if "target_hosts" in fields:
        values = {"cluster_id": cluster_id, "hosts": fields["target_hosts"], "at": tx.now}
        await tx.conn.execute(sa.insert(target_changes).values(**values))


async def move_phase(
    tx: Tx, cluster_id: str, before: ClusterPhase, after: ClusterPhase, **fields: object
) -> bool:
    """Move a cluster's phase through the table; False when somebody else was faster."""
    check_move(before, after)
    result = await tx.conn.execute(
        sa.update(clusters)
        .where(clusters.c.id == cluster_id, clusters.c.phase == before)
        .values(phase=after, **fields)
    )
    if not result.rowcount:
        return False
    await _write_history(tx, cluster_id, after)
    return True


async def _write_history(tx: Tx, cluster_id: str, phase: str) -> None:
    await tx.conn.execute(
        sa.insert(phase_transitions).values(cluster_id=cluster_id, node_uid=None, phase=phase, at=tx.now)
    )


async def _lock(tx: Tx, ids: Iterable[str]) -> None:
    """Lock clusters in the order of their ids, as everybody does who writes to several of them."""
    await tx.conn.execute(
        sa.text("SELECT 1 FROM clusters WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE"),
        {"ids": list(ids)},
    )


async def mark_observed(tx: Tx, observed: Mapping[str, datetime]) -> None:
    """Say up to when each cluster was seen whole. Never goes back."""
    if len(observed) > 1:
        await _lock(tx, observed)
    await tx.conn.execute(
        sa.text("""
        UPDATE clusters c SET observed_until = GREATEST(c.observed_until, o.at)
        FROM unnest(CAST(:ids AS text[]), CAST(:ats AS timestamptz[])) AS o(id, at) WHERE c.id = o.id
        """),
        {"ids": list(observed), "ats": list(observed.values())},
    )


async def set_fill(tx: Tx, reasons: Mapping[str, str | None], next_try: datetime | None) -> None:
    """Write why each cluster's target is not met (None: it is). `since` stays as long as it is not met."""
    if not reasons:
        return
    await _lock(tx, reasons)
    await tx.conn.execute(
        sa.text("""
        UPDATE clusters c SET fill_reason = f.reason,
               fill_since = CASE WHEN f.reason IS NULL THEN NULL ELSE COALESCE(c.fill_since, :now) END,
               fill_last_try = CASE WHEN f.reason IS NULL THEN NULL ELSE CAST(:now AS timestamptz) END,
               fill_next_try = CASE WHEN f.reason IS NULL THEN NULL ELSE CAST(:next AS timestamptz) END
        FROM unnest(CAST(:ids AS text[]), CAST(:reasons AS text[])) AS f(id, reason)
        WHERE c.id = f.id AND (f.reason IS NOT NULL OR c.fill_reason IS NOT NULL)
        """),
        {"now": tx.now, "next": next_try, "ids": list(reasons), "reasons": list(reasons.values())},
    )


@dataclass(frozen=True, slots=True)
class PhaseRow:
    cluster_id: str
    node_uid: str | None
    phase: str
    at: datetime


async def phases(tx: Tx, cluster_ids: Sequence[str]) -> list[PhaseRow]:
    """The phase history of clusters, in order."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT cluster_id, node_uid, phase, at FROM phase_transitions
        WHERE cluster_id = ANY(:ids) AND node_uid IS NULL ORDER BY no
        """),
        {"ids": list(cluster_ids)},
    )
    return [PhaseRow(**row._mapping) for row in rows]


async def node_phases(tx: Tx, node_uids: Sequence[str]) -> list[PhaseRow]:
    """The phase history of nodes, in order."""
    rows = await tx.conn.execute(
        sa.text(
            "SELECT cluster_id, node_uid, phase, at FROM phase_transitions WHERE node_uid = ANY(:uids) "
            "ORDER BY no"
        ),
        {"uids": list(node_uids)},
    )
    return [PhaseRow(**row._mapping) for row in rows]


async def idle_deleting(tx: Tx, cluster_id: str) -> bool:
    """Whether no node of the cluster is left that is not REMOVED."""
    left = await tx.conn.execute(
        sa.text("SELECT 1 FROM nodes WHERE cluster_id = :id AND phase <> 'REMOVED' LIMIT 1"),
        {"id": cluster_id},
    )
    return left.first() is None
