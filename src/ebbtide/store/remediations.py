"""Remediations: one row for each act upon a node, one open at a time per node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.core.hosts import HostState
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.remediations import Mode, State, Trigger, check_move
from ebbtide.errors import Conflict
from ebbtide.store import visits
from ebbtide.store.db import Tx
from ebbtide.store.tables import hosts, nodes
from ebbtide.store.tables import visits as visit_rows
from ebbtide.store.tables_more import remediations
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class RemediationRow:
    """outcome: the last visit's sentence. failures: visits that failed in a row; None: no visit yet."""

    id: str
    no: int
    cluster_id: str
    node_uid: str
    instance_id: str
    instance_name: str
    mode: Mode
    state: State
    trigger: Trigger
    reason: str | None
    requested_by: str | None
    reviewed_by: str | None
    review_comment: str | None
    error_message: str | None
    linked_alerts: Sequence[Mapping[str, object]]
    created_at: datetime
    started_at: datetime | None
    reviewed_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None
    deadline: datetime | None
    restarted_at: datetime | None
    outcome: str | None
    failures: int | None


_OF_VISITS = ("outcome", "failures")
_OWN = [remediations.c[name] for name in RemediationRow.__slots__ if name not in _OF_VISITS]
_READ = sa.select(*_OWN, *(visit_rows.c[name] for name in _OF_VISITS)).select_from(
    remediations.outerjoin(
        visit_rows,
        sa.and_(visit_rows.c.loop == Loop.REMEDIATION.value, visit_rows.c.key == remediations.c.id),
    )
)


def _row(values: dict[str, Any]) -> RemediationRow:
    kinds = {
        "mode": Mode(values["mode"]),
        "state": State(values["state"]),
        "trigger": Trigger(values["trigger"]),
    }
    return RemediationRow(**{**values, **kinds})


async def insert(tx: Tx, **values: object) -> None:
    """Write a new remediation and make its first visit due.

    Raises Conflict while the node has an open one.
    """
    made = await tx.conn.execute(
        upsert(remediations)
        .values(created_at=tx.now, updated_at=tx.now, linked_alerts=[], **values)
        .on_conflict_do_nothing(
            index_elements=["node_uid"],
            index_where=sa.text("state IN ('PENDING_APPROVAL', 'PENDING', 'RUNNING', 'QUARANTINING')"),
        )
        .returning(remediations.c.id)
    )
    if made.first() is None:
        raise Conflict(
            f"{values['instance_name']} has a remediation that is not over yet; cancel it, or wait",
            code="remediation_open",
        )
    await visits.hint(tx, Loop.REMEDIATION, [str(values["id"])], clusters=[str(values["cluster_id"])])


async def load(tx: Tx, remediation_id: str, *, for_update: bool = False) -> RemediationRow | None:
    """One remediation. Locks the row if asked."""
    query = _READ.where(remediations.c.id == remediation_id)
    row = (await tx.conn.execute(query.with_for_update(of=remediations) if for_update else query)).first()
    return _row(dict(row._mapping)) if row else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which remediations of a cluster, in which order, behind which one. Empty collections: all.

    after: the last one's value of the order's column, as text, and its number
    """

    cluster_id: str
    instance_id: str | None = None
    modes: Collection[Mode] = ()
    states: Collection[State] = ()
    triggers: Collection[Trigger] = ()
    order: str = "create_time"
    descending: bool = True
    after: tuple[str, int] | None = None


# What may be ordered by. Creation follows the number, which needs no second column.
ORDERS: Mapping[str, sa.ColumnElement[str]] = {
    "create_time": sa.func.to_char(remediations.c.no, "FM00000000000000000000"),
    "update_time": sa.func.to_char(
        sa.func.timezone("UTC", remediations.c.updated_at), "YYYY-MM-DD HH24:MI:SS.US"
    ),
    "mode": remediations.c.mode.collate("C"),
    "state": remediations.c.state.collate("C"),
    "instance_name": remediations.c.instance_name.collate("C"),
}


async def page(tx: Tx, wanted: Wanted, limit: int) -> list[tuple[RemediationRow, str]]:
    """Up to `limit` remediations, each with its value in the order's column."""
    column, table = ORDERS[wanted.order], remediations.c
    query = _READ.add_columns(column.label("ordered_by")).where(table.cluster_id == wanted.cluster_id)
    if wanted.instance_id is not None:
        query = query.where(table.instance_id == wanted.instance_id)
    for col, values in (
        (table.mode, wanted.modes),
        (table.state, wanted.states),
        (table.trigger, wanted.triggers),
    ):
        if values:
            query = query.where(col.in_([value.value for value in values]))
    if wanted.after is not None:
        here = sa.tuple_(column, table.no)
        there = sa.tuple_(sa.literal(wanted.after[0], sa.Text), sa.literal(wanted.after[1], sa.BigInteger))
        query = query.where(here < there if wanted.descending else here > there)
    ordering = [each.desc() if wanted.descending else each.asc() for each in (column, table.no)]
    rows = await tx.conn.execute(query.order_by(*ordering).limit(limit))
    found = []
    for row in rows:
        values_of = dict(row._mapping)
        ordered_by = str(values_of.pop("ordered_by"))
        found.append((_row(values_of), ordered_by))
    return found


async def latest(tx: Tx, cluster_ids: Sequence[str]) -> dict[str, RemediationRow]:
    """The newest remediation of each node of the clusters, by node uid."""
    newest = (
        sa.select(sa.func.max(remediations.c.no))
        .where(remediations.c.cluster_id.in_(list(cluster_ids)))
        .group_by(remediations.c.node_uid)
    )
    rows = await tx.conn.execute(_READ.where(remediations.c.no.in_(newest)))
    return {row.node_uid: _row(dict(row._mapping)) for row in rows}


async def move(tx: Tx, remediation_id: str, before: State, after: State, **fields: object) -> bool:
    """Change the state through the table; False when somebody else was faster."""
    check_move(before, after)
    result = await tx.conn.execute(
        sa.update(remediations)
        .where(remediations.c.id == remediation_id, remediations.c.state == before)
        .values(state=after, updated_at=tx.now, **fields)
    )
    return bool(result.rowcount)


async def set_fields(tx: Tx, remediation_id: str, **fields: object) -> None:
    """Write fields other than the state."""
    if "state" in fields:
        raise AssertionError("states go through move")
    await tx.conn.execute(
        sa.update(remediations).where(remediations.c.id == remediation_id).values(updated_at=tx.now, **fields)
    )


@dataclass(frozen=True, slots=True)
class Target:
    """The node behind an instance id."""

    uid: str
    name: str
    phase: Phase
    compute_class: ComputeClass


async def target(tx: Tx, cluster_id: str, instance_id: str) -> Target | None:
    """The cluster's node that has the instance, the newest if a provider used an id again."""
    row = (
        await tx.conn.execute(
            sa.select(nodes.c.uid, nodes.c.name, nodes.c.phase, nodes.c.compute_class)
            .where(nodes.c.cluster_id == cluster_id, nodes.c.instance_id == instance_id)
            .order_by(nodes.c.no.desc())
            .limit(1)
        )
    ).first()
    if row is None:
        return None
    return Target(row.uid, row.name, Phase(row.phase), ComputeClass(row.compute_class))


async def set_aside(tx: Tx, host_id: str, state: HostState, why: str) -> None:
    """Cordon or quarantine a host that is available; one that is not stays what it is."""
    await tx.conn.execute(
        sa.update(hosts)
        .where(hosts.c.id == host_id, hosts.c.state == HostState.AVAILABLE)
        .values(state=state, state_reason=why)
    )
