"""Who may do what: projects, bearer keys, and the checks that every service begins with."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound, Unauthenticated
from ebbtide.ids import Ids
from ebbtide.services.details import Caller, Role
from ebbtide.store import access
from ebbtide.store.access import KeyRow, ProjectRow
from ebbtide.store.db import Database, Tx

KEY_PREFIX = "ebb_"
_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ProjectDetails:
    id: str
    slug: str
    name: str
    organization_id: str
    organization_name: str
    weight: int


@dataclass(frozen=True, slots=True)
class KeyDetails:
    """A key without its secret. hint: the secret's last four characters."""

    id: str
    role: Role
    hint: str
    project_id: str
    project_name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key, with its secret: shown now and never again."""

    details: KeyDetails
    secret: str


def require_operator(caller: Caller) -> None:
    """Raise Forbidden unless the key is an operator's."""
    if not caller.is_operator:
        raise Forbidden("this is for operators; use a key with the role 'operator'")


def secret_hash(secret: str) -> str:
    """SHA-256 in hex. Enough for secrets of 256 random bits; there is nothing to guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


class AccessService:
    def __init__(self, db: Database, ids: Ids) -> None:
        self._db = db
        self._ids = ids

    async def authenticate(self, bearer: str | None) -> Caller:
        """The caller behind a bearer secret. Raises Unauthenticated."""
        if not bearer:
            raise Unauthenticated("no API key: send 'Authorization: Bearer <key>'", code="missing_api_key")
        async with self._db.read() as tx:
            key = await access.key_by_hash(tx, secret_hash(bearer))
            if key is None or key.revoked_at or (key.expires_at and key.expires_at <= tx.now):
                raise Unauthenticated("this API key is not known, or no longer valid", code="invalid_api_key")
        return Caller(
            key_id=key.id,
            role=Role(key.role),
            project_id=key.project_id,
            project_name=key.project_name,
            project_slug=key.project_slug,
            organization_id=key.organization_id,
            organization_name=key.organization_name,
        )

    async def create_project(
        self, caller: Caller, slug: str, name: str | None = None, weight: int = 1
    ) -> ProjectDetails:
        """A new project in the caller's organisation (operators)."""
        require_operator(caller)
        if not _SLUG.fullmatch(slug):
            raise BadInput(
                "a project's slug has lower-case letters, digits and dashes, 63 at most", param="slug"
            )
        if weight < 1:
            raise BadInput("weight is 1 or more", param="weight")
        async with self._db.transaction() as tx:
            row = ProjectRow(
                self._ids.uuid4(),
                slug,
                name or slug,
                caller.organization_id,
                caller.organization_name,
                weight,
                tx.now,
            )
            if not await access.insert_project(tx, row):
                raise Conflict(f"there is a project {slug!r} already", code="project_exists")
        return _project(row)

    async def projects(self, caller: Caller) -> tuple[ProjectDetails, ...]:
        """The projects that the caller may see."""
        async with self._db.read() as tx:
            rows = await access.all_projects(tx)
        return tuple(_project(row) for row in rows if caller.is_operator or row.id == caller.project_id)

    async def issue_key(self, caller: Caller, project: str, role: Role) -> IssuedKey:
        """A new key for a project, by its id or slug (operators.

        Admins for their own project, not above their role).
        """
        async with self._db.transaction() as tx:
            row = await access.project(tx, id_=project) or await access.project(tx, slug=project)
            if row is None or not (caller.is_operator or row.id == caller.project_id):
                raise NotFound(f"there is no project {project!r}", param="project")
            if not caller.is_operator and (caller.role is not Role.ADMIN or role is Role.OPERATOR):
                raise Forbidden("keys are made by admins, up to their own role, or by operators")
            return await issue(tx, self._ids, row, role)

    async def keys(self, caller: Caller) -> tuple[KeyDetails, ...]:
        """Keys of the caller's project; all of them for operators."""
        async with self._db.read() as tx:
            rows = await access.keys(tx, None if caller.is_operator else caller.project_id)
        return tuple(_key(row) for row in rows)

    async def revoke_key(self, caller: Caller, key_id: str) -> None:
        """End a key at once (operators; admins in their own project). Raises NotFound."""
        async with self._db.transaction() as tx:
            known = {
                row.id for row in await access.keys(tx, None if caller.is_operator else caller.project_id)
            }
            if not caller.is_operator and caller.role is not Role.ADMIN:
                raise Forbidden("keys are revoked by admins or operators")
            if key_id not in known or not await access.revoke_key(tx, key_id):
                raise NotFound("there is no such key in force", param="key_id")


async def issue(tx: Tx, ids: Ids, project: ProjectRow, role: Role) -> IssuedKey:
    """Write a new key and answer it with its secret."""
    secret = KEY_PREFIX + ids.secret()
    key_id, hint = ids.uuid4(), secret[-4:]
    await access.insert_key(
        tx, id_=key_id, project_id=project.id, role=role, secret_hash=secret_hash(secret), hint=hint
    )
    return IssuedKey(KeyDetails(key_id, role, hint, project.id, project.name, tx.now, None, None), secret)


async def bootstrap(
    db: Database, ids: Ids, *, project_slug: str, project_name: str, organization_name: str, role: Role
) -> IssuedKey:
    """A key for a project that is made if it is not there: how a fresh installation gets its first key."""
    async with db.transaction() as tx:
        row = await access.project(tx, slug=project_slug)
        if row is None:
            others = await access.all_projects(tx)
            organization_id = others[0].organization_id if others else ids.uuid4()
            row = ProjectRow(
                ids.uuid4(), project_slug, project_name, organization_id, organization_name, 1, tx.now
            )
            await access.insert_project(tx, row)
        return await issue(tx, ids, row, role)


def _project(row: ProjectRow) -> ProjectDetails:
    return ProjectDetails(row.id, row.slug, row.name, row.organization_id, row.organization_name, row.weight)


def _key(row: KeyRow) -> KeyDetails:
    return KeyDetails(
        row.id,
        Role(row.role),
        row.hint,
        row.project_id,
        row.project_name,
        row.created_at,
        row.expires_at,
        row.revoked_at,
    )
