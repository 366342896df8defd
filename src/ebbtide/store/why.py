"""What explains a decision: a node with its claims, and a visit with its outcome. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.store.db import Tx
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class NodeStory:
    """claim_id: the claim that the node was made for. taken_for: the one that took it from its cluster."""

    uid: str
    name: str
    pool: str
    cluster_id: str | None
    cluster_name: str | None
    host_name: str | None
    compute_class: str
    phase: str
    phase_since: datetime
    placed_at: datetime | None
    deadline: datetime | None
    end_reason: str | None
    why: str | None
    claim_id: str | None
    taken_for: str | None


async def node(tx: Tx, ref: str) -> NodeStory | None:
    """A node by its uid or its name, removed ones included."""
    row = (
        await tx.conn.execute(
            sa.text("""
            SELECT n.uid, n.name, n.pool, n.cluster_id, c.name AS cluster_name, h.name AS host_name,
                   n.compute_class, n.phase, n.phase_since, n.placed_at, n.deadline, n.end_reason, n.why,
                   n.claim_id, n.taken_for
            FROM nodes n LEFT JOIN clusters c ON c.id = n.cluster_id LEFT JOIN hosts h ON h.id = n.host_id
            WHERE n.uid = :ref OR n.name = :ref ORDER BY n.no DESC LIMIT 1
            """),
            {"ref": ref},
        )
    ).first()
    return NodeStory(*row) if row else None


@dataclass(frozen=True, slots=True)
class VisitStory:
    """due_at: null when the row is settled. leased_until: somebody works on it now."""

    outcome: str | None
    outcome_at: datetime | None
    due_at: datetime | None
    leased_until: datetime | None
    failures: int


async def visit(tx: Tx, loop: Loop, key: str) -> VisitStory | None:
    """What the last visit of a row said, and when the next one is."""
    row = (
        await tx.conn.execute(
            sa.text("""
            SELECT outcome, outcome_at, due_at, lease_until, failures FROM visits
            WHERE loop = :loop AND key = :key
            """),
            {"loop": loop, "key": key},
        )
    ).first()
    return VisitStory(*row) if row else None
