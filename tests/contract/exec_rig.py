"""The provider `exec` over programs, and a memory that lives as long as the test."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ebbtide.clock import ManualClock
from ebbtide.ids import SeededIds
from ebbtide.providers.base import Instance, InstanceOrder, Transient
from ebbtide.providers.exec import VERBS, ExecProvider
from ebbtide.providers.memory import Noted, Remembered
from ebbtide.providers.programs import Program

MACHINES = [sys.executable, "-IS", str(Path(__file__).with_name("machine_program.py"))]


class MemoryHere:
    """A `Memory` in this process."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.rows: dict[str, Remembered] = {}
        self.held: set[str] = set()
        self.notes: list[tuple[str, Noted]] = []

    async def remember(self, order: InstanceOrder, hold_s: int) -> Remembered:
        known = self.rows.get(order.node_uid)
        self.rows[order.node_uid] = replace(known, order=order) if known else self._new(order)
        return self._hold(order.node_uid, hold_s)

    async def recall(self, node_uid: str, hold_s: int) -> Remembered | None:
        return self._hold(node_uid, hold_s) if node_uid in self.rows else None

    async def note(self, held: Remembered, noted: Noted) -> None:
        self.held.discard(held.order.node_uid)
        self.notes.append((held.order.node_uid, noted))
        kept = ("handle", "state", "instance_id", "address", "wiped_first_by", "wiped_by")
        changes = {name: value for name in kept if (value := getattr(noted, name))}
        self.rows[held.order.node_uid] = replace(held, gone=noted.gone, **changes)

    async def let_go(self, held: Remembered) -> None:
        self.held.discard(held.order.node_uid)

    async def bury(self, node_uid: str) -> None:
        order = InstanceOrder(node_uid, "", "", "", "", "", "", "", 0)
        self.rows[node_uid] = replace(self._new(order), gone=True)

    async def listed(self, pool: str) -> list[Remembered]:
        return [one for one in self.rows.values() if one.order.pool == pool and not one.gone]

    async def found(self, pool: str, instances: Sequence[Instance]) -> None:
        for one in instances:
            if one.node_uid not in self.rows:
                order = InstanceOrder(one.node_uid, "", "", "", "", pool, "", one.host_name, 0)
                self.rows[one.node_uid] = self._new(order)

    def _hold(self, node_uid: str, hold_s: int) -> Remembered:
        if node_uid in self.held:
            raise Transient("another program runs for this node")
        self.held.add(node_uid)
        return replace(self.rows[node_uid], held_until=self._clock.now() + timedelta(seconds=hold_s))

    def _new(self, order: InstanceOrder) -> Remembered:
        return Remembered(order, None, None, "", "", "", False, "", self._clock.now())


class ExecProviderRig:
    """commands: a command line for each verb; None: machines in a file, one program for all."""

    def __init__(self, commands: Mapping[str, Sequence[str]] | None = None) -> None:
        self.clock = ManualClock()
        self._ids = SeededIds(1)
        self._folder = tempfile.TemporaryDirectory()  # it goes with the rig
        self.folder = Path(self._folder.name)
        self.memory = MemoryHere(self.clock)
        every = [*MACHINES, self._folder.name]
        commands = commands or dict.fromkeys(VERBS, every)
        self.programs = {verb: Program(f"the {verb} program", argv, 20) for verb, argv in commands.items()}
        self.provider = ExecProvider(self.programs, self.memory, at_once=8)
        self._tell_time()

    def new_id(self) -> str:
        return self._ids.uuid4()

    def order(self, host_name: str, *, node_uid: str | None = None, pool: str = "h100") -> InstanceOrder:
        return InstanceOrder(
            node_uid=node_uid or self._ids.uuid4(),
            node_name=f"gpu-dp-{self._ids.name_part()}-{self._ids.name_part()}",
            compute_class="standard",
            cluster_id="00000000-0000-4000-8000-000000000001",
            project_id="project",
            pool=pool,
            host_id=self._ids.uuid4(),
            host_name=host_name,
            gpus=8,
            labels={"ebbtide/node-uid": "u"},
            taints=("ebbtide/initializing=true:NoSchedule",),
            join={"server": "https://192.0.2.1:6443", "ca": "PEM", "token": "abcdef.0123456789abcdef"},
        )

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._tell_time()

    def _tell_time(self) -> None:
        (self.folder / "now").write_text(str(self.clock.now().timestamp()))
