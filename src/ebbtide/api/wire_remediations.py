"""Remediations on the wire: bodies, answers, and how their words differ from ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Text, Wire

WireMode = Literal[
    "REMEDIATION_MODE_VM_ONLY",
    "REMEDIATION_MODE_HOST_AWARE",
    "REMEDIATION_MODE_EVICT_WITHOUT_REPLACEMENT",
    "REMEDIATION_MODE_REBOOT_VM",
    "REMEDIATION_MODE_HOST_POWER_CYCLE",
]
WireTrigger = Literal["REMEDIATION_TRIGGER_MANUAL", "REMEDIATION_TRIGGER_AUTOMATED"]
WireState = Literal[
    "PENDING_APPROVAL",
    "PENDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
    "AUTO_RESOLVED",
    "QUARANTINING",
    "QUARANTINED",
]
MODE_PREFIX = "REMEDIATION_MODE_"
TRIGGER_PREFIX = "REMEDIATION_TRIGGER_"


class CreateRemediation(Wire):
    mode: WireMode
    reason: Text | None = None


class ApproveRemediation(Wire):
    """mode: another one than was asked for; not HOST_POWER_CYCLE."""

    comment: Text | None = None
    mode: WireMode | None = None


class RejectRemediation(Wire):
    comment: Text | None = None


class Remediation(BaseModel):
    id: str
    cluster_id: str
    instance_id: str
    mode: WireMode
    state: WireState
    trigger: WireTrigger
    create_time: datetime
    update_time: datetime
    instance_name: str
    start_time: datetime | None = None
    end_time: datetime | None = None
    review_time: datetime | None = None
    reason: str | None = None
    requested_by: str | None = Field(None, description="The id of the key that asked.")
    reviewed_by: str | None = None
    review_comment: str | None = None
    error_message: str | None = None
    linked_alerts: list[dict[str, Any]] | None = None
    outcome: str | None = Field(None, description="Ours: the last step, in a sentence.")


class RemediationList(BaseModel):
    remediations: list[Remediation]
    has_next: bool
    next_page_token: str = Field(description="Empty on the last page.")
