"""What services answer: plain frozen values, rendered for the wire by `api`, for pages by `web`.

GPU counts are GPUs, host counts hosts, instants aware UTC datetimes, money micro-dollars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from ebbtide.core.claims import ClaimKind, ClaimState
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.core.remediations import Mode, State, Trigger
from ebbtide.core.volumes import VolumeStatus


class Role(StrEnum):
    MEMBER = "member"
    ADMIN = "admin"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key, its project and what it may do."""

    key_id: str
    role: Role
    project_id: str
    project_name: str
    project_slug: str
    organization_id: str
    organization_name: str

    @property
    def is_operator(self) -> bool:
        return self.role is Role.OPERATOR


@dataclass(frozen=True, slots=True)
class DriverVersion:
    id: str
    cuda_version: str
    nvidia_driver_version: str
    os: str


@dataclass(frozen=True, slots=True)
class RegionDetails:
    name: str
    gpu_types: tuple[str, ...]
    driver_versions: tuple[DriverVersion, ...]


@dataclass(frozen=True, slots=True)
class PhaseChange:
    phase: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RemediationDetails:
    """outcome: the last step's sentence. error_message: why it failed, or why it was not needed any more."""

    id: str
    cluster_id: str
    instance_id: str
    instance_name: str
    mode: Mode
    state: State
    trigger: Trigger
    reason: str | None
    requested_by: str | None
    reviewed_by: str | None
    review_comment: str | None
    error_message: str | None
    linked_alerts: tuple[Mapping[str, object], ...]
    created_at: datetime
    started_at: datetime | None
    reviewed_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class NodeDetails:
    uid: str
    name: str
    cluster_id: str | None
    compute_class: ComputeClass
    phase: Phase
    gpus: int
    host_name: str | None
    instance_id: str | None
    address: str | None
    memory_gib: int
    cpu_cores: int
    created_at: datetime
    running_at: datetime | None
    draining_at: datetime | None
    deadline: datetime | None
    removed_at: datetime | None
    drain_kind: DrainKind | None
    end_reason: EndReason | None
    why: str | None  # why it was taken or given back
    outcome: str | None  # the last visit's sentence
    history: tuple[PhaseChange, ...] = ()
    remediation: RemediationDetails | None = None  # the latest
    said: str | None = None  # the last line of what its provider's program wrote for people

    @property
    def marked_for_deletion(self) -> bool:
        return self.phase is Phase.DRAINING


@dataclass(frozen=True, slots=True)
class VolumeDetails:
    """size_tib: the size ordered. why: what keeps it from being so, where something does."""

    id: str
    name: str
    project_id: str
    region: str
    size_tib: int
    status: VolumeStatus
    cluster_id: str | None
    why: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class VolumeOrder:
    """A new volume, alone or with a cluster. instance_cluster_id: a cluster in whose region it must be."""

    name: str
    region: str
    size_tib: int
    project_id: str | None = None
    is_lifecycle_independent: bool = False
    instance_cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class VolumeChange:
    """None: unchanged. The immutable fields are only compared."""

    size_tib: int | None = None
    immutable: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventDetails:
    """number: this event's place in its cluster's stream; numbers have no gaps and are never reused."""

    number: int
    node_uid: str
    node_name: str
    reason: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class FillState:
    """Why a target is not met.

    Since when, what was tried last, what comes next. None of it when it is met.
    """

    pending_reason: str
    since: datetime
    last_try: datetime | None
    next_try: datetime | None


@dataclass(frozen=True, slots=True)
class ImportDetails:
    """Of a cluster that was there before us. standard_selector: the labels of its own nodes.
    problem: why it could not be looked at last; None when all is well.
    """

    standard_selector: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """A cluster, whole.

    `echo` holds what the creator sent and clients must read back verbatim (contract section 11).
    """

    id: str
    name: str
    project_id: str
    region: str
    pool: str
    gpu_type: str
    billing_type: str
    cluster_type: str
    cuda_version: str
    nvidia_driver_version: str
    nvidia_version_id: str | None
    phase: ClusterPhase
    num_gpus: int
    desired_preemptible_gpus: int
    allocated_preemptible_gpus: int
    echo: Mapping[str, object]
    kubeconfig: str | None  # plain YAML; None until it exists, and in lists
    control_plane_ready: bool
    created_at: datetime
    first_ready_at: datetime | None
    nodes: tuple[NodeDetails, ...] = ()  # PENDING to DRAINING
    deleted_nodes: tuple[NodeDetails, ...] = ()  # REMOVING and REMOVED of the last 72 hours
    events: tuple[EventDetails, ...] = ()  # of the last 72 hours, oldest first
    phases: tuple[PhaseChange, ...] = ()
    fill: FillState | None = None
    volumes: tuple[VolumeDetails, ...] = ()
    imported: ImportDetails | None = None


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """A create, checked for form by the API, for sense by the service. GPU counts; None means not given."""

    cluster_name: str
    region: str
    gpu_type: str
    num_gpus: int
    billing_type: str = "ON_DEMAND"
    cluster_type: str = "KUBERNETES"
    num_preemptible_gpus: int = 0
    project_id: str | None = None
    nvidia_version_id: str | None = None
    cuda_version: str | None = None
    nvidia_driver_version: str | None = None
    echo: Mapping[str, object] = field(default_factory=dict)
    shared_volume: VolumeOrder | None = None  # made with the cluster
    volume_id: str | None = None  # or one that there is


@dataclass(frozen=True, slots=True)
class ImportOrder:
    """A cluster that exists.

    kubeconfig:        our way in, as YAML
    standard_selector: the labels of its own nodes
    placement:         `open`, or `explicit` if its preemptible nodes are to be tainted
    volume_id:         a volume that there is; it will stand in the cluster
    """

    cluster_name: str
    region: str
    gpu_type: str
    kubeconfig: str = field(repr=False)
    standard_selector: str
    num_preemptible_gpus: int = 0
    project_id: str | None = None
    placement: str = "open"
    volume_id: str | None = None


@dataclass(frozen=True, slots=True)
class ImportChange:
    """None: unchanged. force: another server also while nodes of ours are in the cluster."""

    kubeconfig: str | None = field(default=None, repr=False)
    standard_selector: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """An update.

    None means unchanged. The immutable fields are only compared; a differing value is refused. `echo` is
    merged into the cluster's. The volume fields must name volumes that the cluster has.
    """

    num_gpus: int | None = None
    num_preemptible_gpus: int | None = None
    immutable: Mapping[str, object] = field(default_factory=dict)
    echo: Mapping[str, object] = field(default_factory=dict)
    volume_id: str | None = None
    shared_volume_name: str | None = None
    shared_volume_size_tib: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """What makes two creates one (contract 1.6): an `Idempotency-Key`, or a client's retry of the same body.

    token:     the client's own key, if it sent one
    body_hash: of the request's JSON in canonical form
    is_retry:  the client says that it has sent this before (`x-stainless-retry-count` above 0)
    """

    body_hash: str
    token: str | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class DrainingHost:
    host: str
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class ClaimDetails:
    id: str
    kind: ClaimKind
    pool: str
    hosts: int
    ref: str | None
    for_whom: str
    state: ClaimState
    given: tuple[str, ...]  # host names handed over
    draining: tuple[DrainingHost, ...]  # nodes taken for this claim that are still on their way out
    waiting: int  # hosts promised, not yet there
    created_at: datetime
    served_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class PoolDetails:
    """counts: hosts per bucket (core.hosts.Bucket values); they sum to `hosts`."""

    name: str
    region: str
    gpu_type: str
    gpus_per_host: int
    hosts: int
    headroom_hosts: int
    counts: Mapping[str, int]
    promised: int
    microdollars_per_gpu_hour: int | None
    preemptible_microdollars_per_gpu_hour: int | None
    provider: str
    wipe: str = "always"


@dataclass(frozen=True, slots=True)
class HostDetails:
    id: str
    name: str
    pool: str
    fabric_block: str
    state: str
    state_reason: str | None
    source: str
    bucket: str
    node_name: str | None
    node_uid: str | None
    cluster_id: str | None
    lent_to: str | None  # cluster name, or whom a claim is for
    since: datetime | None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line.

    A node's or cluster's time in one class at one rate. `microdollars` None means unpriced yet.
    """

    cluster_id: str
    cluster_name: str
    project_id: str
    compute_class: str
    gpu_type: str
    node_name: str | None
    gpu_seconds: int
    node_seconds: int
    microdollars_per_gpu_hour: int | None
    microdollars: int | None
    saved_microdollars: int | None  # against the standard rate of the same time


@dataclass(frozen=True, slots=True)
class CreditLine:
    cluster_id: str
    node_name: str | None
    reason: str
    microdollars: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Usage:
    """since/until: half-open. sealed_until: up to here the time is proven by observation and final."""

    since: datetime
    until: datetime
    sealed_until: datetime | None
    lines: tuple[UsageLine, ...]
    credits: tuple[CreditLine, ...]
