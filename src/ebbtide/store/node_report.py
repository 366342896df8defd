"""What there is of one node besides its row: events, what its machine's programs said, wipes. Reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.store.db import Tx


@dataclass(frozen=True, slots=True)
class NodeEvent:
    number: int
    reason: str
    message: str
    at: datetime


async def events_of(tx: Tx, node_uid: str) -> list[NodeEvent]:
    """A node's lifecycle events, however old, in order."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT e.number, e.reason, e.message, e.at FROM lifecycle_events e
        JOIN nodes n ON n.cluster_id = e.cluster_id AND n.uid = e.node_uid
        WHERE n.uid = :uid ORDER BY e.number
        """),
        {"uid": node_uid},
    )
    return [NodeEvent(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's machine as its provider's programs told of it.

    verb, exit_code, output, ran_at: the last run; exit_code None: it took too long, or none ran yet
    """

    instance_id: str
    address: str
    state: str | None
    verb: str | None
    exit_code: int | None
    output: str
    ran_at: datetime | None
    gone_at: datetime | None
    wiped_by: str


async def machine_of(tx: Tx, node_uid: str) -> Machine | None:
    """None where the provider is no program of the operator's, or was not asked yet."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT instance_id, address, state, verb, exit_code, output, ran_at, gone_at, wiped_by
        FROM instances WHERE node_uid = :uid
        """),
        {"uid": node_uid},
    )
    row = rows.first()
    return Machine(*row) if row else None


@dataclass(frozen=True, slots=True)
class NodeWipe:
    """moment: `before` the node's machine started, or `after` the node left."""

    moment: str
    wiped_by: str
    at: datetime


async def wipes_of(tx: Tx, node_uid: str) -> list[NodeWipe]:
    rows = await tx.conn.execute(
        sa.text("SELECT moment, wiped_by, at FROM host_wipes WHERE node_uid = :uid ORDER BY no"),
        {"uid": node_uid},
    )
    return [NodeWipe(*row) for row in rows]
