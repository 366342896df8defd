"""Organisations: whose projects are whose. A project belongs to one; disabled, its tenants are refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.details import Caller
from ebbtide.store import access
from ebbtide.store.access import OrganizationRow
from ebbtide.store.db import Database, Tx

_MOST_NAME = 255


@dataclass(frozen=True, slots=True)
class OrganizationDetails:
    """projects: how many it has; None for tenants, who know of their own project only."""

    id: str
    name: str
    created_at: datetime
    disabled_at: datetime | None
    projects: int | None


class OrganizationService:
    def __init__(self, db: Database, ids: Ids) -> None:
        self._db = db
        self._ids = ids

    async def list(self, caller: Caller) -> tuple[OrganizationDetails, ...]:
        """Every organisation for operators, one's own for others."""
        async with self._db.read() as tx:
            rows = await access.all_organizations(tx)
        if caller.is_operator:
            return tuple(_details(row) for row in rows)
        return tuple(_details(row, counted=False) for row in rows if row.id == caller.organization_id)

    async def create(self, caller: Caller, name: str) -> OrganizationDetails:
        """A new organisation without projects (operators). Raises BadInput, Conflict (its name is taken)."""
        require_operator(caller)
        name = _checked(name)
        async with self._db.transaction() as tx:
            made = self._ids.uuid4()
            if not await access.insert_organization(tx, made, name):
                raise _taken(name)
            await record(tx, caller, "organization.create", made, after={"name": name})
            return _details(await _one(tx, made))

    async def change(
        self, caller: Caller, ref: str, *, name: str | None = None, disabled: bool | None = None
    ) -> OrganizationDetails:
        """Rename an organisation, disable or enable it; named by id or name (operators).

        Disabled, its keys are refused, operators' excepted; its clusters go on. Raises NotFound, BadInput,
        Conflict (the name is taken).
        """
        require_operator(caller)
        wanted = _checked(name) if name is not None else None

        async def work(tx: Tx) -> OrganizationDetails:
            await access.lock_organizations(tx)
            row = await _one(tx, ref)
            other = await access.organization(tx, wanted) if wanted else None
            if other is not None and other.id != row.id and other.name == wanted:
                raise _taken(other.name)
            before: dict[str, object] = {}
            after: dict[str, object] = {}
            fields: dict[str, object] = {}
            if wanted not in (None, row.name):
                before, after, fields = {"name": row.name}, {"name": wanted}, {"name": wanted}
            if disabled is not None and disabled != (row.disabled_at is not None):
                before["disabled"], after["disabled"] = not disabled, disabled
                fields["disabled_at"] = tx.now if disabled else None
            if fields:
                await access.set_organization(tx, row.id, **fields)
                await record(tx, caller, "organization.update", row.id, before=before, after=after)
            return _details(await _one(tx, row.id))

        return await self._db.run(work)


def _checked(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= _MOST_NAME:
        raise BadInput(f"an organisation's name has 1 to {_MOST_NAME} characters", param="name")
    return name


def _taken(name: str) -> Conflict:
    return Conflict(f"there is an organisation {name!r} already", param="name", code="organization_exists")


async def _one(tx: Tx, ref: str) -> OrganizationRow:
    row = await access.organization(tx, ref)
    if row is None:
        raise NotFound(
            f"there is no organisation {ref[:80]!r}", param="organization", code="organization_not_found"
        )
    return row


def _details(row: OrganizationRow, *, counted: bool = True) -> OrganizationDetails:
    return OrganizationDetails(
        row.id, row.name, row.created_at, row.disabled_at, row.projects if counted else None
    )
