"""Answers as the API gives them."""

from __future__ import annotations

from typing import Any

CLUSTER_ID = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"
PROJECT_ID = "0e3f9f0a-59fb-4d13-8c41-6dd7e6a6e8a1"

WHOAMI = {
    "type": "project_api_key",
    "api_key": {"id": "k1"},
    "organization": {"id": "o1", "name": "Local"},
    "project": {"id": PROJECT_ID, "name": "Default", "slug": "default"},
}
DRIVER = {"id": "r-570-128", "cuda_version": "12.8", "nvidia_driver_version": "570", "os": "ubuntu-22.04"}
REGIONS = {
    "regions": [
        {"name": "r", "supported_instance_types": ["H100_SXM"], "driver_versions": [DRIVER]},
        {"name": "s", "supported_instance_types": ["H100_SXM", "H200_SXM"], "driver_versions": [DRIVER]},
    ]
}


def node(name: str, status: str = "Running", **more: Any) -> dict[str, Any]:
    changes = [{"phase": "NODE_PHASE_RUNNING", "transition_time": "2026-01-02T03:01:00Z"}]
    return {
        "node_id": name,
        "host_name": name,
        "status": status,
        "memory_gib": 1024,
        "num_cpu_cores": 96,
        "num_gpus": 8,
        "networks": [],
        "phase_transitions": changes,
        **more,
    }


def cluster(**changes: Any) -> dict[str, Any]:
    return {
        "cluster_id": CLUSTER_ID,
        "cluster_name": "reef",
        "project_id": PROJECT_ID,
        "region": "r",
        "cluster_type": "KUBERNETES",
        "gpu_type": "H100_SXM",
        "billing_type": "ON_DEMAND",
        "status": "Ready",
        "num_gpus": 8,
        "num_reserved_gpus": 0,
        "num_capacity_pool_gpus": 0,
        "num_cpu_workers": 0,
        "desired_preemptible_gpus": 16,
        "allocated_preemptible_gpus": 8,
        "cuda_version": "12.8",
        "nvidia_driver_version": "570",
        "kube_config": "",
        "add_ons": [],
        "control_plane_nodes": [],
        "gpu_worker_nodes": [node("gpu-dp-aaaaa-bbbbb"), node("gpu-preemptible-dp-aaaaa-ccccc")],
        "deleted_gpu_worker_nodes": [],
        "node_lifecycle_events": [],
        "phase_transitions": [],
        "volumes": [],
        **changes,
    }


def pool(**changes: Any) -> dict[str, Any]:
    return {
        "name": "h100",
        "region": "r",
        "gpu_type": "H100_SXM",
        "gpus_per_host": 8,
        "hosts": 6,
        "headroom_hosts": 1,
        "counts": {"free": 2, "headroom": 1, "standard": 1, "preemptible": 2},
        "promised": 0,
        "microdollars_per_gpu_hour": 2_500_000,
        "preemptible_microdollars_per_gpu_hour": 1_250_000,
        "provider": "simulated",
        **changes,
    }


def claim(**changes: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "kind": "external",
        "pool": "h100",
        "hosts": 2,
        "ref": "order-1",
        "for": "shop",
        "state": "open",
        "given": ["h1"],
        "draining": [{"host": "h2", "deadline": "2026-01-02T03:05:00Z"}],
        "waiting": 1,
        "created_at": "2026-01-02T03:00:00Z",
        "served_at": None,
        "ended_at": None,
        **changes,
    }


def usage_line(**changes: Any) -> dict[str, Any]:
    return {
        "cluster_id": CLUSTER_ID,
        "cluster_name": "reef",
        "project_id": PROJECT_ID,
        "compute_class": "preemptible",
        "gpu_type": "H100_SXM",
        "node": None,
        "gpu_seconds": 5760,
        "node_seconds": 720,
        "microdollars_per_gpu_hour": 1_250_000,
        "microdollars": 2_000_000,
        "saved_microdollars": 2_000_000,
        **changes,
    }


USAGE = {
    "from": "2026-01-01T00:00:00Z",
    "to": "2026-01-02T03:04:05Z",
    "sealed_until": "2026-01-02T03:04:00Z",
    "lines": [usage_line()],
    "credits": [],
    "total_gpu_seconds": 5760,
    "total_microdollars": 2_000_000,
    "total_saved_microdollars": 2_000_000,
    "total_credit_microdollars": 0,
    "unpriced_lines": 0,
}
HOST = {
    "id": "h",
    "name": "h100-b1-001",
    "pool": "h100",
    "fabric_block": "b1",
    "state": "available",
    "state_reason": None,
    "source": "file",
    "bucket": "preemptible",
    "node_name": "gpu-preemptible-dp-aaaaa-ccccc",
    "node_uid": "u",
    "cluster_id": CLUSTER_ID,
    "lent_to": "reef",
    "since": "2026-01-02T03:00:00Z",
}
STAY = {
    "uid": "u",
    "name": "gpu-preemptible-dp-aaaaa-ccccc",
    "compute_class": "preemptible",
    "phase": "REMOVED",
    "host": "h100-b1-001",
    "cluster_id": CLUSTER_ID,
    "cluster_name": "reef",
    "project": "lab",
    "placed_at": "2026-01-02T03:00:00Z",
    "running_at": "2026-01-02T03:01:00Z",
    "draining_at": "2026-01-02T03:02:00Z",
    "deadline": "2026-01-02T03:07:00Z",
    "left_at": "2026-01-02T03:05:00Z",
    "removed_at": "2026-01-02T03:06:00Z",
    "end_reason": "preempted",
    "why": "maintenance of its host: new fans",
    "outcome": "removed; the host is free",
}


def host_report(dry_run: bool = False, **maintenance: Any) -> dict[str, Any]:
    """A host that is held, after its node was disturbed."""
    found = {
        "state": "held",
        "reason": "new fans",
        "until": "2026-01-02T05:00:00Z",
        "began_at": "2026-01-02T03:02:00Z",
        "began_by": "k",
        "held_at": "2026-01-02T03:06:00Z",
        "ended_at": None,
        "ended_how": None,
        "disturbed": [STAY],
        **maintenance,
    }
    return {"host": HOST, "maintenance": found, "history": [STAY], "dry_run": dry_run}


def setting(name: str = "cooldown_s", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "variable": f"EBBTIDE_{name.upper()}",
        "about": "a host rests for this long",
        "live": True,
        "value": 300,
        "source": "stored",
        "default": 120,
        "environment": 120,
        "stored": 300,
        "least": 0,
        "most": 86_400,
        "changed_at": "2026-01-02T03:00:00Z",
        "changed_by": "key-1",
        **fields,
    }


SETTINGS = [setting(), setting("provider", live=False, value="kwok", source="environment", least=None)]
ORGANIZATION = {
    "id": "org-1",
    "name": "Acme",
    "created_at": "2026-01-02T03:00:00Z",
    "disabled_at": None,
    "projects": 2,
}
NODE_REPORT = {
    "stay": STAY,
    "why": {"pool": "h100", "sentences": ["It was placed on host h100-b1-001.", "Nothing is left to do."]},
    "timeline": [{"phase": "RUNNING", "at": "2026-01-02T03:01:00Z"}],
    "events": [
        {"number": 4, "reason": "TogetherPreempted", "message": "new fans", "at": "2026-01-02T03:02:00Z"}
    ],
    "machine": {
        "instance_id": "i-7",
        "address": "10.0.0.7",
        "state": "up",
        "verb": "create",
        "exit_code": 75,
        "output": "no such image",
        "ran_at": "2026-01-02T03:00:00Z",
        "gone_at": None,
        "wiped_by": "",
    },
    "wipes": [{"moment": "after", "wiped_by": "nvme format", "at": "2026-01-02T03:06:00Z"}],
}
FLEET_NODE = {
    "uid": "u",
    "name": "gpu-preemptible-dp-aaaaa-ccccc",
    "cluster_id": CLUSTER_ID,
    "compute_class": "preemptible",
    "phase": "DRAINING",
    "gpus": 8,
    "host": "h100-b1-001",
    "instance_id": "i",
    "created_at": "2026-01-02T03:00:00Z",
    "running_at": "2026-01-02T03:01:00Z",
    "draining_at": "2026-01-02T03:02:00Z",
    "deadline": "2026-01-02T03:07:00Z",
    "removed_at": None,
    "drain_kind": "reclaim",
    "end_reason": None,
    "why": "for tide",
    "outcome": "1 pod left",
}
POD = {
    "uid": "p",
    "name": "job-1",
    "node": "gpu-preemptible-dp-aaaaa-ccccc",
    "state": "running",
    "kind": "workload",
    "behaviour": "Obeys",
    "grace_s": 30,
    "started_at": "2026-01-02T03:01:00Z",
    "told_at": None,
    "ends_by": None,
}
KEY = {
    "key": "ebb_secret",
    "id": "k2",
    "role": "member",
    "hint": "cret",
    "project_id": PROJECT_ID,
    "project_name": "Default",
    "created_at": "2026-01-02T03:01:00Z",
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
    "name": None,
}
PROJECT = {
    "id": "p",
    "slug": "lab",
    "name": "Lab",
    "organization_id": "o1",
    "organization_name": "Local",
    "weight": 1,
    "standard_gpus_limit": 64,
    "preemptible_gpus_limit": None,
}
AUDIT_ENTRY = {
    "number": 7,
    "at": "2026-01-02T03:04:05Z",
    "key_id": "k1",
    "project_id": PROJECT_ID,
    "role": "operator",
    "request_id": "req-1",
    "action": "project.update",
    "subject": "p",
    "before": {"weight": 1, "standard_gpus_limit": None},
    "after": {"weight": 3, "standard_gpus_limit": 64},
}
WEBHOOK = {
    "id": "w1",
    "url": "https://hooks.example/x",
    "reasons": None,
    "created_at": "2026-01-02T03:04:05Z",
}
DELIVERY = {
    "id": "d1",
    "cluster_id": CLUSTER_ID,
    "number": 3,
    "reason": "TogetherPreempted",
    "tries": 2,
    "last_answer": "answered 503",
    "next_try_at": "2026-01-02T03:05:00Z",
    "created_at": "2026-01-02T03:04:05Z",
    "delivered_at": None,
}


def event(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "number": number,
        "reason": "TogetherPreempted",
        "node_id": "gpu-preemptible-dp-aaaaa-ccccc",
        "message": "for tide",
        "timestamp": f"2026-01-02T03:04:{number:02}Z",
        **changes,
    }
