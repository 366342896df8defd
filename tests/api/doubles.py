"""Services in memory: just enough sense to drive the API through every answer it can give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ebbtide.core.claims import ClaimKind, ClaimState
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.events import Reason
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.errors import BadInput, Conflict, NotFound, Unauthenticated
from ebbtide.ids import SeededIds
from ebbtide.metrics import HOSTS, Readings
from ebbtide.services import echoes
from ebbtide.services.access import IssuedKey, KeyDetails, ProjectDetails
from ebbtide.services.details import (
    Caller,
    ClaimDetails,
    ClusterChange,
    ClusterDetails,
    ClusterOrder,
    CreditLine,
    DrainingHost,
    DriverVersion,
    EventDetails,
    FillState,
    HostDetails,
    NodeDetails,
    PhaseChange,
    PoolDetails,
    RegionDetails,
    Replay,
    Role,
    Usage,
    UsageLine,
)

NOW = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
CAPACITY_GPUS = 64


def a_caller(role: Role = Role.MEMBER, project: str = "proj-1") -> Caller:
    return Caller(f"key-{role.value}-{project}", role, project, "Default", "default", "org-1", "Local")


CALLERS = {
    "member-key": a_caller(),
    "other-key": a_caller(project="proj-2"),
    "operator-key": a_caller(Role.OPERATOR, project="proj-ops"),
}


def a_node(
    name: str = "gpu-preemptible-dp-m8v2c-4hjkd",
    *,
    phase: Phase = Phase.RUNNING,
    compute_class: ComputeClass = ComputeClass.PREEMPTIBLE,
    end_reason: EndReason | None = None,
    history: Sequence[tuple[str, int]] = (
        ("SCHEDULING", 0),
        ("BOOTING", 1),
        ("BOOTSTRAPPING", 60),
        ("RUNNING", 90),
    ),
    **others: Any,
) -> NodeDetails:
    """history: phases with their seconds after NOW."""
    values: dict[str, Any] = {
        "uid": f"uid-of-{name}",
        "cluster_id": None,
        "gpus": 8,
        "host_name": "rack-7-host-3",
        "instance_id": "i-0002",
        "address": "10.0.1.11",
        "memory_gib": 1024,
        "cpu_cores": 96,
        "created_at": NOW,
        "running_at": NOW + timedelta(seconds=90),
        "draining_at": NOW + timedelta(seconds=600) if phase is Phase.DRAINING else None,
        "deadline": NOW + timedelta(seconds=900) if phase is Phase.DRAINING else None,
        "removed_at": None,
        "drain_kind": DrainKind.RECLAIM if phase is Phase.DRAINING else None,
        "why": None,
        "outcome": "settled",
        **others,
    }
    changes = tuple(PhaseChange(name, NOW + timedelta(seconds=seconds)) for name, seconds in history)
    return NodeDetails(
        name=name, phase=phase, compute_class=compute_class, end_reason=end_reason, history=changes, **values
    )


def an_event(number: int, node: str, reason: str = Reason.PREEMPTED, seconds: int = 0) -> EventDetails:
    return EventDetails(number, f"uid-of-{node}", node, str(reason), "why", NOW + timedelta(seconds=seconds))


def a_cluster(**others: Any) -> ClusterDetails:
    values: dict[str, Any] = {
        "id": "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01",
        "name": "demo",
        "project_id": "proj-1",
        "region": "local-1",
        "pool": "h100",
        "gpu_type": "H100_SXM",
        "billing_type": "ON_DEMAND",
        "cluster_type": "KUBERNETES",
        "cuda_version": "12.8",
        "nvidia_driver_version": "570",
        "nvidia_version_id": None,
        "phase": ClusterPhase.READY,
        "num_gpus": 8,
        "desired_preemptible_gpus": 16,
        "allocated_preemptible_gpus": 8,
        "echo": {},
        "kubeconfig": "apiVersion: v1\nkind: Config\n",
        "control_plane_ready": True,
        "created_at": NOW,
        "first_ready_at": NOW,
        **others,
    }
    return ClusterDetails(**values)


A_PROJECT = ProjectDetails("proj-1", "default", "Default", "org-1", "Local", 1)
A_KEY = KeyDetails("key-1", Role.MEMBER, "wxyz", "proj-1", "Default", NOW, None, None)


class Access:
    async def authenticate(self, bearer: str | None) -> Caller:
        if bearer not in CALLERS:
            raise Unauthenticated("this key is not known", code="invalid_api_key")
        return CALLERS[bearer]

    async def projects(self, caller: Caller) -> tuple[ProjectDetails, ...]:
        return (A_PROJECT,)

    async def create_project(
        self,
        caller: Caller,
        slug: str,
        name: str | None = None,
        weight: int = 1,
        organization: str | None = None,
    ) -> ProjectDetails:
        if not slug:
            raise BadInput("a project needs a slug", param="slug")
        return ProjectDetails("proj-9", slug, name or slug, "org-1", "Local", weight)

    async def keys(self, caller: Caller) -> tuple[KeyDetails, ...]:
        return (A_KEY,)

    async def issue_key(
        self,
        caller: Caller,
        project: str,
        role: Role,
        *,
        name: str | None = None,
        expires_in_days: int | None = None,
    ) -> IssuedKey:
        return IssuedKey(replace(A_KEY, project_id=project, role=role, name=name), "ebb_secret-wxyz")

    async def revoke_key(self, caller: Caller, key_id: str) -> None:
        if key_id != A_KEY.id:
            raise NotFound("there is no such key in force", param="key_id")


def _check_gpus(num_gpus: int) -> None:
    if num_gpus < 8:
        raise BadInput(f"num_gpus must be at least 8, got {num_gpus}", param="num_gpus")
    if num_gpus % 8:
        raise BadInput(f"num_gpus must be a multiple of 8, got {num_gpus}", param="num_gpus")


@dataclass
class Clusters:
    """One pool of CAPACITY_GPUS standard GPUs; the target is stored and never filled."""

    ids: SeededIds = field(default_factory=lambda: SeededIds(7))
    kept: dict[str, ClusterDetails] = field(default_factory=dict)
    orders: list[tuple[ClusterOrder, Replay]] = field(default_factory=list)
    changes: list[ClusterChange] = field(default_factory=list)
    stream: dict[str, list[EventDetails]] = field(default_factory=dict)
    broken: Exception | None = None

    async def regions(self) -> tuple[RegionDetails, ...]:
        if self.broken:
            raise self.broken
        driver = DriverVersion("local-1-570-128", "12.8", "570", "ubuntu-22.04")
        return (RegionDetails("local-1", ("H100_SXM", "RTX_6000_PCI"), (driver,)),)

    async def create(self, caller: Caller, order: ClusterOrder, replay: Replay) -> ClusterDetails:
        if self.broken:
            raise self.broken
        self.orders.append((order, replay))
        if order.region != "local-1":
            raise BadInput(f"there is no region {order.region}; there is local-1", param="region")
        _check_gpus(order.num_gpus)
        if sum(each.num_gpus for each in self.kept.values()) + order.num_gpus > CAPACITY_GPUS:
            raise Conflict("not enough H100_SXM in local-1: 0 GPUs are free", code="out_of_stock")
        made = a_cluster(
            id=self.ids.uuid4(),
            name=order.cluster_name,
            project_id=order.project_id or caller.project_id,
            region=order.region,
            gpu_type=order.gpu_type,
            cuda_version=order.cuda_version or "12.8",
            nvidia_driver_version=order.nvidia_driver_version or "570",
            nvidia_version_id=order.nvidia_version_id,
            phase=ClusterPhase.WAITING_FOR_DATA_PLANE_NODES,
            num_gpus=order.num_gpus,
            desired_preemptible_gpus=order.num_preemptible_gpus,
            allocated_preemptible_gpus=0,
            echo=dict(order.echo),
            kubeconfig=None,
            control_plane_ready=False,
            first_ready_at=None,
        )
        self.kept[made.id] = made
        return made

    async def list(self, caller: Caller, project_id: str | None) -> tuple[ClusterDetails, ...]:
        return tuple(
            each
            for each in self.kept.values()
            if (caller.is_operator or each.project_id == caller.project_id)
            and project_id in (None, each.project_id)
        )

    async def retrieve(self, caller: Caller, cluster_id: str) -> ClusterDetails:
        found = self.kept.get(cluster_id)
        if found is None or not (caller.is_operator or found.project_id == caller.project_id):
            raise NotFound("cluster not found")
        return found

    async def update(self, caller: Caller, cluster_id: str, change: ClusterChange) -> ClusterDetails:
        self.changes.append(change)
        present = await self.retrieve(caller, cluster_id)
        if change.num_gpus is not None:
            _check_gpus(change.num_gpus)
            present = replace(present, num_gpus=change.num_gpus)
        if change.num_preemptible_gpus is not None:
            present = replace(present, desired_preemptible_gpus=change.num_preemptible_gpus)
        present = replace(present, echo=echoes.merged(present.echo, change.echo))
        self.kept[cluster_id] = present
        return present

    async def delete(self, caller: Caller, cluster_id: str) -> None:
        await self.retrieve(caller, cluster_id)
        del self.kept[cluster_id]

    async def events(
        self, caller: Caller, cluster_id: str, after: int, limit: int
    ) -> tuple[EventDetails, ...]:
        await self.retrieve(caller, cluster_id)
        return tuple(event for event in self.stream.get(cluster_id, []) if event.number > after)[:limit]


@dataclass
class Claims:
    kept: dict[str, ClaimDetails] = field(default_factory=dict)

    async def create(self, caller: Caller, pool: str, hosts: int, ref: str, for_whom: str) -> ClaimDetails:
        if pool != "h100":
            raise NotFound(f"there is no pool {pool}", param="pool")
        if ref in self.kept and self.kept[ref].hosts != hosts:
            raise Conflict(
                "this ref was used with other values (aaaa now bbbb)", param="ref", code="ref_reused"
            )
        if hosts > 4:
            raise Conflict("only 4 hosts can be had", code="out_of_stock")
        draining = (DrainingHost("host-2", NOW + timedelta(seconds=300)),) if hosts > 1 else ()
        return self.kept.setdefault(
            ref,
            ClaimDetails(
                id="c-1",
                kind=ClaimKind.EXTERNAL,
                pool=pool,
                hosts=hosts,
                ref=ref,
                for_whom=for_whom,
                state=ClaimState.OPEN if draining else ClaimState.SERVED,
                given=("host-1",),
                draining=draining,
                waiting=hosts - 1,
                created_at=NOW,
                served_at=None if draining else NOW,
                ended_at=None,
            ),
        )

    async def list(self, caller: Caller, pool: str | None = None) -> tuple[ClaimDetails, ...]:
        return tuple(each for each in self.kept.values() if pool in (None, each.pool))

    async def retrieve(self, caller: Caller, ref: str) -> ClaimDetails:
        if ref not in self.kept:
            raise NotFound("claim not found", param="ref")
        return self.kept[ref]

    async def give_back(self, caller: Caller, ref: str, hosts: tuple[str, ...] | None) -> ClaimDetails:
        present = await self.retrieve(caller, ref)
        left = () if hosts is None else tuple(name for name in present.given if name not in hosts)
        self.kept[ref] = replace(present, given=left, state=present.state if left else ClaimState.ENDED)
        return self.kept[ref]


@dataclass(frozen=True)
class Applied:
    pools_added: tuple[str, ...]
    hosts_added: int


class Fleet:
    def __init__(self) -> None:
        self.applied: list[str] = []

    async def pools(self, caller: Caller) -> tuple[PoolDetails, ...]:
        counts = {"free": 3, "standard": 1}
        return (
            PoolDetails("h100", "local-1", "H100_SXM", 8, 4, 0, counts, 0, 2_000_000, 1_000_000, "simulated"),
        )

    async def hosts(self, caller: Caller, pool: str | None = None) -> tuple[HostDetails, ...]:
        host = HostDetails(
            "h-1", "host-1", "h100", "block-1", "available", None, "file", "free", None, None, None, None, NOW
        )
        return (host,) if pool in (None, "h100") else ()

    async def nodes(self, caller: Caller, cluster_id: str | None = None) -> tuple[NodeDetails, ...]:
        return (a_node(),)

    async def reclaim(self, caller: Caller, pool: str, hosts: int, reason: str) -> tuple[NodeDetails, ...]:
        return (a_node(phase=Phase.DRAINING, why=reason),) * hosts

    async def set_cordon(
        self, caller: Caller, host: str, *, cordoned: bool, reason: str | None = None
    ) -> HostDetails:
        if host != "host-1":
            raise NotFound("there is no such host", param="host")
        state = "cordoned" if cordoned else "available"
        return replace((await self.hosts(caller))[0], state=state, state_reason=reason)

    async def apply(self, caller: Caller, text: str) -> Applied:
        if "pools" not in text:
            raise BadInput("line 1: a fleet file needs pools", param="pools")
        self.applied.append(text)
        return Applied(("h100",), 4)

    async def ownership(self, caller: Caller) -> Mapping[str, str]:
        return {"pools.headroom_hosts": "file"}


class UsageBook:
    def __init__(self) -> None:
        self.asked: list[tuple[datetime, datetime, str | None, str]] = []

    async def read(
        self,
        caller: Caller,
        since: datetime,
        until: datetime,
        cluster_id: str | None = None,
        by: Literal["cluster", "node"] = "cluster",
    ) -> Usage:
        self.asked.append((since, until, cluster_id, by))
        line = UsageLine(
            "c", "demo", "proj-1", "preemptible", "H100_SXM", None, 5760, 720, 1_000_000, 1_600_000, 1_600_000
        )
        unpriced = replace(
            line, gpu_type="ODD", microdollars_per_gpu_hour=None, microdollars=None, saved_microdollars=None
        )
        return Usage(since, until, None, (line, unpriced), (CreditLine("c", None, "late notice", 100, NOW),))


class Metrics:
    """A fleet of one host."""

    async def snapshot(self) -> Readings:
        return {HOSTS: [(("h100", "free"), 1.0)]}


@dataclass
class Doubles:
    """The bundle."""

    access: Access = field(default_factory=Access)
    clusters: Clusters = field(default_factory=Clusters)
    claims: Claims = field(default_factory=Claims)
    fleet: Fleet = field(default_factory=Fleet)
    usage: UsageBook = field(default_factory=UsageBook)
    metrics: Metrics = field(default_factory=Metrics)


class World:
    """A playground that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    async def add_pods(self, cluster_id: str, spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self.asked.append((cluster_id, dict(spec)))
        return [{"name": "pod-1"}]

    async def pods(self, cluster_id: str) -> Sequence[Mapping[str, Any]]:
        return [{"name": "pod-1"}]

    async def volumes(self, cluster_id: str) -> Sequence[Mapping[str, Any]]:
        return []

    async def delete_node(self, cluster_id: str, node: str) -> Mapping[str, Any]:
        self.asked.append((cluster_id, node))
        return {"node": node}

    async def vanish(self, host: str) -> Mapping[str, Any]:
        self.asked.append(("vanish", host))
        return {"host": host, "vanished": True}

    async def restore(self, host: str) -> Mapping[str, Any]:
        self.asked.append(("restore", host))
        return {"host": host}


A_FILL = FillState("no host is free in pool h100", NOW, NOW, NOW + timedelta(seconds=20))
