"""All that the simulated world knows, as plain data: what a snapshot stores and what a restart reads back."""

from __future__ import annotations

import heapq
import random
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from ebbtide.core.drain import PodKind
from ebbtide.playground.behaviours import Boot, Habits, PodBehaviour, Volume
from ebbtide.playground.facts import Change, Fact, What


class Power(StrEnum):
    """A machine as its provider reports it."""

    STARTING = "starting"
    UP = "up"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Machine:
    """An instance on a host. wiped_at: when it is gone, known from the moment it was given back."""

    node_uid: str
    node_name: str
    cluster_id: str
    compute_class: str
    pool: str
    host_name: str
    gpus: int
    instance_id: str
    boot: Boot
    power: Power = Power.STARTING
    why: str = ""
    stop_asked_at: datetime | None = None
    wiped_at: datetime | None = None
    restart_ref: str = ""


@dataclass(slots=True)
class Disk:
    """A volume of the storage system. size_tib: what it has; gone_at: it is being deleted."""

    volume_id: str
    name: str
    region: str
    handle: str
    wanted_tib: int = 0
    size_tib: int = 0
    ready_at: datetime | None = None
    gone_at: datetime | None = None


@dataclass(slots=True)
class Host:
    """A physical machine. dead_since: it vanished then and has not come back."""

    name: str
    occupant: str | None = None
    dead_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What a pod is made from; a replacement is made from the same plan.

    gpus:                 what it takes of its node; 0 takes nothing, so that any number fits
    on:                   compute class that it must run on, "" for any
    reschedule:           replaced elsewhere when it ends unfinished, like the pod of a Job or a Deployment
    tolerates_everything: goes back onto the same node, cordoned or not
    """

    name: str
    behaviour: PodBehaviour
    kind: PodKind = PodKind.WORKLOAD
    grace_s: int = 30
    gpus: int = 0
    on: str = ""
    volumes: tuple[Volume, ...] = ()
    reschedule: bool = False
    tolerates_everything: bool = False


@dataclass(slots=True)
class Pod:
    """A pod. exit_at is the kubelet's truth, ends_by what the API server shows; dead: its machine is no more.

    refused: why its last eviction was
    """

    uid: str
    name: str
    plan: PodPlan
    bound_at: datetime | None = None
    told_at: datetime | None = None
    ends_by: datetime | None = None
    exit_at: datetime | None = None
    finished: bool = False
    dead: bool = False
    refused: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is work that still stands on its node."""
        return self.bound_at is not None and not self.finished and self.plan.kind is PodKind.WORKLOAD


@dataclass(frozen=True, slots=True)
class Announcement:
    """A notice as it stands on the Node object."""

    reason: str
    message: str
    deadline: datetime
    at: datetime


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node object as the API server shows it."""

    uid: str
    name: str
    ready: bool
    gpus: int
    cordoned: bool
    workload_pods: int
    first_pod_at: datetime | None
    deleting: bool = False


@dataclass(slots=True)
class Node:
    """A Node object with its pods. attached: volume attachments by id, and when each goes (None: with its pod
    or never).
    """

    uid: str
    name: str
    compute_class: str
    gpus: int = 0
    ready: bool = False
    cordoned: bool = False
    admitted: bool = False
    deleting: bool = False  # somebody deleted it, and our finalizer holds it
    notices: list[Announcement] = field(default_factory=list)
    closings: list[str] = field(default_factory=list)  # reasons of closing events
    pods: dict[str, Pod] = field(default_factory=dict)
    attached: list[str] = field(default_factory=list)
    view: NodeView | None = None  # cache; None after any change


@dataclass(frozen=True, slots=True)
class Budget:
    """A disruption budget over the pods of a name. min_available None: no disruption is ever allowed."""

    name: str
    pods: str
    min_available: int | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """A span in which something does not answer; `verbs` empty means nothing of it does."""

    start: datetime
    end: datetime
    verbs: tuple[str, ...] = ()

    def covers(self, now: datetime, verb: str) -> bool:
        return self.start <= now < self.end and (not self.verbs or verb in self.verbs)


@dataclass(slots=True)
class Cluster:
    """A cluster with its nodes.

    made:    it has a control plane of ours; else it stands for one that was imported
    pending: pods without a node; late: pods that start on their node at a later moment
    volumes: PersistentVolumes by name, as manifests
    standard: GPUs by name of nodes that were there before us
    """

    cluster_id: str
    name: str
    ready_at: datetime
    made: bool = False
    deleted: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    pending: list[Pod] = field(default_factory=list)
    late: dict[str, Pod] = field(default_factory=dict)
    budgets: list[Budget] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    standard: dict[str, int] = field(default_factory=dict)
    views: tuple[NodeView, ...] | None = None  # cache; None after any change


@dataclass(frozen=True, slots=True)
class Due:
    """Something that happens by itself at that instant."""

    at: datetime
    order: int
    what: str
    keys: tuple[str, ...]

    def __lt__(self, other: Due) -> bool:
        return (self.at, self.order) < (other.at, other.order)


@dataclass(slots=True)
class State:
    """The world. Whatever is random comes from `seed` and the name of the thing, never from the order of
    calls.
    """

    seed: int
    now: datetime
    habits: Habits = field(default_factory=Habits)
    hosts: dict[str, Host] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    pools: dict[str, dict[str, str]] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    behaviours: dict[str, dict[str, object]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    given_back: dict[str, str] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    disks: dict[str, Disk] = field(default_factory=dict)
    agenda: list[Due] = field(default_factory=list)
    facts: deque[Fact] = field(default_factory=deque)
    violations: list[str] = field(default_factory=list)
    changed: OrderedDict[tuple[str, str], Change] = field(default_factory=OrderedDict)
    counter: int = 0

    def number(self) -> int:
        self.counter += 1
        return self.counter

    def uid(self, what: str) -> str:
        """A repeatable version 4 UUID for the next thing of its kind."""
        digest = blake2b(f"{self.seed}/{what}/{self.number()}".encode(), digest_size=16).digest()
        return str(uuid.UUID(bytes=digest, version=4))

    def between(self, low: float, high: float, what: str) -> float:
        """A number from the range that depends on the seed and `what` only."""
        if low == high:
            return low
        digest = blake2b(f"{self.seed}/{what}".encode(), digest_size=8).digest()
        return round(random.Random(digest).uniform(low, high), 3)

    def at(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def plan(self, at: datetime, what: str, *keys: str) -> None:
        heapq.heappush(self.agenda, Due(at, self.number(), what, keys))

    def tell(
        self,
        what: What,
        *,
        cluster_id: str = "",
        node_uid: str = "",
        host: str = "",
        pod: str = "",
        detail: str = "",
        asked_s: int | None = None,
        given_s: int | None = None,
    ) -> None:
        """Write down that this happened now."""
        self.facts.append(Fact(self.now, what, cluster_id, node_uid, host, pod, detail, asked_s, given_s))

    def touch(self, cluster_id: str, node_uid: str = "") -> None:
        """Note that an observer of the cluster, or of the node, would now see something else."""
        key = (cluster_id, node_uid)
        self.changed[key] = Change(self.number(), cluster_id, node_uid)
        self.changed.move_to_end(key)
        cluster = self.clusters.get(cluster_id)
        if cluster is None:
            return
        cluster.views = None
        node = cluster.nodes.get(node_uid)
        if node is not None:
            node.view = None
