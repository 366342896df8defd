"""Bodies and answers about projects and keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Name, Wire

Role = Literal["member", "admin", "operator"]


class CreateProject(Wire):
    """slug:   lower-case letters, digits and dashes; made from the name when left out
    weight: its share of spare hosts, 1 when left out
    """

    slug: Name | None = None
    name: Name | None = None
    weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class CreateKey(Wire):
    """project: its id or slug, the caller's own when left out."""

    project: Name | None = None
    role: Role | None = None


class Project(BaseModel):
    id: str
    name: str
    slug: str
    organization_id: str
    organization_name: str
    weight: int


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


class IssuedKey(Key):
    key: str = Field(description="The key itself. It is not shown again.")


class KeyList(BaseModel):
    keys: list[Key]


class RevokedKey(BaseModel):
    id: str
    revoked: bool
