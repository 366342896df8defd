"""The operator's view and the bill as plain dicts: our own JSON, beyond the contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from ebbtide.api.render import at, at_or_none
from ebbtide.services.details import (
    ClaimDetails,
    CreditLine,
    HostDetails,
    NodeDetails,
    PoolDetails,
    Usage,
    UsageLine,
)


def claim(details: ClaimDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "kind": details.kind.value,
        "pool": details.pool,
        "hosts": details.hosts,
        "ref": details.ref,
        "for": details.for_whom,
        "state": details.state.value,
        "given": list(details.given),
        "draining": [{"host": each.host, "deadline": at_or_none(each.deadline)} for each in details.draining],
        "waiting": details.waiting,
        "created_at": at(details.created_at),
        "served_at": at_or_none(details.served_at),
        "ended_at": at_or_none(details.ended_at),
    }


def pool(details: PoolDetails) -> dict[str, Any]:
    return {
        "name": details.name,
        "region": details.region,
        "gpu_type": details.gpu_type,
        "gpus_per_host": details.gpus_per_host,
        "hosts": details.hosts,
        "headroom_hosts": details.headroom_hosts,
        "counts": plain(details.counts),
        "promised": details.promised,
        "microdollars_per_gpu_hour": details.microdollars_per_gpu_hour,
        "preemptible_microdollars_per_gpu_hour": details.preemptible_microdollars_per_gpu_hour,
        "provider": details.provider,
        "wipe": details.wipe,
    }


def host(details: HostDetails) -> dict[str, Any]:
    return {
        "id": details.id,
        "name": details.name,
        "pool": details.pool,
        "fabric_block": details.fabric_block,
        "state": details.state,
        "state_reason": details.state_reason,
        "source": details.source,
        "bucket": details.bucket,
        "node_name": details.node_name,
        "node_uid": details.node_uid,
        "cluster_id": details.cluster_id,
        "lent_to": details.lent_to,
        "since": at_or_none(details.since),
    }


def node(details: NodeDetails) -> dict[str, Any]:
    return {
        "uid": details.uid,
        "name": details.name,
        "cluster_id": details.cluster_id,
        "compute_class": details.compute_class.value,
        "phase": details.phase.value,
        "gpus": details.gpus,
        "host": details.host_name,
        "instance_id": details.instance_id,
        "created_at": at(details.created_at),
        "running_at": at_or_none(details.running_at),
        "draining_at": at_or_none(details.draining_at),
        "deadline": at_or_none(details.deadline),
        "removed_at": at_or_none(details.removed_at),
        "drain_kind": plain(details.drain_kind),
        "end_reason": plain(details.end_reason),
        "why": details.why,
        "outcome": details.outcome,
        "said": details.said,
    }


def usage(details: Usage) -> dict[str, Any]:
    """Whole GPU-seconds and micro-dollars. The totals leave unpriced lines out, which are counted."""
    priced = [line for line in details.lines if line.microdollars is not None]
    return {
        "from": at(details.since),
        "to": at(details.until),
        "sealed_until": at_or_none(details.sealed_until),
        "lines": [_usage_line(line) for line in details.lines],
        "credits": [_credit(line) for line in details.credits],
        "total_gpu_seconds": sum(line.gpu_seconds for line in details.lines),
        "total_microdollars": sum(line.microdollars or 0 for line in priced),
        "total_saved_microdollars": sum(line.saved_microdollars or 0 for line in priced),
        "total_credit_microdollars": sum(line.microdollars for line in details.credits),
        "unpriced_lines": len(details.lines) - len(priced),
    }


def _usage_line(line: UsageLine) -> dict[str, Any]:
    return {
        "cluster_id": line.cluster_id,
        "cluster_name": line.cluster_name,
        "project_id": line.project_id,
        "compute_class": line.compute_class,
        "gpu_type": line.gpu_type,
        "node": line.node_name,
        "gpu_seconds": line.gpu_seconds,
        "node_seconds": line.node_seconds,
        "microdollars_per_gpu_hour": line.microdollars_per_gpu_hour,
        "microdollars": line.microdollars,
        "saved_microdollars": line.saved_microdollars,
    }


def _credit(line: CreditLine) -> dict[str, Any]:
    return {
        "cluster_id": line.cluster_id,
        "node": line.node_name,
        "reason": line.reason,
        "microdollars": line.microdollars,
        "at": at(line.at),
    }


def plain(value: Any) -> Any:
    """Dataclasses, enumerations, times and collections as JSON values, fields under their own names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return at(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value
