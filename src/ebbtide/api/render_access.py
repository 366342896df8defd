"""Projects and keys as plain dicts."""

from __future__ import annotations

from typing import Any

from ebbtide.api.render import at, at_or_none
from ebbtide.services.access import KeyDetails, ProjectDetails
from ebbtide.services.audit import AuditDetails


def project(details: ProjectDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "name": details.name,
        "slug": details.slug,
        "organization_id": details.organization_id,
        "organization_name": details.organization_name,
        "weight": details.weight,
        "standard_gpus_limit": details.standard_gpus_limit,
        "preemptible_gpus_limit": details.preemptible_gpus_limit,
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
        "last_used_at": at_or_none(details.last_used_at),
        "name": details.name,
    }


def audit_entry(details: AuditDetails) -> dict[str, Any]:
    return {
        "number": details.number,
        "at": at(details.at),
        "key_id": details.key_id,
        "project_id": details.project_id,
        "role": details.role,
        "request_id": details.request_id,
        "action": details.action,
        "subject": details.subject,
        "before": details.before,
        "after": details.after,
    }
