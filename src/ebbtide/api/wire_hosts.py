"""Bodies and answers about hosts, one by one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Name, Wire
from ebbtide.api.wire_fleet_answers import Host


class AddHost(Wire):
    """name:         lower-case letters, digits and dashes; unique in the fleet
    fabric_block: its InfiniBand island, `default` when left out
    """

    name: Name
    pool: Name
    fabric_block: Name | None = None


class DrainHost(Wire):
    """reason:  why, as operators and the tenants who are disturbed read it
    until:   when it should be over (RFC 3339), for people; nothing happens by itself then
    dry_run: only say who would be disturbed
    """

    reason: Name
    until: Annotated[str, Field(max_length=64)] | None = None
    dry_run: bool | None = None


class Stay(BaseModel):
    """A node that was, or is, on a host."""

    uid: str
    name: str
    compute_class: str
    phase: str
    host: str | None
    cluster_id: str | None
    cluster_name: str | None
    project: str | None
    placed_at: datetime | None
    running_at: datetime | None
    draining_at: datetime | None
    deadline: datetime | None
    left_at: datetime | None
    removed_at: datetime | None
    end_reason: str | None
    why: str | None
    outcome: str | None = Field(description="The last visit's sentence.")


class Maintenance(BaseModel):
    state: Literal["draining", "held", "ended"]
    reason: str
    until: datetime | None
    began_at: datetime
    began_by: str | None = Field(description="Whose key.")
    held_at: datetime | None = Field(description="Since when the host is empty.")
    ended_at: datetime | None
    ended_how: Literal["returned", "removed"] | None
    disturbed: list[Stay] = Field(description="The nodes that had to go for it, its occupant first.")


class HostReport(BaseModel):
    host: Host
    maintenance: Maintenance | None = Field(description="The one that goes on, else the last one.")
    history: list[Stay]
    dry_run: bool
