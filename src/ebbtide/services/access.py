"""Who may do what: projects, bearer keys, and the checks that every service begins with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound, Unauthenticated
from ebbtide.ids import Ids
from ebbtide.services.audit import record
from ebbtide.services.details import Caller, Role
from ebbtide.store import access
from ebbtide.store.access import KeyRow, ProjectRow
from ebbtide.store.db import Database, Tx

KEY_PREFIX = "ebb_"
USE_NOTED_EVERY = timedelta(minutes=1)
MOST_OVERLAP_S = 7 * 86_400
MOST_DAYS = 3_650
_PROJECT_FIELDS = ("weight", "standard_gpus_limit", "preemptible_gpus_limit")
_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ProjectDetails:
    id: str
    slug: str
    name: str
    organization_id: str
    organization_name: str
    weight: int
    standard_gpus_limit: int | None = None
    preemptible_gpus_limit: int | None = None


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
    last_used_at: datetime | None = None
    name: str | None = None


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
        """The caller behind a bearer secret. Raises Unauthenticated, and Forbidden (its organisation)."""
        if not bearer:
            raise Unauthenticated("no API key: send 'Authorization: Bearer <key>'", code="missing_api_key")
        async with self._db.read() as tx:
            key = await access.key_by_hash(tx, secret_hash(bearer))
            if key is None or key.revoked_at or (key.expires_at and key.expires_at <= tx.now):
                raise Unauthenticated("this API key is not known, or no longer valid", code="invalid_api_key")
            # An operator's key passes: who runs the service must always be able to enable it again.
            if key.organization_disabled_at is not None and key.role != Role.OPERATOR:
                raise Forbidden(
                    f"the organisation {key.organization_name!r} is disabled: what it has goes on, and its "
                    f"keys are refused until an operator enables it again",
                    code="organization_disabled",
                )
            stale = key.last_used_at is None or tx.now - key.last_used_at >= USE_NOTED_EVERY
        if stale:
            async with self._db.transaction() as tx:
                await access.touch_key(tx, key.id)
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
        self,
        caller: Caller,
        slug: str,
        name: str | None = None,
        weight: int = 1,
        organization: str | None = None,
    ) -> ProjectDetails:
        """A new project in an organisation, named by id or name; in the caller's if none is (operators)."""
        require_operator(caller)
        if not _SLUG.fullmatch(slug):
            raise BadInput(
                "a project's slug has lower-case letters, digits and dashes, 63 at most", param="slug"
            )
        if weight < 1:
            raise BadInput("weight is 1 or more", param="weight")
        async with self._db.transaction() as tx:
            owner = await access.organization(tx, organization or caller.organization_id)
            if owner is None:
                raise NotFound(f"there is no organisation {str(organization)[:80]!r}", param="organization")
            row = ProjectRow(self._ids.uuid4(), slug, name or slug, owner.id, owner.name, weight, tx.now)
            if not await access.insert_project(tx, row):
                raise Conflict(f"there is a project {slug!r} already", code="project_exists")
            after = {"slug": slug, "weight": weight, "organization": owner.name}
            await record(tx, caller, "project.create", row.id, after=after, of=row.id)
        return _project(row)

    async def set_project(
        self, caller: Caller, project: str, changes: Mapping[str, int | None]
    ) -> ProjectDetails:
        """Set a project's weight, standard_gpus_limit or preemptible_gpus_limit (operators).

        A limit of None: none.
        """
        require_operator(caller)
        for name, value in changes.items():
            if name not in _PROJECT_FIELDS:
                raise BadInput(f"a project has no {name!r} to set: {', '.join(_PROJECT_FIELDS)}", param=name)
            if (value is None and name == "weight") or (value is not None and value < (name == "weight")):
                raise BadInput(f"{name} is {1 if name == 'weight' else 0} or more", param=name)
        async with self._db.transaction() as tx:
            row = await access.project(tx, id_=project) or await access.project(tx, slug=project)
            if row is None:
                raise NotFound(f"there is no project {project[:80]!r}", param="project")
            before = {name: getattr(row, name) for name in changes}
            await access.set_project(tx, row.id, **changes)
            await record(tx, caller, "project.update", row.id, before=before, after=changes, of=row.id)
            changed = await access.project(tx, id_=row.id)
        assert changed is not None
        return _project(changed)

    async def projects(self, caller: Caller) -> tuple[ProjectDetails, ...]:
        """The projects that the caller may see."""
        async with self._db.read() as tx:
            rows = await access.all_projects(tx)
        return tuple(_project(row) for row in rows if caller.is_operator or row.id == caller.project_id)

    async def issue_key(
        self,
        caller: Caller,
        project: str,
        role: Role,
        *,
        name: str | None = None,
        expires_in_days: int | None = None,
    ) -> IssuedKey:
        """A new key for a project, by its id or slug (operators.

        Admins for their own project, not above their role).
        """
        async with self._db.transaction() as tx:
            row = await access.project(tx, id_=project) or await access.project(tx, slug=project)
            if row is None or not (caller.is_operator or row.id == caller.project_id):
                raise NotFound(f"there is no project {project!r}", param="project")
            if not caller.is_operator and (caller.role is not Role.ADMIN or role is Role.OPERATOR):
                raise Forbidden("keys are made by admins, up to their own role, or by operators")
            expires_at = _expiry(tx.now, expires_in_days)
            issued = await issue(tx, self._ids, row, role, name=name, expires_at=expires_at)
            after = {"project": row.slug, "role": role}
            await record(tx, caller, "key.create", issued.details.id, after=after, of=row.id)
            return issued

    async def rotate_key(self, caller: Caller, key_id: str, overlap_s: int = 3600) -> IssuedKey:
        """A new key in place of another, which ends after the overlap (its own holder, admins, operators).

        Raises NotFound, and BadInput for an overlap of more than a week.
        """
        if not 0 <= overlap_s <= MOST_OVERLAP_S:
            raise BadInput(f"overlap_s is between 0 and {MOST_OVERLAP_S}", param="overlap_s")
        async with self._db.transaction() as tx:
            old = await self._manageable(tx, caller, key_id)
            project = await access.project(tx, id_=old.project_id)
            assert project is not None
            # It ends when the old one would have: who holds a key for a day does not make it one for ever.
            issued = await issue(
                tx, self._ids, project, Role(old.role), name=old.name, expires_at=old.expires_at
            )
            await access.end_key(tx, old.id, tx.now + timedelta(seconds=overlap_s))
            after = {"key": issued.details.id}
            await record(tx, caller, "key.rotate", old.id, after=after, of=old.project_id)
            return issued

    async def _manageable(self, tx: Tx, caller: Caller, key_id: str) -> KeyRow:
        """A key in force that the caller may end: its own, its project's for admins, any for operators."""
        found = {
            row.id: row for row in await access.keys(tx, None if caller.is_operator else caller.project_id)
        }
        row = found.get(key_id)
        if row is None or row.revoked_at or (row.expires_at and row.expires_at <= tx.now):
            raise NotFound("there is no such key in force", param="key_id")
        above = row.role == Role.OPERATOR and not caller.is_operator
        if above or not (caller.is_operator or caller.role is Role.ADMIN or row.id == caller.key_id):
            raise Forbidden("keys are ended by their holder, by admins of the project, or by operators")
        return row

    async def keys(self, caller: Caller) -> tuple[KeyDetails, ...]:
        """Keys of the caller's project; all of them for operators."""
        async with self._db.read() as tx:
            rows = await access.keys(tx, None if caller.is_operator else caller.project_id)
        return tuple(_key(row) for row in rows)

    async def revoke_key(self, caller: Caller, key_id: str) -> None:
        """End a key at once (its own holder, admins in their own project, operators). Raises NotFound."""
        async with self._db.transaction() as tx:
            row = await self._manageable(tx, caller, key_id)
            await access.revoke_key(tx, row.id)
            before = {"project_id": row.project_id, "role": row.role}
            await record(tx, caller, "key.revoke", row.id, before=before, of=row.project_id)


def _expiry(now: datetime, days: int | None) -> datetime | None:
    if days is None:
        return None
    if not 1 <= days <= MOST_DAYS:
        raise BadInput(f"expires_in_days is between 1 and {MOST_DAYS}", param="expires_in_days")
    return now + timedelta(days=days)


async def issue(
    tx: Tx,
    ids: Ids,
    project: ProjectRow,
    role: Role,
    *,
    name: str | None = None,
    expires_at: datetime | None = None,
) -> IssuedKey:
    """Write a new key and answer it with its secret."""
    secret = KEY_PREFIX + ids.secret()
    key_id, hint = ids.uuid4(), secret[-4:]
    await access.insert_key(
        tx,
        id_=key_id,
        secret_hash=secret_hash(secret),
        project_id=project.id,
        role=role,
        hint=hint,
        name=name,
        expires_at=expires_at,
    )
    details = KeyDetails(key_id, role, hint, project.id, project.name, tx.now, expires_at, None, None, name)
    return IssuedKey(details, secret)


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
    return ProjectDetails(
        row.id,
        row.slug,
        row.name,
        row.organization_id,
        row.organization_name,
        row.weight,
        row.standard_gpus_limit,
        row.preemptible_gpus_limit,
    )


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
        row.last_used_at,
        row.name,
    )
