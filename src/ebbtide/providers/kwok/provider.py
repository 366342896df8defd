"""All of it behind `providers.base.Provider`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import structlog

from ebbtide.clock import Clock
from ebbtide.kube.certificates import write_private
from ebbtide.kube.errors import KubeError
from ebbtide.kube.places import Places
from ebbtide.providers.base import (
    ControlPlane,
    Deletion,
    Instance,
    InstanceOrder,
    InstanceState,
    OutOfCapacity,
)
from ebbtide.providers.kwok.kubelet import NameTaken
from ebbtide.providers.kwok.machines import Habits, Machine, Machines
from ebbtide.providers.kwok.planes import Planes

log = structlog.get_logger()

_POOLS = "pools.json"
_REGISTER_EVERY_S = 0.5


def _nobody(_cluster_id: str) -> None:
    return


class KwokProvider:
    """Machines on paper, control planes in earnest. See `providers.base.Provider`.

    Belongs to one event loop: `begin` before any other call, `close` at the end.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        most_clusters: int = 4,
        on_ready: Callable[[str], object] = _nobody,
        where: Places | None = None,
        durable: bool = True,
        arguments: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """folder: where machines and control planes are kept. on_ready and the rest: see `Planes`."""
        self._folder = folder
        self._clock = clock
        self._habits: dict[str, Habits] = {}
        self._machines = Machines(folder / "machines")
        self._booting: set[asyncio.Task[None]] = set()
        self._planes = Planes(
            folder / "clusters",
            clock,
            most=most_clusters,
            machines_of=lambda cluster_id: self._machines.of_cluster(cluster_id, clock.now()),
            on_ready=on_ready,
            where=where,
            durable=durable,
            arguments=arguments,
        )

    async def begin(self) -> None:
        """Go on where an earlier process ended, however it did."""
        await asyncio.to_thread(self._load)
        self._planes.begin()
        for machine in self._machines.all(self._clock.now()):
            if machine.on and not machine.registered:
                self._boot(machine)

    async def close(self) -> None:
        """Stop every process. Machines and clusters stay as they are, for the next `begin`."""
        booting = list(self._booting)
        for task in booting:
            task.cancel()
        await asyncio.gather(*booting, return_exceptions=True)
        await self._planes.close()

    def set_habits(self, habits: Mapping[str, Habits]) -> None:
        """How machines of these pools are from now on; written down."""
        self._habits.update(habits)
        plain = {pool: asdict(one) for pool, one in self._habits.items()}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._folder / _POOLS, json.dumps(plain).encode())

    def _load(self) -> None:
        pools = self._folder / _POOLS
        if pools.exists():
            plain = json.loads(pools.read_text(encoding="utf-8"))
            self._habits = {pool: Habits(**one) for pool, one in plain.items()} | self._habits
        self._machines.load()

    # -- machines

    async def create(self, order: InstanceOrder) -> Instance:
        now = self._clock.now()
        machine = self._machines.get(order.node_uid, now)
        if machine is None:
            other = self._machines.on_host(order.pool, order.host_name, now)
            if other is not None:
                raise OutOfCapacity(f"host {order.host_name} still has the machine of node {other.node_name}")
            habits = self._habits.get(order.pool, Habits())
            machine = self._machines.put(Machine.ordered(order, habits, now))
            self._boot(machine)
        return machine.instance(now)

    async def status(self, node_uid: str) -> Instance | None:
        now = self._clock.now()
        machine = self._machines.get(node_uid, now)
        return machine.instance(now) if machine else None

    async def stop(self, node_uid: str) -> bool:
        machine = self._machines.get(node_uid, self._clock.now())
        if machine is not None:
            await self._power_off(machine)
        return True

    async def reboot(self, node_uid: str, ref: str) -> Instance | None:
        machine = self._machines.get(node_uid, self._clock.now())
        if machine is None:
            return None
        if ref not in machine.restarts and machine.wiped_at is None:
            machine = await self._power_off(machine)
            machine = self._machines.put(machine.restarted(ref, self._clock.now()))
            self._boot(machine)
        return machine.instance(self._clock.now())

    async def power_cycle(self, node_uid: str, ref: str) -> Instance | None:
        return await self.reboot(node_uid, ref)

    async def restart_kubelet(self, node_uid: str) -> None:
        """A kubelet that is started again while its machine runs registers, also if its Node was removed."""
        machine = self._machines.get(node_uid, self._clock.now())
        if machine is not None and machine.on:
            self._boot(self._machines.put(replace(machine, registered=False)))

    async def delete(self, node_uid: str) -> Deletion:
        now = self._clock.now()
        machine = self._machines.get(node_uid, now)
        if machine is None:
            return Deletion(gone=True, wiped=True, wiped_by="kwok")
        if machine.wiped_at is None:
            machine = await self._power_off(machine)
            wiped_at = now + timedelta(seconds=machine.habits.turn_over_s)
            self._machines.put(replace(machine, wiped_at=wiped_at))
        return Deletion(gone=False, wiped=False, why="the host is being wiped")

    async def _power_off(self, machine: Machine) -> Machine:
        """The file first: whatever begins from now on, this machine is none of it."""
        if machine.on:
            machine = self._machines.put(machine.off())
        plane = self._planes.get(machine.cluster_id)
        if plane is not None:
            await plane.silence(machine)
        return machine

    def _boot(self, machine: Machine) -> None:
        task = asyncio.create_task(self._come_up(machine), name=f"boot of {machine.node_name}")
        self._booting.add(task)
        task.add_done_callback(self._booting.discard)

    async def _come_up(self, machine: Machine) -> None:
        """Wait until the machine is up; then its kubelet tries to register until it has, or is off."""

        def is_on() -> bool:
            now = self._machines.get(machine.node_uid, self._clock.now())
            return now is not None and now.on and now.boots == machine.boots and not now.registered

        await asyncio.sleep(max(0.0, (machine.up_at - self._clock.now()).total_seconds()))
        while is_on():
            plane = self._planes.get(machine.cluster_id)
            try:
                if plane is not None and machine.state(self._clock.now()) is InstanceState.UP:
                    await plane.register(machine, is_on, lambda uid: self._machines.put(machine.known(uid)))
                    return
            except NameTaken:
                log.warning("a node of that name is there already", node=machine.node_name)
            except KubeError as error:
                log.info("a kubelet cannot register yet", node=machine.node_name, why=error.message)
            await asyncio.sleep(_REGISTER_EVERY_S)

    # -- control planes

    async def create_control_plane(self, cluster_id: str, name: str) -> ControlPlane:
        return self._planes.create(cluster_id, name)

    async def control_plane(self, cluster_id: str) -> ControlPlane | None:
        return self._planes.told(cluster_id)

    async def delete_control_plane(self, cluster_id: str) -> bool:
        return self._planes.delete(cluster_id)

    async def list_control_planes(self) -> list[str]:
        return self._planes.listed()

    # Last: within the class its name hides the built-in one.
    async def list(self, pool: str) -> list[Instance]:
        now = self._clock.now()
        return [machine.instance(now) for machine in self._machines.all(now) if machine.pool == pool]
