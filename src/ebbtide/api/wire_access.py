"""Bodies and answers about projects and keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Name, Wire

Role = Literal["member", "admin", "operator"]


class CreateOrganization(Wire):
    """name: for people; unique."""

    name: Name


class ChangeOrganization(Wire):
    """What is left out stays. disabled: whether its keys are refused."""

    name: Name | None = None
    disabled: bool | None = None


class Organization(BaseModel):
    id: str
    name: str
    created_at: datetime
    disabled_at: datetime | None
    projects: int | None = Field(description="How many it has; null for tenants.")


class OrganizationList(BaseModel):
    organizations: list[Organization]


class CreateProject(Wire):
    """slug:         lower-case letters, digits and dashes; made from the name when left out
    weight:       its share of spare hosts, 1 when left out
    organization: the id or name of its organization, the caller's own when left out
    """

    slug: Name | None = None
    name: Name | None = None
    weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    organization: Name | None = None


class CreateKey(Wire):
    """project:         its id or slug, the caller's own when left out
    name:            what the key is for, to find it again
    expires_in_days: the key ends by itself then; left out: never
    """

    project: Name | None = None
    role: Role | None = None
    name: Name | None = None
    expires_in_days: Annotated[int, Field(ge=1, le=3_650)] | None = None


class RotateKey(Wire):
    """overlap_s: for how long the old key still works beside the new one, an hour when left out."""

    overlap_s: Annotated[int, Field(ge=0, le=604_800)] | None = None


class SetProject(Wire):
    """What is left out or null stays. A limit below 0 takes the quota away."""

    weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    standard_gpus_limit: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None
    preemptible_gpus_limit: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None


class Project(BaseModel):
    id: str
    name: str
    slug: str
    organization_id: str
    organization_name: str
    weight: int
    standard_gpus_limit: int | None
    preemptible_gpus_limit: int | None


class ProjectList(BaseModel):
    data: list[Project]
    next_cursor: str | None


class Key(BaseModel):
    id: str
    role: Role
    hint: str = Field(description="The last characters of the key.")
    project_id: str
    project_name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    name: str | None


class IssuedKey(Key):
    key: str = Field(description="The key itself. It is not shown again.")


class KeyList(BaseModel):
    keys: list[Key]


class RevokedKey(BaseModel):
    id: str
    revoked: bool


class AuditEntry(BaseModel):
    number: int
    at: datetime
    key_id: str | None = Field(description="Whose key; null: the server itself, or (see `role`) an operator.")
    project_id: str | None
    role: Role | None
    request_id: str | None
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(BaseModel):
    entries: list[AuditEntry]
    next_before: int | None = Field(description="Ask again with `before` set to it; null: there is no more.")
