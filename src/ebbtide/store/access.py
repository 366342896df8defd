"""Projects and bearer keys. Secrets are stored as hashes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from ebbtide.store.db import Tx
from ebbtide.store.tables import api_keys, organizations, projects


@dataclass(frozen=True, slots=True)
class ProjectRow:
    id: str
    slug: str
    name: str
    organization_id: str
    organization_name: str
    weight: int
    created_at: datetime
    standard_gpus_limit: int | None = None
    preemptible_gpus_limit: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key with its project. `role` is a services.details.Role value."""

    id: str
    role: str
    hint: str
    project_id: str
    project_name: str
    project_slug: str
    organization_id: str
    organization_name: str
    organization_disabled_at: datetime | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    name: str | None


# Named: a column that is added to the table is not one of ours until it is named here.
_OWN = [name for name in ProjectRow.__slots__ if name != "organization_name"]
_PROJECTS = sa.select(
    *(projects.c[name] for name in _OWN), organizations.c.name.label("organization_name")
).join_from(projects, organizations)

_KEY = """
SELECT k.id, k.role, k.hint, p.id AS project_id, p.name AS project_name, p.slug AS project_slug,
p.organization_id,
       o.name AS organization_name, o.disabled_at AS organization_disabled_at,
       k.created_at, k.expires_at, k.revoked_at, k.last_used_at, k.name
FROM api_keys k JOIN projects p ON p.id = k.project_id JOIN organizations o ON o.id = p.organization_id
"""


async def insert_project(tx: Tx, row: ProjectRow) -> bool:
    """Write a new project, and its organisation if that is new; False when there is one with its slug."""
    await tx.conn.execute(
        upsert(organizations)
        .values(id=row.organization_id, name=row.organization_name, created_at=tx.now)
        .on_conflict_do_nothing(index_elements=["id"])
    )
    values = {name: getattr(row, name) for name in _OWN}
    written = await tx.conn.execute(
        upsert(projects)
        .values(**values)
        .on_conflict_do_nothing(index_elements=["slug"])
        .returning(projects.c.id)
    )
    return written.first() is not None


async def project(tx: Tx, *, id_: str | None = None, slug: str | None = None) -> ProjectRow | None:
    """A project by its id or its slug."""
    where = projects.c.id == id_ if id_ is not None else projects.c.slug == slug
    row = (await tx.conn.execute(_PROJECTS.where(where))).first()
    return ProjectRow(**row._mapping) if row else None


async def all_projects(tx: Tx) -> list[ProjectRow]:
    return [ProjectRow(**row._mapping) for row in await tx.conn.execute(_PROJECTS.order_by(projects.c.slug))]


async def insert_key(tx: Tx, *, id_: str, secret_hash: str, **values: object) -> None:
    """Write a new key: project_id, role, hint, and where given name and expires_at."""
    await tx.conn.execute(
        sa.insert(api_keys).values(id=id_, secret_hash=secret_hash, created_at=tx.now, **values)
    )


async def key_by_hash(tx: Tx, secret_hash: str) -> KeyRow | None:
    row = (
        await tx.conn.execute(sa.text(_KEY + " WHERE k.secret_hash = :hash"), {"hash": secret_hash})
    ).first()
    return KeyRow(**row._mapping) if row else None


async def keys(tx: Tx, project_id: str | None) -> Sequence[KeyRow]:
    """Keys of one project, or of all, oldest first."""
    rows = await tx.conn.execute(
        sa.text(
            _KEY
            + " WHERE CAST(:project AS text) IS NULL OR k.project_id = :project ORDER BY k.created_at, k.id"
        ),
        {"project": project_id},
    )
    return [KeyRow(**row._mapping) for row in rows]


async def revoke_key(tx: Tx, key_id: str) -> bool:
    """Revoke a key for good; False when there is no such key in force."""
    result = await tx.conn.execute(
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=tx.now)
    )
    return bool(result.rowcount)


async def touch_key(tx: Tx, key_id: str) -> None:
    """Note that a key was used, to the minute."""
    await tx.conn.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(last_used_at=tx.now))


async def end_key(tx: Tx, key_id: str, at: datetime) -> None:
    """Let a key end at an instant, if it does not end before."""
    await tx.conn.execute(
        sa.text("UPDATE api_keys SET expires_at = LEAST(COALESCE(expires_at, :at), :at) WHERE id = :id"),
        {"id": key_id, "at": at},
    )


async def set_project(tx: Tx, project_id: str, **fields: object) -> None:
    """Write a project's weight, quotas or name."""
    if fields:
        await tx.conn.execute(sa.update(projects).where(projects.c.id == project_id).values(**fields))


@dataclass(frozen=True, slots=True)
class OrderedRow:
    """What a project has ordered, in GPUs, and its quotas (None: none)."""

    standard_gpus: int
    preemptible_gpus: int
    standard_gpus_limit: int | None
    preemptible_gpus_limit: int | None


async def lock_project(tx: Tx, project_id: str) -> None:
    """Let those who count what a project has, to add to it, wait for each other."""
    await tx.conn.execute(
        sa.text("SELECT 1 FROM projects WHERE id = :id FOR NO KEY UPDATE"), {"id": project_id}
    )


async def lock_usage(tx: Tx, project_id: str) -> OrderedRow:
    """Lock a project and count what its clusters order. Clusters that are being deleted count no more."""
    await tx.conn.execute(
        sa.text("SELECT 1 FROM projects WHERE id = :id FOR NO KEY UPDATE"), {"id": project_id}
    )
    return await usage(tx, project_id)


async def usage(tx: Tx, project_id: str) -> OrderedRow:
    """The same count without the lock, for looking only."""
    limits = (
        await tx.conn.execute(
            sa.text("SELECT standard_gpus_limit, preemptible_gpus_limit FROM projects WHERE id = :id"),
            {"id": project_id},
        )
    ).one()
    ordered = (
        await tx.conn.execute(
            sa.text("""
            SELECT COALESCE(sum(standard_hosts * gpus_per_host), 0) AS standard,
                   COALESCE(sum(target_hosts * gpus_per_host), 0) AS preemptible
            FROM clusters WHERE project_id = :id AND phase NOT IN ('DELETING', 'DELETED')
            """),
            {"id": project_id},
        )
    ).one()
    return OrderedRow(
        int(ordered.standard),
        int(ordered.preemptible),
        limits.standard_gpus_limit,
        limits.preemptible_gpus_limit,
    )


@dataclass(frozen=True, slots=True)
class OrganizationRow:
    """projects: how many it has. disabled_at: since when its keys are refused."""

    id: str
    name: str
    created_at: datetime
    disabled_at: datetime | None
    projects: int


_ORGANIZATION = """
SELECT o.id, o.name, o.created_at, o.disabled_at,
       (SELECT count(*) FROM projects p WHERE p.organization_id = o.id) AS projects
FROM organizations o
"""


async def lock_organizations(tx: Tx) -> None:
    """Let those who give names wait for each other."""
    await tx.conn.execute(sa.text("LOCK TABLE organizations IN SHARE ROW EXCLUSIVE MODE"))


async def all_organizations(tx: Tx) -> list[OrganizationRow]:
    rows = await tx.conn.execute(sa.text(_ORGANIZATION + " ORDER BY o.name"))
    return [OrganizationRow(**row._mapping) for row in rows]


async def organization(tx: Tx, ref: str) -> OrganizationRow | None:
    """An organisation by its id or its name."""
    found = await tx.conn.execute(
        sa.text(_ORGANIZATION + " WHERE o.id = :ref OR o.name = :ref ORDER BY o.id <> :ref"), {"ref": ref}
    )
    row = found.first()
    return OrganizationRow(**row._mapping) if row else None


async def insert_organization(tx: Tx, id_: str, name: str) -> bool:
    """Write a new organisation; False when there is one of its name."""
    written = await tx.conn.execute(
        upsert(organizations)
        .values(id=id_, name=name, created_at=tx.now)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(organizations.c.id)
    )
    return written.first() is not None


async def set_organization(tx: Tx, id_: str, **fields: object) -> None:
    """Write its name, or since when it is disabled."""
    if fields:
        await tx.conn.execute(sa.update(organizations).where(organizations.c.id == id_).values(**fields))
