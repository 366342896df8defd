"""The audit log: who changed what, from what, to what. Written in the change's own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ebbtide.store.db import Tx
from ebbtide.store.tables_more import audit_log

Values = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One change. before and after hold only what changed; None where there was or is nothing.

    project_id: of the key. of_project_id: whose thing was changed
    """

    no: int
    at: datetime
    key_id: str | None
    project_id: str | None
    of_project_id: str | None
    role: str | None
    request_id: str | None
    action: str
    subject: str
    before: Values
    after: Values


async def append(
    tx: Tx,
    *,
    key_id: str | None,
    project_id: str | None,
    of_project_id: str | None,
    role: str | None,
    request_id: str | None,
    action: str,
    subject: str,
    before: Values = None,
    after: Values = None,
) -> None:
    await tx.conn.execute(
        sa.insert(audit_log).values(
            at=tx.now,
            key_id=key_id,
            project_id=project_id,
            of_project_id=of_project_id,
            role=role,
            request_id=request_id,
            action=action,
            subject=subject,
            before=sa.null() if before is None else dict(before),
            after=sa.null() if after is None else dict(after),
        )
    )


async def read(tx: Tx, *, project_id: str | None, before_no: int | None, limit: int) -> list[AuditRow]:
    """Entries of a project, or of all, the newest first, below number `before_no`.

    A project's: what was done with its keys, and what anybody did to its things.
    """
    query = (
        sa.select(*(audit_log.c[name] for name in AuditRow.__slots__))
        .order_by(audit_log.c.no.desc())
        .limit(limit)
    )
    if project_id is not None:
        query = query.where(
            sa.or_(audit_log.c.project_id == project_id, audit_log.c.of_project_id == project_id)
        )
    if before_no is not None:
        query = query.where(audit_log.c.no < before_no)
    return [AuditRow(**row._mapping) for row in await tx.conn.execute(query)]


async def forget_older(tx: Tx, before: datetime) -> int:
    """Drop entries from before the instant; answer how many."""
    result = await tx.conn.execute(sa.delete(audit_log).where(audit_log.c.at < before))
    return result.rowcount
