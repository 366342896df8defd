"""Machines as they are written down: one JSON file each, whole or not at all, proof against `kill -9`.

A machine's state follows from its file and the time; nothing has to run for it to change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from ebbtide.core import marks
from ebbtide.kube.certificates import write_private
from ebbtide.providers.base import Instance, InstanceOrder, InstanceState

log = structlog.get_logger()

_INSTANTS = ("up_at", "wiped_at")


@dataclass(frozen=True, slots=True)
class Habits:
    """How a pool's machines are: times in seconds, and what they have."""

    boot_s: float = 5.0
    turn_over_s: float = 5.0
    cpu_cores: int = 96
    memory_gib: int = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, for one node.

    up_at:      when its last start is over
    on:         whether it has power
    registered: its kubelet has put the Node into its cluster since the last start
    object_uid: that Node's uid in the cluster
    boots:      how often it was started
    restarts:   references of restarts that were asked for
    wiped_at:   when its wiping is over, once it was given back
    """

    node_uid: str
    node_name: str
    cluster_id: str
    pool: str
    host_name: str
    gpus: int
    labels: dict[str, str]
    taints: tuple[str, ...]
    up_at: datetime
    habits: Habits = field(default_factory=Habits)
    on: bool = True
    registered: bool = False
    object_uid: str = ""
    boots: int = 1
    restarts: tuple[str, ...] = ()
    wiped_at: datetime | None = None

    @classmethod
    def ordered(cls, order: InstanceOrder, habits: Habits, now: datetime) -> Machine:
        """A machine that starts now; wiping it first takes its pool's turn-over time."""
        start_s = habits.boot_s + (habits.turn_over_s if order.wipe_first else 0.0)
        return cls(
            node_uid=order.node_uid,
            node_name=order.node_name,
            cluster_id=order.cluster_id,
            pool=order.pool,
            host_name=order.host_name,
            gpus=order.gpus,
            labels={**order.labels, marks.LABEL_NODE_UID: order.node_uid},
            taints=order.taints,
            up_at=now + timedelta(seconds=start_s),
            habits=habits,
        )

    @property
    def instance_id(self) -> str:
        return f"kwok-{self.host_name}-{self.node_uid[:8]}"

    def state(self, now: datetime) -> InstanceState:
        if not self.on:
            return InstanceState.STOPPED
        return InstanceState.UP if now >= self.up_at else InstanceState.STARTING

    def instance(self, now: datetime) -> Instance:
        address = f"{self.host_name}.kwok.invalid"
        return Instance(
            self.instance_id, self.node_uid, self.host_name, self.state(now), self._why(now), address
        )

    def _why(self, now: datetime) -> str:
        if self.wiped_at is not None:
            return "the host is being wiped"
        return {
            InstanceState.STARTING: "the machine is starting",
            InstanceState.STOPPED: "the machine is off",
        }.get(self.state(now), "")

    def off(self) -> Machine:
        return replace(self, on=False, registered=False)

    def known(self, object_uid: str) -> Machine:
        """Registered, as the Node of that uid."""
        return replace(self, registered=True, object_uid=object_uid)

    def restarted(self, ref: str, now: datetime) -> Machine:
        """Switched on again, from now."""
        return replace(
            self,
            on=True,
            registered=False,
            boots=self.boots + 1,
            up_at=now + timedelta(seconds=self.habits.boot_s),
            restarts=(*self.restarts, ref),
        )


class Machines:
    """All machines, read once and written at each change."""

    def __init__(self, folder: Path) -> None:
        """folder: made when the first machine is written."""
        self._folder = folder
        self._all: dict[str, Machine] = {}

    def load(self) -> None:
        """Read what an earlier process wrote. A file that cannot be read is no machine: its node is lost."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                machine = _read(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, KeyError) as error:
                log.error("a machine's file cannot be read", path=str(path), why=repr(error))
                continue
            self._all[machine.node_uid] = machine

    def put(self, machine: Machine) -> Machine:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._path(machine.node_uid), json.dumps(_plain(machine)).encode())
        self._all[machine.node_uid] = machine
        return machine

    def drop(self, node_uid: str) -> None:
        self._path(node_uid).unlink(missing_ok=True)
        self._all.pop(node_uid, None)

    def get(self, node_uid: str, now: datetime) -> Machine | None:
        """The machine, unless it is gone: one whose wiping is over is forgotten here."""
        machine = self._all.get(node_uid)
        if machine is not None and machine.wiped_at is not None and now >= machine.wiped_at:
            self.drop(node_uid)
            return None
        return machine

    def all(self, now: datetime) -> Iterator[Machine]:
        for node_uid in list(self._all):
            machine = self.get(node_uid, now)
            if machine is not None:
                yield machine

    def on_host(self, pool: str, host_name: str, now: datetime) -> Machine | None:
        """Whose machine the host is at present."""
        return next((one for one in self.all(now) if (one.pool, one.host_name) == (pool, host_name)), None)

    def of_cluster(self, cluster_id: str, now: datetime) -> list[Machine]:
        return [one for one in self.all(now) if one.cluster_id == cluster_id]

    def _path(self, node_uid: str) -> Path:
        return self._folder / f"{node_uid}.json"


def _plain(machine: Machine) -> dict[str, Any]:
    plain = asdict(machine)
    for name in _INSTANTS:
        plain[name] = plain[name].isoformat() if plain[name] else None
    return plain


def _read(plain: dict[str, Any]) -> Machine:
    for name in _INSTANTS:
        plain[name] = datetime.fromisoformat(plain[name]) if plain[name] else None
    for name in ("taints", "restarts"):
        plain[name] = tuple(plain[name])
    return Machine(**{**plain, "habits": Habits(**plain["habits"])})
