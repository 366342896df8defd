"""The bodies of cluster create and update, as the contract lists their fields."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ebbtide.api.wire_base import GpuCount, Name, Text, Wire
from ebbtide.api.wire_volumes import CreateVolume

BillingType = Literal["RESERVED", "ON_DEMAND", "SCHEDULED_CAPACITY"]
ClusterType = Literal["KUBERNETES", "SLURM"]


def _instant(text: str) -> str:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a time like 2026-01-02T03:04:05Z") from None
    if parsed.tzinfo is None:
        raise ValueError("must say its time zone, like 2026-01-02T03:04:05Z")
    return text


Instant = Annotated[str, Field(max_length=64), AfterValidator(_instant)]


class Enabled(Wire):
    enabled: bool | None = None


class AddOnConfig(Wire):
    dashboard: Enabled | None = None
    headlamp: Enabled | None = None
    ingress: Enabled | None = None
    slurm_web: Enabled | None = None


class AddOn(Wire):
    add_on_type: Name
    name: Name
    config: AddOnConfig | None = None


class AddOnChange(Wire):
    name: Name
    add_on_type: Name | None = None
    config: AddOnConfig | None = None


class SlurmStartupScripts(Wire):
    controller_prolog: Text | None = None
    controller_epilog: Text | None = None
    worker_prolog: Text | None = None
    worker_epilog: Text | None = None
    login_init_script: Text | None = None
    nodeset_init_script: Text | None = None
    extra_slurm_conf: Text | None = None


class ClusterConfig(Wire):
    load_balancer: Literal["NONE", "TRAEFIK", "NGINX", "ISTIO"]
    gpu_operator_version: Name | None = None
    network_operator_version: Name | None = None
    ingress: Enabled | None = None
    observability: Enabled | None = None
    jumphost_enabled: bool | None = None
    kubernetes_dashboard_enabled: bool | None = None
    ssh_ca_enabled: bool | None = None
    slurm_startup_scripts: SlurmStartupScripts | None = None


class OidcConfig(Wire):
    issuer_url: Text
    client_id: Text
    username_claim: Text
    username_prefix: Text
    group_claim: Text
    group_prefix: Text
    ca_cert: Text | None = None


class AcceptanceTestsParams(Wire):
    enabled: bool | None = None
    dcgm_diag_level: (
        Literal[
            "DCGM_DIAG_LEVEL_SHORT",
            "DCGM_DIAG_LEVEL_MEDIUM",
            "DCGM_DIAG_LEVEL_LONG",
            "DCGM_DIAG_LEVEL_EXTENDED",
        ]
        | None
    ) = None
    dcgm_diag_skipped: bool | None = None
    gpu_burn_skipped: bool | None = None
    gpu_burn_duration: Annotated[int, Field(ge=0, le=604_800)] | None = None
    nccl_single_node_skipped: bool | None = None
    nccl_multi_node_skipped: bool | None = None
    storage_skipped: bool | None = None


AddOns = Annotated[list[AddOn], Field(max_length=32)]
AddOnChanges = Annotated[list[AddOnChange], Field(max_length=32)]


class CreateCluster(Wire):
    billing_type: BillingType
    cluster_name: Name
    gpu_type: Name
    num_gpus: GpuCount
    region: Name
    nvidia_version_id: Name | None = None
    cuda_version: Name | None = None
    nvidia_driver_version: Name | None = None
    num_preemptible_gpus: GpuCount | None = None
    project_id: Name | None = None
    cluster_type: ClusterType | None = None
    num_reserved_gpus: GpuCount | None = None
    capacity_pool_id: Name | None = None
    num_capacity_pool_gpus: GpuCount | None = None
    auto_scale: bool | None = None
    auto_scale_max_gpus: GpuCount | None = None
    duration_days: Annotated[int, Field(ge=1, le=90)] | None = None
    reservation_start_time: Instant | None = None
    reservation_end_time: Instant | None = None
    shared_volume: CreateVolume | None = None
    volume_id: Name | None = None
    install_traefik: bool | None = None
    add_ons: AddOns | None = None
    cluster_config: ClusterConfig | None = None
    oidc_config: OidcConfig | None = None
    acceptance_tests_params: AcceptanceTestsParams | None = None
    slurm_image: Name | None = None
    slurm_shm_size_gib: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class UpdateCluster(Wire):
    """A merge: what is absent stays. From `billing_type` on nothing can change; Terraform sends it anyhow."""

    num_gpus: GpuCount | None = None
    num_preemptible_gpus: GpuCount | None = None
    num_capacity_pool_gpus: GpuCount | None = None
    num_reserved_gpus: GpuCount | None = None
    reservation_end_time: Instant | None = None
    cluster_type: ClusterType | None = None
    add_ons: AddOnChanges | None = None
    cluster_config: ClusterConfig | None = None
    billing_type: BillingType | None = None
    cluster_name: Name | None = None
    gpu_type: Name | None = None
    region: Name | None = None
    nvidia_version_id: Name | None = None
    cuda_version: Name | None = None
    nvidia_driver_version: Name | None = None
    project_id: Name | None = None
    install_traefik: bool | None = None
    oidc_config: OidcConfig | None = None
    slurm_shm_size_gib: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    capacity_pool_id: Name | None = None
    auto_scale: bool | None = None
    shared_volume: dict[str, Any] | None = None
    volume_id: Name | None = None
