"""From a checked body to the order or change that the service takes, and a clear no to what we lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.api.wire_clusters import CreateCluster, UpdateCluster
from ebbtide.api.wire_volumes import CreateVolume
from ebbtide.errors import BadInput, Forbidden
from ebbtide.services.details import Caller, ClusterChange, ClusterDetails, ClusterOrder, VolumeOrder

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
    """The update as the service takes it; what is immutable goes along to be compared."""
    _refuse_unoffered(body)
    sent = body.given()
    return ClusterChange(
        num_gpus=body.num_gpus,
        num_preemptible_gpus=body.num_preemptible_gpus,
        immutable={field: sent[field] for field in _IMMUTABLE if field in sent},
    )


def check_echoed(body: UpdateCluster, cluster: ClusterDetails) -> None:
    """BadInput if the update would change what was set at creation (add-ons and configuration).

    Terraform sends these on every apply, changed or not, so an equal value is welcome.
    """
    sent = body.given()
    for field in _ECHOED:
        if field in sent and not _same(field, sent[field], cluster.echo):
            raise BadInput(
                f"{field} is set when a cluster is created and cannot change; leave it as it is", param=field
            )
    _check_volumes(body, cluster)


def _check_volumes(body: UpdateCluster, cluster: ClusterDetails) -> None:
    """A cluster's volumes are chosen at its creation; naming the ones that it has changes nothing."""
    if body.volume_id is not None and body.volume_id not in {each.id for each in cluster.volumes}:
        raise BadInput(
            "volume_id is set when a cluster is created and cannot change; leave it as it is",
            param="volume_id",
        )
    if body.shared_volume is not None and body.shared_volume.get("volume_name") not in {
        each.name for each in cluster.volumes
    }:
        raise BadInput(
            "shared_volume is set when a cluster is created and cannot change; leave it as it is",
            param="shared_volume",
        )


def touches_echoed(body: UpdateCluster) -> bool:
    return any(field in body.model_fields_set for field in (*_ECHOED, "volume_id", "shared_volume"))


def _same(field: str, wanted: Any, echo: Mapping[str, Any]) -> bool:
    if field == "install_traefik":
        return bool(wanted) == bool(echo.get(field, False))
    if field == "add_ons":
        present = {add_on["name"]: add_on for add_on in echo.get("add_ons", ())}
        return all(
            add_on["name"] in present and _within(add_on, present[add_on["name"]]) for add_on in wanted
        )
    return field in echo and _within(wanted, echo[field])


def _within(part: Any, whole: Any) -> bool:
    """Whether merging `part` into `whole` changes nothing."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in part.items())
    return bool(part == whole)


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
