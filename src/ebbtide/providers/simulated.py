"""The playground's machines and control planes, as a provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.playground import clusters
from ebbtide.playground.machines import Order
from ebbtide.playground.state import Cluster, Machine
from ebbtide.playground.trouble import NeverPossible, NoMachine, WorldRefusal
from ebbtide.playground.world import World
from ebbtide.providers.base import (
    ControlPlane,
    Deletion,
    Instance,
    InstanceOrder,
    InstanceState,
    OutOfCapacity,
    Permanent,
    Transient,
)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the world's refusals into what the seams promise."""
    try:
        yield
    except NoMachine as refusal:
        raise OutOfCapacity(refusal.message) from refusal
    except NeverPossible as refusal:
        raise Permanent(refusal.message) from refusal
    except WorldRefusal as refusal:
        raise Transient(refusal.message) from refusal


class SimulatedProvider:
    """A `Provider` over a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def create(self, order: InstanceOrder) -> Instance:
        with translated():
            return _instance(
                self._world.create_instance(
                    Order(
                        order.node_uid,
                        order.node_name,
                        order.cluster_id,
                        order.compute_class,
                        order.pool,
                        order.host_name,
                        order.gpus,
                    )
                )
            )

    async def status(self, node_uid: str) -> Instance | None:
        with translated():
            machine = self._world.instance(node_uid)
        return _instance(machine) if machine else None

    async def stop(self, node_uid: str) -> bool:
        with translated():
            return self._world.stop_instance(node_uid)

    async def reboot(self, node_uid: str, ref: str) -> Instance | None:
        return self._restart(node_uid, ref, hard=False)

    async def power_cycle(self, node_uid: str, ref: str) -> Instance | None:
        return self._restart(node_uid, ref, hard=True)

    def _restart(self, node_uid: str, ref: str, *, hard: bool) -> Instance | None:
        with translated():
            machine = self._world.restart_instance(node_uid, ref, hard=hard)
        return _instance(machine) if machine else None

    async def delete(self, node_uid: str) -> Deletion:
        with translated():
            progress = self._world.delete_instance(node_uid)
        wiped_by = "the simulated fleet" if progress.wiped else ""
        return Deletion(progress.gone, progress.wiped, progress.why, wiped_by)

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        with translated():
            return self._control_plane(self._world.create_control_plane(cluster_id, name))

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        with translated():
            cluster = self._world.control_plane(cluster_id)
        return self._control_plane(cluster) if cluster else None

    async def delete_control_plane(self, cluster_id: str) -> bool:
        with translated():
            self._world.delete_control_plane(cluster_id)
        return True

    async def list_control_planes(self) -> list[str]:
        with translated():
            return self._world.control_planes()

    async def list(self, pool: str) -> list[Instance]:
        with translated():
            return [_instance(machine) for machine in self._world.instances(pool)]

    def _control_plane(self, cluster: Cluster) -> ControlPlane:
        if not self._world.control_plane_ready(cluster):
            return ControlPlane(cluster.cluster_id, ready=False, why="the control plane is starting")
        return ControlPlane(cluster.cluster_id, ready=True, kubeconfig=clusters.kubeconfig(cluster))


def _instance(machine: Machine) -> Instance:
    return Instance(
        instance_id=machine.instance_id,
        node_uid=machine.node_uid,
        host_name=machine.host_name,
        state=InstanceState(machine.power.value),
        why=machine.why,
        address=f"{machine.host_name}.playground.invalid",
    )
