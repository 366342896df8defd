"""What the API answers, as models, for the OpenAPI document and for tests. Rendering does without."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_clusters import BillingType, ClusterConfig, ClusterType, OidcConfig
from ebbtide.api.wire_remediations import Remediation

Status = Literal[
    "WaitingForControlPlaneNodes",
    "WaitingForDataPlaneNodes",
    "WaitingForSubnet",
    "WaitingForSharedVolume",
    "InstallingDrivers",
    "RunningAcceptanceTests",
    "Paused",
    "OnDemandComputePaused",
    "Ready",
    "Degraded",
    "Deleting",
]
NodePhase = Literal[
    "NODE_PHASE_PENDING",
    "NODE_PHASE_SCHEDULING",
    "NODE_PHASE_BOOTING",
    "NODE_PHASE_BOOTSTRAPPING",
    "NODE_PHASE_RUNNING",
    "NODE_PHASE_SUCCEEDED",
    "NODE_PHASE_FAILED",
    "NODE_PHASE_PAUSED",
]


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(BaseModel):
    error: ErrorInfo


_SAID: tuple[tuple[int | str, str], ...] = (
    (400, "Something in the request is wrong; `param` names the field."),
    (401, "No key, or one that is not known."),
    (403, "The key may not do this."),
    (404, "There is no such thing, or it is not the caller's."),
    (429, "The key sends too fast; `retry-after` says how many seconds to wait."),
    (503, "The database does not answer; the same request may work in a second."),
)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": said} for status, said in _SAID
}
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {
        "model": Error,
        "description": "Right in itself but not possible now. Not worth repeating unchanged.",
    }
}


class ApiKey(BaseModel):
    id: str


class Organization(BaseModel):
    id: str
    name: str


class WhoamiProject(BaseModel):
    id: str
    name: str
    slug: str


class Whoami(BaseModel):
    type: Literal["project_api_key"]
    api_key: ApiKey
    organization: Organization
    project: WhoamiProject
    role: Literal["member", "admin", "operator"]


class DriverVersion(BaseModel):
    id: str
    cuda_version: str
    nvidia_driver_version: str
    os: str


class Region(BaseModel):
    name: str
    supported_instance_types: list[str]
    driver_versions: list[DriverVersion]


class RegionList(BaseModel):
    regions: list[Region]


class NodePhaseTransition(BaseModel):
    phase: NodePhase
    transition_time: datetime


class ClusterPhaseTransition(BaseModel):
    phase: str = Field(pattern="^CLUSTER_PHASE_")
    transition_time: datetime


class EnabledAddOn(BaseModel):
    add_on_type: str
    name: str
    config: dict[str, Any]
    state: dict[str, Any]


class WorkerNode(BaseModel):
    """`node_id` and `host_name` are the Kubernetes node's name; its prefix tells the compute class."""

    node_id: str
    host_name: str
    status: str
    memory_gib: int
    num_cpu_cores: int
    num_gpus: int
    networks: list[str]
    phase_transitions: list[NodePhaseTransition]
    auto_remediation_enabled: bool
    instance_id: str | None = None
    latest_remediation: Remediation | None = None
    marked_for_deletion: bool | None = Field(
        None, description="The node drains: it goes at its deadline at the latest."
    )
    deleted_at: datetime | None = None


class LifecycleEvent(BaseModel):
    node_id: str
    reason: str
    message: str
    timestamp: datetime


class Volume(BaseModel):
    volume_id: str
    volume_name: str
    size_tib: int
    status: Literal["scheduled", "provisioning", "available", "bound", "deleting", "failed"]


class VolumeList(BaseModel):
    volumes: list[Volume]


class DeletedVolume(BaseModel):
    success: bool


class PreemptibleFill(BaseModel):
    """Why the target is not met: since when, when it was last tried, when it is tried next."""

    pending_reason: str
    since: datetime
    last_try: datetime | None
    next_try: datetime | None


class Imported(BaseModel):
    """Of a cluster that was there before us. problem: why it could not be looked at last."""

    standard_selector: str
    problem: str | None


class Cluster(BaseModel):
    cluster_id: str
    cluster_name: str
    project_id: str
    region: str
    cluster_type: ClusterType
    gpu_type: str
    billing_type: BillingType
    status: Status
    num_gpus: int
    num_reserved_gpus: int
    num_capacity_pool_gpus: int
    num_cpu_workers: int
    desired_preemptible_gpus: int
    allocated_preemptible_gpus: int
    cuda_version: str
    nvidia_driver_version: str
    kube_config: str = Field(description="Base64 of YAML; empty until it exists, and in lists.")
    add_ons: list[EnabledAddOn]
    control_plane_nodes: list[dict[str, Any]]
    gpu_worker_nodes: list[WorkerNode]
    deleted_gpu_worker_nodes: list[WorkerNode]
    node_lifecycle_events: list[LifecycleEvent]
    phase_transitions: list[ClusterPhaseTransition]
    volumes: list[Volume]
    created_at: datetime
    control_plane_ready: bool
    install_traefik: bool
    first_ready_at: datetime | None = None
    nvidia_driver_version_id: str | None = None
    cluster_config: ClusterConfig | None = None
    oidc_config: OidcConfig | None = None
    slurm_shm_size_gib: int | None = None
    preemptible_fill: PreemptibleFill | None = None
    imported: Imported | None = None


class ClusterList(BaseModel):
    clusters: list[Cluster]


class DeletedCluster(BaseModel):
    cluster_id: str


class StreamEvent(LifecycleEvent):
    number: int


class EventPage(BaseModel):
    events: list[StreamEvent]
    next_after: int
