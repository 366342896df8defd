"""The seam to what runs inside a cluster: how nodes are seen, and how work leaves a node.

Reads are fresh or they fail: a driver never answers from a cache where a caller decides that a node is empty.
Every write is
repeatable and names the node's uid; a write about a node that is not there is done. Network time limits live
here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ebbtide.core.drain import PodOrder, PodSeen
from ebbtide.errors import EbbtideError


class DriverError(EbbtideError):
    """The cluster could not be asked or told; nothing may be concluded from that.

    refused: the cluster answered, and a rule of its own said no; the next try will hear the same
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """Which cluster: its id, its name and the kubeconfig with which we speak to it, where there is one."""

    cluster_id: str
    name: str
    kubeconfig: str | None = None


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Which node in it: the ledger's uid and the name under which it registers."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node as the cluster shows it now.

    ready:         the kubelet reports Ready
    gpus:          allocatable GPUs
    cordoned:      unschedulable by somebody's wish
    workload_pods: pods that count as work (no daemons, mirrors, finished ones)
    first_pod_at:  when the earliest of these started, None without any
    deleting:      somebody asked its cluster to delete it, and it is held until it was emptied
    """

    uid: str
    name: str
    ready: bool
    gpus: int
    cordoned: bool = False
    workload_pods: int = 0
    first_pod_at: datetime | None = None
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What is announced at T+0."""

    reason: str
    message: str
    deadline: datetime


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """Pods on one node by a fresh, complete read, and the volume attachments that still name it.

    attachments: one where that cannot be read: it hides no pod, and the node is not called empty
    """

    pods: tuple[PodSeen, ...]
    attachments: int = 0


@dataclass(frozen=True, slots=True)
class OrderResult:
    """What became of one order.

    refused:  why a budget said no (releases only); None when the pod was told
    overrode: the disruption budget that would have said no and was not asked (reclaims), as NAMESPACE/NAME
    """

    pod_uid: str
    refused: str | None = None
    overrode: str | None = None


@dataclass(frozen=True, slots=True)
class StandardNode:
    """A node of an imported cluster that was there before us. gpus: allocatable; address: internal."""

    name: str
    ready: bool
    gpus: int
    memory_gib: int = 0
    cpu_cores: int = 0
    address: str = ""


class Watcher(Protocol):
    """Tells early that something changed in a cluster. Only a hint: a fresh read decides."""

    def changes(self, cluster: ClusterRef) -> AsyncGenerator[frozenset[str], None]:
        """Uids (the ledger's) of nodes about which something changed, while it is iterated: the node itself,
        or a pod on it. At first every node. Survives whatever happens to the connection, and misses nothing
        that did not come and go meanwhile. Never raises for trouble in the cluster; ends by itself only
        where its kubeconfig is of no use.
        """


class Driver(Protocol):
    """Speaks to one kind of cluster. All methods raise DriverError only."""

    async def observe(self, cluster: ClusterRef) -> list[NodeSeen]:
        """Every node of the cluster by a fresh read."""

    async def join_data(self, cluster: ClusterRef, node: NodeRef) -> Mapping[str, str]:
        """What a machine needs to join as this node (for kubeadm: `server`, `ca`, `token`), nothing where
        machines join by other means. Asked again for the same node it answers the same while that is good.
        """

    async def missing_rights(self, cluster: ClusterRef) -> list[str]:
        """Rights that these calls need in the cluster and that we do not have, in words; none: all there."""

    async def standard(self, cluster: ClusterRef, selector: str) -> list[StandardNode]:
        """Nodes with the labels that the selector names, by a fresh read, without those that are ours."""

    async def admit(self, cluster: ClusterRef, node: NodeRef) -> None:
        """Let work onto a node that is whole: take the `initializing` taint away. Raises as long as it is not
        away; what fails after that is no error.
        """

    async def notify(self, cluster: ClusterRef, node: NodeRef, notice: Notice) -> None:
        """Cordon, write the deadline annotation, send the event.

        Done again it changes nothing and sends nothing twice.
        """

    async def pods(self, cluster: ClusterRef, node: NodeRef) -> PodsSeen:
        """The node's pods, fresh and complete."""

    async def signal(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        """Send SIGTERM with the grace given, whatever budgets say. A pod that is gone counts as told."""

    async def evict(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        """Ask politely; a disruption budget may refuse."""

    async def conclude(self, cluster: ClusterRef, node: NodeRef, reason: str, message: str) -> None:
        """Send the one closing event of a drain, as it leaves its cluster. Done again it sends nothing."""

    async def take_back(self, cluster: ClusterRef, node: NodeRef, reason: str) -> None:
        """End what `notify` announced under that reason: uncordon, take the deadline annotation away."""

    async def put_volume(self, cluster: ClusterRef, manifest: Mapping[str, Any]) -> None:
        """Apply a static PersistentVolume (see `core.volumes.render`); again with another size it grows."""

    async def drop_volume(self, cluster: ClusterRef, name: str) -> bool:
        """Delete a PersistentVolume; its data stays. True when nothing is left of the object."""

    async def remove(
        self, cluster: ClusterRef, node: NodeRef, *, stopped: bool = True, patient: bool = True
    ) -> bool:
        """Take the Node object and what hangs on it out of the cluster. True when nothing is left.

        stopped: its machine is confirmed to be off: what is left on it is forced. Where it may still run, the
                 node is believed to be empty; work that is seen all the same is told to go, and keeps it.
        patient: attachments, and pods that somebody else holds, are waited for (False is answered); where it
                 is over, the Node object goes without them
        """
