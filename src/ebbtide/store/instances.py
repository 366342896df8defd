"""What is remembered of machines that programs of the operator's make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.store.db import Tx
from ebbtide.store.tables_instances import instances


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """facts: the node's order as plain values. join_data: opened."""

    node_uid: str
    facts: Mapping[str, Any]
    join_data: Mapping[str, str]
    handle: str | None
    state: str | None
    instance_id: str
    address: str
    wiped_first_by: str
    gone: bool
    wiped_by: str
    held_until: datetime


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last program that ran for a node; exit_code None: it took too long."""

    node_uid: str
    state: str | None
    handle: str | None
    verb: str
    exit_code: int | None
    output: str
    ran_at: datetime

    @property
    def last_line(self) -> str | None:
        """The last line of its output, which is where errors stand."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:500] if lines else None


_COLUMNS = """
    node_uid, facts, join_data, handle, CASE WHEN state <> 'not_found' THEN state END AS state, instance_id,
    address, COALESCE(wiped_first_by, '') AS wiped_first_by, gone_at IS NOT NULL AS gone, wiped_by,
    COALESCE(held_until, CAST(:now AS timestamptz)) AS held_until
"""


async def put(
    tx: Tx, node_uid: str, pool: str, host_name: str, facts: Mapping[str, Any], join_data: Mapping[str, str]
) -> None:
    """Remember a machine, or the newest order of one that is known. One that is gone stays as it was."""
    values = {"facts": dict(facts), "join_data": tx.sealer.seal(json.dumps(dict(join_data)))}
    statement = upsert(instances).values(
        node_uid=node_uid, pool=pool, host_name=host_name, created_at=tx.now, **values
    )
    await tx.conn.execute(
        statement.on_conflict_do_update(
            index_elements=["node_uid"], set_=values, where=instances.c.gone_at.is_(None)
        )
    )


async def hold(tx: Tx, node_uid: str, hold_s: int) -> InstanceRow | None:
    """Hold a machine for one run. None: it is not known, or held already (see `is_known`)."""
    row = (
        await tx.conn.execute(
            sa.text(
                """
            UPDATE instances SET held_until = :until
            WHERE node_uid = :uid AND (held_until IS NULL OR held_until <= :now)
            RETURNING """
                + _COLUMNS
            ),
            {"uid": node_uid, "now": tx.now, "until": tx.now + timedelta(seconds=hold_s)},
        )
    ).first()
    return _row(tx, row) if row else None


def _row(tx: Tx, row: sa.Row[tuple[object, ...]]) -> InstanceRow:
    values = dict(row._mapping)
    sealed = tx.sealer.open_optional(values["join_data"])
    return InstanceRow(**{**values, "join_data": json.loads(sealed) if sealed else {}})


async def listed(tx: Tx, pool: str) -> list[InstanceRow]:
    """Every machine of the pool that is not gone."""
    rows = await tx.conn.execute(
        sa.text(f"SELECT {_COLUMNS} FROM instances WHERE pool = :pool AND gone_at IS NULL ORDER BY node_uid"),
        {"pool": pool, "now": tx.now},
    )
    return [_row(tx, row) for row in rows]


async def is_known(tx: Tx, node_uid: str) -> bool:
    """Whether anything is remembered of the machine, be it gone or held."""
    found = await tx.conn.execute(sa.select(instances.c.node_uid).where(instances.c.node_uid == node_uid))
    return found.first() is not None


async def release(tx: Tx, node_uid: str, held_until: datetime, **values: object) -> bool:
    """End a hold, and write what its run left. False when it lasted too long and somebody else has it."""
    if values.pop("gone", False):
        values |= {"gone_at": tx.now, "join_data": None}
    result = await tx.conn.execute(
        sa.update(instances)
        .where(instances.c.node_uid == node_uid, instances.c.held_until == held_until)
        .values(held_until=None, **values)
    )
    return bool(result.rowcount)


async def bury(tx: Tx, node_uid: str) -> None:
    """Remember that the node has no machine and is to get none any more."""
    await tx.conn.execute(
        upsert(instances)
        .values(node_uid=node_uid, pool="", host_name="", facts={}, created_at=tx.now, gone_at=tx.now)
        .on_conflict_do_nothing(index_elements=["node_uid"])
    )


async def reopen(tx: Tx, pool: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Remember machines that exist: node_uid, host_name, instance_id, address, facts.

    Of those that were thought gone some time ago, that they are not.
    """
    for one in found:
        statement = upsert(instances).values(pool=pool, created_at=tx.now, **one)
        await tx.conn.execute(
            statement.on_conflict_do_update(
                index_elements=["node_uid"],
                set_={name: one[name] for name in ("host_name", "instance_id", "facts")}
                | {"pool": pool, "gone_at": None},
                where=instances.c.gone_at < tx.now - timedelta(seconds=_LISTED_S),
            )
        )


# A list that was begun before a machine went may still have it.
_LISTED_S = 120


async def unknown_among(tx: Tx, uids: Sequence[str]) -> set[str]:
    """Of these nodes, those whose machines are not remembered, or are remembered as gone."""
    rows = await tx.conn.execute(
        sa.select(instances.c.node_uid).where(
            instances.c.node_uid.in_(list(uids)), instances.c.gone_at.is_(None)
        )
    )
    return set(uids) - {row.node_uid for row in rows}


async def last_runs(tx: Tx, uids: Sequence[str]) -> dict[str, LastRun]:
    """The last run of each node that had one."""
    rows = await tx.conn.execute(
        sa.text("""
        SELECT node_uid, state, handle, verb, exit_code, output, ran_at FROM instances
        WHERE node_uid = ANY(:uids) AND verb IS NOT NULL
        """),
        {"uids": list(uids)},
    )
    return {row.node_uid: LastRun(**row._mapping) for row in rows}


async def forget_older(tx: Tx, limit: datetime) -> int:
    """Forget machines that are gone since before the limit; answer how many."""
    result = await tx.conn.execute(sa.delete(instances).where(instances.c.gone_at < limit))
    return int(result.rowcount)
