"""The audit log as services write and show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide import log
from ebbtide.services.details import Caller
from ebbtide.store import audit
from ebbtide.store.audit import AuditRow, Values
from ebbtide.store.db import Database, Tx

MOST = 500


@dataclass(frozen=True, slots=True)
class AuditDetails:
    """One change. number: falls towards the past; read on below the last one."""

    number: int
    at: datetime
    key_id: str | None
    project_id: str | None
    role: str | None
    request_id: str | None
    action: str
    subject: str
    before: Values
    after: Values


async def record(
    tx: Tx,
    caller: Caller | None,
    action: str,
    subject: str,
    *,
    before: Values = None,
    after: Values = None,
    of: str | None = None,
) -> None:
    """Write down a change, in its own transaction.

    There is no change without its entry, and no entry without it. of: the project whose thing it is, which
    reads of it whoever did it.
    """
    await audit.append(
        tx,
        key_id=caller.key_id if caller else None,
        project_id=caller.project_id if caller else None,
        of_project_id=of,
        role=caller.role if caller else None,
        request_id=log.request_id.get(),
        action=action,
        subject=subject,
        before=before,
        after=after,
    )


class AuditService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(
        self, caller: Caller, before: int | None = None, limit: int = 100
    ) -> tuple[AuditDetails, ...]:
        """Changes made with keys of the caller's project or to its things (operators: all), the newest first.

        Who changed a tenant's things from outside of its project is told as its role only.
        """
        project_id = None if caller.is_operator else caller.project_id
        async with self._db.read() as tx:
            rows = await audit.read(tx, project_id=project_id, before_no=before, limit=min(limit, MOST))
        return tuple(_details(row, known=project_id in (None, row.project_id)) for row in rows)


def _details(row: AuditRow, *, known: bool) -> AuditDetails:
    """known: whether the reader may know whose key it was."""
    return AuditDetails(
        row.no,
        row.at,
        row.key_id if known else None,
        row.project_id if known else None,
        row.role,
        row.request_id if known else None,
        row.action,
        row.subject,
        row.before,
        row.after,
    )
