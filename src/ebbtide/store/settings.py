"""Settings stored in the database: what differs from the environment, for all processes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.store.db import Tx
from ebbtide.store.tables_operator import stored_settings


@dataclass(frozen=True, slots=True)
class StoredSetting:
    """changed_by: the key. value: a number, a text, true or false."""

    name: str
    value: Any
    changed_by: str | None
    changed_at: datetime


async def all_(tx: Tx) -> dict[str, StoredSetting]:
    rows = await tx.conn.execute(sa.text("SELECT name, value, changed_by, changed_at FROM stored_settings"))
    return {row.name: StoredSetting(*row) for row in rows}


async def lock(tx: Tx) -> None:
    """Let changes come one after the other: each is judged with all the others in force."""
    await tx.conn.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('settings', 0))"))


async def put(tx: Tx, name: str, value: object, changed_by: str | None) -> None:
    fields = {"value": value, "changed_by": changed_by, "changed_at": tx.now}
    await tx.conn.execute(
        upsert(stored_settings)
        .values(name=name, **fields)
        .on_conflict_do_update(index_elements=["name"], set_=fields)
    )


async def drop(tx: Tx, name: str) -> None:
    await tx.conn.execute(sa.delete(stored_settings).where(stored_settings.c.name == name))
