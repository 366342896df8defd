"""The seam to where machines and control planes come from.

Every call names the node's uid (or the cluster's id). That makes each repeatable: a lost reply finds the same
instance again, and a call about an instance that now belongs to another node touches nothing and answers "not
found". Callers retry; a provider never does on its own beyond one request's time limit, and it never waits
for slow work: it answers what is so now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ebbtide.errors import EbbtideError


class ProviderError(EbbtideError):
    """Base of what a provider may answer besides success."""


class Transient(ProviderError):
    """Try again later.

    A time-out, a lost reply, an overloaded service. Whether the call had an effect is unknown.
    """


class OutOfCapacity(ProviderError):
    """The machine cannot be had there now; another host may do."""


class Permanent(ProviderError):
    """This will not work however often it is tried (a bad image, a host that does not exist)."""


class InstanceState(StrEnum):
    STARTING = "starting"
    UP = "up"  # powered on and started; whether it joined its cluster is the driver's to see
    STOPPED = "stopped"  # confirmed powered off or fenced: it can no longer write anything
    FAILED = "failed"  # will not come up


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """What is asked for: this host, for this node, to join this cluster.

    labels, taints: what the machine must register with; taints as `key=value:Effect`
    join:           the cluster's join data, see `drivers.base.Driver.join_data`
    wipe:           the pool's policy for afterwards: `always`, `between_projects` or `never`
    wipe_first:     the host still carries another project's data: wipe it before anything of this one starts
    """

    node_uid: str
    node_name: str
    compute_class: str
    cluster_id: str
    project_id: str
    pool: str
    host_id: str
    host_name: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    join: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    wipe: str = "always"
    wipe_first: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """What the provider says of one instance.

    `instance_id` is its own handle, `address` where the machine answers. `wiped_by`: what wiped the host
    before this instance started, where its order said `wipe_first`.
    """

    instance_id: str
    node_uid: str
    host_name: str
    state: InstanceState
    why: str = ""
    address: str = ""
    wiped_by: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """gone:  the provider has nothing left for this node ("not found").
    wiped: its disks carry nothing of the tenant, or its pool's wipe policy leaves that to the next boot
    wiped_by: what wiped them, in its own words; empty when nothing did
    untouched: no machine of this node ever was on its host
    """

    gone: bool
    wiped: bool
    why: str = ""
    wiped_by: str = ""
    untouched: bool = False


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A cluster's control plane.

    kubeconfig:        what the tenant gets, plain YAML, None until ready
    driver_kubeconfig: what Ebbtide itself uses in the cluster, with fewer rights; None: the tenant's
    """

    cluster_id: str
    ready: bool
    kubeconfig: str | None = None
    driver_kubeconfig: str | None = None
    why: str = ""


class Provider(Protocol):
    """Makes and unmakes machines on hosts. All methods raise Transient, OutOfCapacity or Permanent only."""

    async def create(self, order: InstanceOrder) -> Instance:
        """Start an instance for the node, or find the one started before for the same uid."""

    async def status(self, node_uid: str) -> Instance | None:
        """The node's instance as it is now; None is "not found"."""

    async def stop(self, node_uid: str) -> bool:
        """Power off or fence.

        True only when it is confirmed that the machine no longer runs (or there is none).
        """

    async def reboot(self, node_uid: str, ref: str) -> Instance | None:
        """Restart the machine in place; None is "not found". STARTING until it is up again.

        ref names this one restart: called again with the same it begins no second one.
        """

    async def power_cycle(self, node_uid: str, ref: str) -> Instance | None:
        """Like `reboot`, but the host's power is cut and comes back; host and identity stay."""

    async def delete(self, node_uid: str) -> Deletion:
        """Give the machine back and wipe it.

        Called again until it says gone. Deleting what is gone is `gone=True`.
        """

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        """Start the cluster's control plane, or find the one started before."""

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        """The cluster's control plane as it is now; None is "not found"."""

    async def delete_control_plane(self, cluster_id: str) -> bool:
        """Remove it; called again until it answers True (nothing is left)."""

    async def list_control_planes(self) -> list[str]:
        """Cluster ids of every control plane that exists, to be compared with the ledger."""

    async def list(self, pool: str) -> list[Instance]:
        """Every instance that the provider holds for us in the pool, to be compared with the ledger."""
