"""Projects and keys as plain dicts."""

from __future__ import annotations

from typing import Any

from ebbtide.api.render import at, at_or_none
from ebbtide.services.access import KeyDetails, ProjectDetails


def project(details: ProjectDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "name": details.name,
        "slug": details.slug,
        "organization_id": details.organization_id,
        "organization_name": details.organization_name,
        "weight": details.weight,
    }


def key(details: KeyDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "role": details.role.value,
        "hint": details.hint,
        "project_id": details.project_id,
        "project_name": details.project_name,
        "created_at": at(details.created_at),
        "expires_at": at_or_none(details.expires_at),
        "revoked_at": at_or_none(details.revoked_at),
    }
