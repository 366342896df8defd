"""Entries that intervals and rates do not give by themselves.

Credits and corrections, each once by its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.store.db import Tx
from ebbtide.store.tables import ledger_entries


@dataclass(frozen=True, slots=True)
class LedgerRow:
    ref: str
    kind: str
    project_id: str
    cluster_id: str
    node_uid: str | None
    gpu_seconds: int
    microdollars: int | None
    note: str
    at: datetime


async def add(tx: Tx, row: LedgerRow) -> None:
    """Write an entry; one with the same reference is there already when a step is repeated, and stays."""
    values = {name: getattr(row, name) for name in LedgerRow.__slots__}
    await tx.conn.execute(
        upsert(ledger_entries).values(**values).on_conflict_do_nothing(index_elements=["ref"])
    )


async def read(
    tx: Tx, since: datetime, until: datetime, *, project_id: str | None, cluster_id: str | None
) -> list[tuple[LedgerRow, str | None]]:
    """Entries of a span, each with its node's name."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT l.ref, l.kind, l.project_id, l.cluster_id, l.node_uid, l.gpu_seconds, l.microdollars, l.note,
        l.at,
               n.name AS node_name
        FROM ledger_entries l LEFT JOIN nodes n ON n.uid = l.node_uid
        WHERE l.at >= :since AND l.at < :until
          AND (CAST(:project AS text) IS NULL OR l.project_id = :project)
          AND (CAST(:cluster AS text) IS NULL OR l.cluster_id = :cluster)
        ORDER BY l.no
        """),
        {"since": since, "until": until, "project": project_id, "cluster": cluster_id},
    )
    found = []
    for row in rows:
        values = dict(row._mapping)
        name = values.pop("node_name")
        found.append((LedgerRow(**values), name))
    return found


async def of_nodes(tx: Tx, project_id: str, node_uids: Sequence[str]) -> dict[str, list[LedgerRow]]:
    """Entries about nodes of one project, by node uid, in order."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT ref, kind, project_id, cluster_id, node_uid, gpu_seconds, microdollars, note, at
        FROM ledger_entries WHERE project_id = :project AND node_uid = ANY(:uids) ORDER BY no
        """),
        {"project": project_id, "uids": list(node_uids)},
    )
    found: dict[str, list[LedgerRow]] = {}
    for row in rows:
        found.setdefault(row.node_uid, []).append(LedgerRow(**row._mapping))
    return found
