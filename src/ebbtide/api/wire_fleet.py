"""The bodies of our own endpoints: claims and reclaims."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ebbtide.api.wire_base import Name, Wire

HostCount = Annotated[int, Field(ge=1, le=1_000_000)]


class CreateClaim(Wire):
    """ref: the other system's own name for this demand. for: whom it is for; `ref` when left out."""

    pool: Name
    hosts: HostCount
    ref: Name
    for_whom: Annotated[Name | None, Field(alias="for")] = None


class CreateReclaim(Wire):
    """reason: why, as the tenants read it in their events."""

    pool: Name
    hosts: HostCount
    reason: Name


class Cordon(Wire):
    """reason: why, for other operators."""

    reason: Name | None = None
