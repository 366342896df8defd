"""The bodies of storage volumes, as the contract lists their fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ebbtide.api.wire_base import Name, Wire

SizeTib = Annotated[int, Field(ge=1, le=1_000_000, description="Whole TiB.")]


class CreateVolume(Wire):
    """volume_name also names the PersistentVolume: lower-case letters, digits, dashes.

    instance_cluster_id: a cluster in whose region the volume must be.
    """

    region: Name
    volume_name: Name
    size_tib: SizeTib
    project_id: Name | None = None
    is_lifecycle_independent: bool | None = None
    instance_cluster_id: Name | None = None


class UpdateVolume(Wire):
    """Only `size_tib` can change, and only grow; the rest is compared, because Terraform sends it."""

    volume_id: Name
    size_tib: SizeTib | None = None
    volume_name: Name | None = None
    region: Name | None = None
    project_id: Name | None = None
    is_lifecycle_independent: bool | None = None
