"""From a checked body to the order or change that the service takes, and a clear no to what we lack."""

from __future__ import annotations

from typing import Any

from ebbtide.api.wire_clusters import CreateCluster, UpdateCluster
from ebbtide.api.wire_volumes import CreateVolume
from ebbtide.errors import BadInput, Forbidden
from ebbtide.services.details import Caller, ClusterChange, ClusterOrder, VolumeOrder

# Clients must read these back exactly as sent, and not see them unless sent (Terraform compares).
_ECHOED = ("add_ons", "cluster_config", "oidc_config", "install_traefik", "slurm_shm_size_gib")

_IMMUTABLE = (
    "billing_type",
    "cluster_name",
    "cluster_type",
    "gpu_type",
    "region",
    "nvidia_version_id",
    "cuda_version",
    "nvidia_driver_version",
    "project_id",
)


def order(body: CreateCluster, caller: Caller) -> ClusterOrder:
    """The create as the service takes it. BadInput: not offered here. Forbidden: another's project."""
    _refuse_unoffered(body)
    _check_driver(body)
    target = body.num_preemptible_gpus or 0
    if target and body.project_id is None:
        raise BadInput(
            f"project_id is required when num_preemptible_gpus is above 0; yours is {caller.project_id}",
            param="project_id",
        )
    if body.project_id not in (None, caller.project_id) and not caller.is_operator:
        raise Forbidden(
            f"this key belongs to project {caller.project_id}, not to the project asked for",
            param="project_id",
        )
    if body.shared_volume is not None and body.volume_id is not None:
        raise BadInput(
            "shared_volume makes a new volume and volume_id names one that there is; send one of them",
            param="volume_id",
        )
    sent = body.given()
    return ClusterOrder(
        cluster_name=body.cluster_name,
        region=body.region,
        gpu_type=body.gpu_type,
        num_gpus=body.num_gpus,
        billing_type=body.billing_type,
        cluster_type=body.cluster_type or "KUBERNETES",
        num_preemptible_gpus=target,
        project_id=body.project_id,
        nvidia_version_id=body.nvidia_version_id,
        cuda_version=body.cuda_version,
        nvidia_driver_version=body.nvidia_driver_version,
        echo={field: sent[field] for field in _ECHOED if field in sent},
        shared_volume=None if body.shared_volume is None else volume_order(body.shared_volume),
        volume_id=body.volume_id,
    )


def volume_order(body: CreateVolume) -> VolumeOrder:
    """A new volume as the service takes it."""
    return VolumeOrder(
        name=body.volume_name,
        region=body.region,
        size_tib=body.size_tib,
        project_id=body.project_id,
        is_lifecycle_independent=body.is_lifecycle_independent or False,
        instance_cluster_id=body.instance_cluster_id,
    )


def change(body: UpdateCluster) -> ClusterChange:
    """The update as the service takes it: what is immutable to be compared, the rest to be merged."""
    _refuse_unoffered(body)
    sent = body.given()
    return ClusterChange(
        num_gpus=body.num_gpus,
        num_preemptible_gpus=body.num_preemptible_gpus,
        immutable={field: sent[field] for field in _IMMUTABLE if field in sent},
        echo={field: sent[field] for field in _ECHOED if field in sent},
        volume_id=body.volume_id,
        shared_volume_name=None if body.shared_volume is None else _volume_name(body.shared_volume),
        shared_volume_size_tib=None if body.shared_volume is None else _volume_size(body.shared_volume),
    )


def _volume_name(shared_volume: dict[str, Any]) -> str:
    """The name of the volume that was made with the cluster."""
    name = shared_volume.get("volume_name")
    if not isinstance(name, str):
        raise BadInput(
            "shared_volume needs volume_name; leave it as it is", param="shared_volume.volume_name"
        )
    return name


def _volume_size(shared_volume: dict[str, Any]) -> int | None:
    size = shared_volume.get("size_tib")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise BadInput("shared_volume.size_tib must be a whole number", param="shared_volume.size_tib")
    return size


def _refuse_unoffered(body: CreateCluster | UpdateCluster) -> None:
    """Every feature that this server lacks is refused by name; silence would promise it."""
    billing = body.billing_type
    if billing is not None and billing != "ON_DEMAND":
        raise BadInput(f"billing_type {billing} is not offered here; use ON_DEMAND", param="billing_type")
    if body.cluster_type == "SLURM":
        raise BadInput("cluster_type SLURM is not offered here; use KUBERNETES", param="cluster_type")
    if body.auto_scale:
        raise BadInput(
            "auto_scale is not offered here; leave it out (num_preemptible_gpus uses spare capacity)",
            param="auto_scale",
        )
    for field in ("num_reserved_gpus", "num_capacity_pool_gpus", "auto_scale_max_gpus"):
        if getattr(body, field, None):
            raise BadInput(f"{field} above 0 is not offered here; leave it out", param=field)
    for field in (
        "capacity_pool_id",
        "reservation_start_time",
        "reservation_end_time",
        "slurm_image",
    ):
        if getattr(body, field, None) is not None:
            raise BadInput(f"{field} is not offered here; leave it out", param=field)


def _check_driver(body: CreateCluster) -> None:
    pair = (body.cuda_version, body.nvidia_driver_version)
    if body.nvidia_version_id is None and pair == (None, None):
        raise BadInput(
            "nvidia_version_id is required, or cuda_version and nvidia_driver_version together; "
            "GET /v1/compute/regions lists them",
            param="nvidia_version_id",
        )
    if pair.count(None) == 1:
        lacking = "cuda_version" if body.cuda_version is None else "nvidia_driver_version"
        raise BadInput(
            f"{lacking} is required: cuda_version and nvidia_driver_version go together", param=lacking
        )
