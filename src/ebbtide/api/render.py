"""From what services answer to the contract's JSON, as plain dicts.

Written for speed where it counts: a list of 1,000 clusters is some 20,000 of these dicts.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.events import ALIASES
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.services.details import (
    Caller,
    ClusterDetails,
    EventDetails,
    FillState,
    NodeDetails,
    PhaseChange,
    RegionDetails,
    RemediationDetails,
    VolumeDetails,
)

_STATUS = {
    ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES: "WaitingForControlPlaneNodes",
    ClusterPhase.WAITING_FOR_SHARED_VOLUME: "WaitingForSharedVolume",
    ClusterPhase.WAITING_FOR_DATA_PLANE_NODES: "WaitingForDataPlaneNodes",
    ClusterPhase.READY: "Ready",
    ClusterPhase.DEGRADED: "Degraded",
    ClusterPhase.DELETING: "Deleting",
    ClusterPhase.DELETED: "Deleting",  # strict clients know no later one
}
_CLUSTER_PHASE = {
    phase.value: f"CLUSTER_PHASE_{phase.value}" for phase in ClusterPhase if phase is not ClusterPhase.DELETED
}
# A draining node is live and billed: the wire has no phase for it, only `marked_for_deletion`.
_NODE_PHASE = {
    Phase.PENDING.value: "NODE_PHASE_PENDING",
    Phase.SCHEDULING.value: "NODE_PHASE_SCHEDULING",
    Phase.BOOTING.value: "NODE_PHASE_BOOTING",
    Phase.BOOTSTRAPPING.value: "NODE_PHASE_BOOTSTRAPPING",
    Phase.RUNNING.value: "NODE_PHASE_RUNNING",
    Phase.DRAINING.value: "NODE_PHASE_RUNNING",
}
_NODE_STATUS = {
    Phase.PENDING: "Pending",
    Phase.SCHEDULING: "Scheduling",
    Phase.BOOTING: "Booting",
    Phase.BOOTSTRAPPING: "Bootstrapping",
    Phase.RUNNING: "Running",
    Phase.DRAINING: "Running",
    Phase.REMOVING: "Deleting",
    Phase.REMOVED: "Deleted",
}
_GONE = frozenset({Phase.REMOVING.value, Phase.REMOVED.value})
_FAILED = frozenset({EndReason.FAILED, EndReason.LOST})
_ALIAS = {reason.value: alias for reason, alias in ALIASES.items()}


@lru_cache(maxsize=65_536)
def at(instant: datetime) -> str:
    """An instant to the second with `Z` (Terraform reads no other form).

    Remembered, because history does not change: one instant stands in a node's phases and in its events, and
    is asked for again with every list.
    """
    return f"{instant.astimezone(UTC).isoformat()[:19]}Z"


def at_or_none(instant: datetime | None) -> str | None:
    return None if instant is None else at(instant)


def whoami(caller: Caller) -> dict[str, Any]:
    return {
        "type": "project_api_key",
        "api_key": {"id": caller.key_id},
        "organization": {"id": caller.organization_id, "name": caller.organization_name},
        "project": {"id": caller.project_id, "name": caller.project_name, "slug": caller.project_slug},
        "role": caller.role.value,
    }


def region(details: RegionDetails) -> dict[str, Any]:
    return {
        "name": details.name,
        "supported_instance_types": list(details.gpu_types),
        "driver_versions": [
            {
                "id": version.id,
                "cuda_version": version.cuda_version,
                "nvidia_driver_version": version.nvidia_driver_version,
                "os": version.os,
            }
            for version in details.driver_versions
        ],
    }


def cluster(details: ClusterDetails, *, aliases: bool, with_kubeconfig: bool = True) -> dict[str, Any]:
    """The Cluster object. `kube_config` is a credential and stays out of lists (then it is "")."""
    echo = details.echo
    kubeconfig = details.kubeconfig if with_kubeconfig else None
    answer: dict[str, Any] = {
        "cluster_id": details.id,
        "cluster_name": details.name,
        "project_id": details.project_id,
        "region": details.region,
        "cluster_type": details.cluster_type,
        "gpu_type": details.gpu_type,
        "billing_type": details.billing_type,
        "status": _STATUS[details.phase],
        "num_gpus": details.num_gpus,
        "num_reserved_gpus": 0,
        "num_capacity_pool_gpus": 0,
        "num_cpu_workers": 0,
        "desired_preemptible_gpus": details.desired_preemptible_gpus,
        "allocated_preemptible_gpus": details.allocated_preemptible_gpus,
        "cuda_version": details.cuda_version,
        "nvidia_driver_version": details.nvidia_driver_version,
        "kube_config": base64.b64encode(kubeconfig.encode()).decode() if kubeconfig else "",
        "add_ons": add_ons(echo.get("add_ons")),
        "control_plane_nodes": [],
        "gpu_worker_nodes": [node(each) for each in details.nodes],
        "deleted_gpu_worker_nodes": [deleted_node(each) for each in details.deleted_nodes],
        "node_lifecycle_events": lifecycle_events(details.events, aliases=aliases),
        "phase_transitions": _cluster_phases(details.phases),
        "volumes": [volume(each) for each in details.volumes],
        "created_at": at(details.created_at),
        "control_plane_ready": details.control_plane_ready,
        "install_traefik": bool(echo.get("install_traefik", False)),
    }
    if details.first_ready_at is not None:
        answer["first_ready_at"] = at(details.first_ready_at)
    if details.nvidia_version_id is not None:
        answer["nvidia_driver_version_id"] = details.nvidia_version_id
    for field in ("cluster_config", "oidc_config", "slurm_shm_size_gib"):
        if field in echo:
            answer[field] = echo[field]
    if details.imported is not None:
        answer["imported"] = {
            "standard_selector": details.imported.standard_selector,
            "problem": details.imported.problem,
        }
    if details.fill is not None:
        answer["preemptible_fill"] = fill(details.fill)
    return answer


def volume(details: VolumeDetails) -> dict[str, Any]:
    """The contract's Volume, which has no more than this."""
    return {
        "volume_id": details.id,
        "volume_name": details.name,
        "size_tib": details.size_tib,
        "status": details.status.value,
    }


def fill(details: FillState) -> dict[str, Any]:
    """Ours, beyond the contract: why the target is not met."""
    return {
        "pending_reason": details.pending_reason,
        "since": at(details.since),
        "last_try": at_or_none(details.last_try),
        "next_try": at_or_none(details.next_try),
    }


def add_ons(echoed: object) -> list[dict[str, Any]]:
    """The enabled add-ons. One without a config, or whose config does not say, counts as enabled."""
    if not isinstance(echoed, (list, tuple)):
        return []
    answer = []
    for given in echoed:
        config: Mapping[str, Any] = given.get("config", {})
        own = config.get(given["add_on_type"], {})
        if own.get("enabled", True):
            state: dict[str, Any] = {kind: {} for kind in config}
            answer.append(
                {"add_on_type": given["add_on_type"], "name": given["name"], "config": config, "state": state}
            )
    return answer


def node(details: NodeDetails) -> dict[str, Any]:
    """A live GPUWorkerNode under its Kubernetes name. The physical host is the operator's business."""
    answer = _worker(details)
    if details.phase is Phase.DRAINING:
        answer["marked_for_deletion"] = True
    return answer


def deleted_node(details: NodeDetails) -> dict[str, Any]:
    """A GPUWorkerNode that left the cluster (its host may still be turning over)."""
    answer = _worker(details)
    left = next((change.at for change in details.history if change.phase in _GONE), details.removed_at)
    if left is not None:
        answer["deleted_at"] = at(left)
    return answer


def _worker(details: NodeDetails) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "node_id": details.name,
        "host_name": details.name,
        "status": _NODE_STATUS[details.phase],
        "memory_gib": details.memory_gib,
        "num_cpu_cores": details.cpu_cores,
        "num_gpus": details.gpus,
        "networks": [] if details.address is None else [details.address],
        "phase_transitions": _node_phases(details.history, details.end_reason),
        "auto_remediation_enabled": False,  # remediations are asked for; nothing asks by itself
    }
    if details.instance_id is not None:
        answer["instance_id"] = details.instance_id
    if details.remediation is not None:
        answer["latest_remediation"] = remediation(details.remediation)
    return answer


def remediation(details: RemediationDetails) -> dict[str, Any]:
    """The contract's Remediation, and the last step's sentence. What is not known is left out."""
    optional = {
        "start_time": at_or_none(details.started_at),
        "end_time": at_or_none(details.ended_at),
        "review_time": at_or_none(details.reviewed_at),
        "reason": details.reason,
        "requested_by": details.requested_by,
        "reviewed_by": details.reviewed_by,
        "review_comment": details.review_comment,
        "error_message": details.error_message,
        "linked_alerts": list(details.linked_alerts) or None,
        "outcome": details.outcome,
    }
    return {
        "id": details.id,
        "cluster_id": details.cluster_id,
        "instance_id": details.instance_id,
        "instance_name": details.instance_name,
        "mode": f"REMEDIATION_MODE_{details.mode.value}",
        "state": details.state.value,
        "trigger": f"REMEDIATION_TRIGGER_{details.trigger.value}",
        "create_time": at(details.created_at),
        "update_time": at(details.updated_at),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _node_phases(history: Iterable[PhaseChange], end: EndReason | None) -> list[dict[str, str]]:
    last = "NODE_PHASE_FAILED" if end in _FAILED else "NODE_PHASE_SUCCEEDED"
    answer: list[dict[str, str]] = []
    for change in history:
        phase = _NODE_PHASE.get(change.phase, last)
        if not answer or answer[-1]["phase"] != phase:
            answer.append({"phase": phase, "transition_time": at(change.at)})
    return answer


def _cluster_phases(history: Iterable[PhaseChange]) -> list[dict[str, str]]:
    return [
        {"phase": _CLUSTER_PHASE[change.phase], "transition_time": at(change.at)}
        for change in history
        if change.phase in _CLUSTER_PHASE
    ]


def lifecycle_events(events: Iterable[EventDetails], *, aliases: bool) -> list[dict[str, str]]:
    """Events once per node and reason (the first stays), each followed by its alias when those are on."""
    answer: list[dict[str, str]] = []
    seen: set[tuple[str, str]] = set()
    for event in events:
        reasons = (
            (event.reason, _ALIAS[event.reason]) if aliases and event.reason in _ALIAS else (event.reason,)
        )
        timestamp = at(event.at)
        for reason in reasons:
            if (event.node_name, reason) in seen:
                continue
            seen.add((event.node_name, reason))
            answer.append(
                {
                    "node_id": event.node_name,
                    "reason": reason,
                    "message": event.message,
                    "timestamp": timestamp,
                }
            )
    return answer


def stream(events: Iterable[EventDetails]) -> list[dict[str, Any]]:
    """Events as our own stream shows them: numbered, under their own reasons."""
    return [
        {
            "number": event.number,
            "reason": event.reason,
            "node_id": event.node_name,
            "message": event.message,
            "timestamp": at(event.at),
        }
        for event in events
    ]
