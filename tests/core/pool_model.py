"""A pool in memory that does what services and workers do, by core's own decisions, to try properties on.

One tenant per cluster; every host has 8 GPUs. `snapshot()` is what the invariants judge.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ebbtide.core.capacity import Candidate, Holding, PoolView, Victim, supply
from ebbtide.core.hosts import HostState
from ebbtide.core.invariants import smallest_set
from ebbtide.core.maintenance import Clearing, breaks_promises, clearing
from ebbtide.core.metering import billable_end, epoch_s
from ebbtide.core.nodes import (
    HELD,
    JOINING,
    LEAVING,
    OCCUPYING,
    STAYING,
    ComputeClass,
    EndReason,
    Phase,
    check_end,
    check_move,
)
from ebbtide.core.placement import choose_blocks
from ebbtide.core.reclaim import choose, choose_released
from ebbtide.core.shares import fill_order
from ebbtide.core.snapshot import ClusterFact, HostFact, IntervalFact, NodeFact, PoolFact, Snapshot
from tests.core.builders import NOW

GPUS = 8
WINDOW_S = 300
BOOT_S = 60
WIPE_S = 30
COOLING_S = 600
MIN_LIFE_S = 600
PREEMPTIBLE = ComputeClass.PREEMPTIBLE


@dataclass
class Host:
    id: str
    block: str
    state: HostState = HostState.AVAILABLE
    cooling_until: datetime = NOW


def _is_promised(node: NodeFact) -> bool:
    return node.phase is Phase.PENDING and node.compute_class is not ComputeClass.MAINTENANCE


@dataclass
class Model:
    """Hosts `h0`.. in two blocks. obeys_s: how long pods take to go; past the window they are ended."""

    size: int
    targets: dict[str, int]
    headroom: int = 0
    max_joining: int = 99
    obeys_s: int = 120
    busy: frozenset[str] = frozenset()
    now: datetime = NOW
    hosts: dict[str, Host] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    intervals: dict[str, IntervalFact] = field(default_factory=dict)
    reclaimed: list[str] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        for number in range(self.size):
            name = f"h{number}"
            self.hosts[name] = Host(name, "ab"[number % 2])

    # what is there

    def of(
        self, compute_class: ComputeClass, phases: frozenset[Phase], cluster: str | None = None
    ) -> list[NodeFact]:
        return [
            node
            for node in self.nodes.values()
            if node.compute_class is compute_class
            and node.phase in phases
            and cluster in (None, node.cluster_id)
        ]

    def occupied(self) -> dict[str, NodeFact]:
        return {str(node.host_id): node for node in self.nodes.values() if node.phase in OCCUPYING}

    def free(self) -> list[Host]:
        held = self.occupied()
        return [
            host for host in self.hosts.values() if host.state is HostState.AVAILABLE and host.id not in held
        ]

    def view(self) -> PoolView:
        free = self.free()
        leaving = [
            name
            for name, node in self.occupied().items()
            if node.phase in LEAVING and self.hosts[name].state is HostState.AVAILABLE
        ]
        return PoolView(
            "h100",
            GPUS,
            dict(Counter(host.block for host in free)),
            cooling=sum(host.cooling_until > self.now for host in free),
            leaving=len(leaving),
            promised=len([node for node in self.nodes.values() if _is_promised(node)]),
            headroom=self.headroom,
        )

    def candidates(self, cluster: str | None = None) -> list[Candidate]:
        nodes = self.of(PREEMPTIBLE, JOINING | {Phase.RUNNING}, cluster)
        return [
            Candidate(n.uid, str(n.cluster_id), str(n.cluster_id), n.phase, n.uid in self.busy, n.running_at)
            for n in nodes
            if n.host_id and self.hosts[n.host_id].state is HostState.AVAILABLE
        ]

    def holdings(self) -> list[Holding]:
        return [
            Holding(
                name,
                name,
                GPUS * len(self.of(PREEMPTIBLE, HELD, name)),
                GPUS * target,
                joining=len(self.of(PREEMPTIBLE, JOINING, name)),
                leaving_gpus=GPUS * len(self.of(PREEMPTIBLE, frozenset({Phase.DRAINING}), name)),
            )
            for name, target in self.targets.items()
        ]

    # what a request or a visit does

    def claim(self, hosts: int) -> bool:
        """A standard order: decided at once, whole or not at all."""
        view = self.view()
        plan = supply(view, hosts, len(self.candidates()))
        if plan.short:
            self.refused += 1
            return False
        assert list(smallest_set(view, hosts, plan.to_take)) == []
        self._take(choose(self.candidates(), self.holdings(), plan.to_take, self.now, MIN_LIFE_S, GPUS))
        for _ in range(hosts):
            self._add(ComputeClass.STANDARD, None, Phase.PENDING)
        self.serve()
        return True

    def end_claim(self) -> None:
        """The oldest standard node is given back, promised or there."""
        for node in self.of(ComputeClass.STANDARD, STAYING)[:1]:
            if node.phase is Phase.PENDING:
                self._move(node, Phase.REMOVED, end_reason=EndReason.CANCELLED, removed_at=self.now)
            else:
                self._remove(node, EndReason.SCALED_DOWN, self.now)

    def set_target(self, cluster: str, target: int) -> None:
        self.targets[cluster] = target
        staying = self.of(PREEMPTIBLE, STAYING, cluster)
        for victim in choose_released(self.candidates(cluster), len(staying) - target, self.now):
            self._drain(victim, EndReason.SCALED_DOWN)

    def refill(self) -> int:
        """Lend what may be lent; how many hosts that was."""
        order = Counter(fill_order(self.holdings(), self.view().lendable, GPUS, self.max_joining))
        for cluster, count in order.items():
            held = Counter(
                self.hosts[str(node.host_id)].block for node in self.of(PREEMPTIBLE, HELD, cluster)
            )
            cool = [host for host in self.free() if host.cooling_until <= self.now]
            chosen = choose_blocks(Counter(host.block for host in cool), count, held)
            for block, hosts in chosen.items():
                for host in [host for host in cool if host.block == block][:hosts]:
                    self._add(PREEMPTIBLE, cluster, Phase.SCHEDULING, host_id=host.id, placed_at=self.now)
        return order.total()

    def break_host(self, number: int) -> None:
        """A host is quarantined; its occupant, if it has one that runs or joins, is lost."""
        host = self.hosts[f"h{number % self.size}"]
        host.state = HostState.QUARANTINED
        node = self.occupied().get(host.id)
        if node is not None and node.phase not in LEAVING:
            self._remove(node, EndReason.LOST, self.now)
        missing = max(0, -self.view().unpromised)
        self._take(choose(self.candidates(), self.holdings(), missing, self.now, MIN_LIFE_S, GPUS))

    def repair(self) -> None:
        for host in self.hosts.values():
            if not self._maintenance(host.id):
                host.state = HostState.AVAILABLE
        self.serve()

    def _maintenance(self, host_id: str) -> list[NodeFact]:
        going_on = self.of(ComputeClass.MAINTENANCE, frozenset({Phase.PENDING, Phase.RUNNING}))
        return [node for node in going_on if node.pinned_host_id == host_id]

    def drain_host(self, number: int) -> bool:
        """A host is emptied to be worked on, if everything promised can be had elsewhere."""
        host = self.hosts[f"h{number % self.size}"]
        if self._maintenance(host.id):
            return True
        kept = deepcopy(self)
        before = self._supply()
        node = self.occupied().get(host.id)
        how = clearing(node.compute_class, node.phase) if node else Clearing.EMPTY
        if node and how is Clearing.REPLACE:
            if not self.claim(1):
                return False
            self._drain(Victim(node.uid, "replaced"), EndReason.REMEDIATED)
        if node and how is Clearing.TAKE:
            self._take((Victim(node.uid, "it is there"),))
        host.state = HostState.CORDONED
        self._add(ComputeClass.MAINTENANCE, None, Phase.PENDING, pinned_host_id=host.id)
        if breaks_promises(before, self._supply()):
            self.__dict__.update(kept.__dict__)
            return False
        missing = max(0, -self.view().unpromised)
        self._take(choose(self.candidates(), self.holdings(), missing, self.now, MIN_LIFE_S, GPUS))
        self.serve()
        return True

    def _supply(self) -> tuple[int, int]:
        return self.view().unpromised, len(self.candidates())

    def return_host(self, number: int) -> None:
        """A host comes back from maintenance, or its draining is called off."""
        host = self.hosts[f"h{number % self.size}"]
        for node in self._maintenance(host.id):
            if node.phase is Phase.PENDING:
                self._move(node, Phase.REMOVED, end_reason=EndReason.CANCELLED, removed_at=self.now)
            else:
                self._move(node, Phase.REMOVING, end_reason=EndReason.SCALED_DOWN, removing_at=self.now)
            host.state = HostState.AVAILABLE
        self.serve()

    def serve(self) -> None:
        """Whichever host is free serves the oldest promise."""
        held = self.occupied()
        for node in self.of(ComputeClass.MAINTENANCE, frozenset({Phase.PENDING})):
            if node.pinned_host_id not in held:
                self._move(node, Phase.RUNNING, host_id=node.pinned_host_id, running_at=self.now)
        for node in [node for node in self.nodes.values() if _is_promised(node)]:
            free = self.free()
            if free:
                self._move(node, Phase.SCHEDULING, host_id=free[0].id, placed_at=self.now)

    def tick(self, seconds: int) -> None:
        """Time goes on in small steps, and every loop looks once per step."""
        for _ in range(seconds // 5):
            self.now += timedelta(seconds=5)
            for node in list(self.nodes.values()):
                self._advance(node)
            self.serve()

    def settle(self) -> None:
        """Let everything that is on its way arrive, refilling as the loops would."""
        for _ in range(300):
            lent = self.refill()
            moving = any(node.phase in LEAVING | JOINING for node in self.nodes.values())
            if not lent and not moving and not self.view().cooling:
                return
            self.tick(10)
        raise AssertionError("the pool does not come to rest")

    def snapshot(self) -> Snapshot:
        view = self.view()
        held = self.occupied()
        return Snapshot(
            at=self.now,
            hosts=tuple(
                HostFact(host.id, "h100", host.state, held[host.id].uid if host.id in held else None)
                for host in self.hosts.values()
            ),
            nodes=tuple(self.nodes.values()),
            clusters=tuple(ClusterFact(name, target) for name, target in self.targets.items()),
            pools=(PoolFact("h100", view.free_total, view.leaving, view.promised, self.headroom, self.size),),
            intervals=tuple(self.intervals.values()),
        )

    # how nodes change

    def _add(self, compute_class: ComputeClass, cluster: str | None, phase: Phase, **facts: object) -> None:
        no = len(self.nodes) + 1
        node = NodeFact(
            uid=f"n{no:04}", no=no, pool="h100", compute_class=compute_class, phase=phase, cluster_id=cluster
        )
        self.nodes[node.uid] = replace(node, **facts)  # type: ignore[arg-type]  # fields by name

    def _move(self, node: NodeFact, phase: Phase, **facts: object) -> None:
        check_move(node.phase, phase)
        self.nodes[node.uid] = replace(node, phase=phase, **facts)  # type: ignore[arg-type]  # fields by name

    def _take(self, victims: tuple[Victim, ...]) -> None:
        for victim in victims:
            self.reclaimed.append(victim.uid)
            self._drain(victim, EndReason.PREEMPTED)

    def _drain(self, victim: Victim, reason: EndReason) -> None:
        node = self.nodes[victim.uid]
        if node.phase is not Phase.RUNNING:
            self._remove(node, reason, self.now)
            return
        deadline = self.now + timedelta(seconds=WINDOW_S)
        check_end(node.compute_class, reason)
        self._move(node, Phase.DRAINING, end_reason=reason, notified_at=self.now, deadline=deadline)

    def _remove(self, node: NodeFact, reason: EndReason, at: datetime) -> None:
        check_end(node.compute_class, reason)
        self._move(node, Phase.REMOVING, end_reason=reason, removing_at=at)
        if node.running_at is not None:
            end = billable_end(node.running_at, at, node.deadline)
            self.intervals[node.uid] = IntervalFact(node.no, epoch_s(node.running_at), epoch_s(end))

    def _advance(self, node: NodeFact) -> None:
        if node.phase is Phase.SCHEDULING:
            self._move(node, Phase.BOOTING)
        elif node.phase is Phase.BOOTING and node.placed_at and self._since(node.placed_at) >= BOOT_S - 10:
            self._move(node, Phase.BOOTSTRAPPING)
        elif node.phase is Phase.BOOTSTRAPPING and node.placed_at and self._since(node.placed_at) >= BOOT_S:
            self._move(node, Phase.RUNNING, running_at=self.now)
            self.intervals[node.uid] = IntervalFact(node.no, epoch_s(self.now))
        elif node.phase is Phase.DRAINING and node.notified_at:
            if node.first_signal_at is None:
                self._move_in_place(node, first_signal_at=self.now)
            elif self._since(node.notified_at) >= min(self.obeys_s, WINDOW_S):
                self._remove(node, node.end_reason or EndReason.FAILED, self.now)
        elif node.phase is Phase.REMOVING and node.removing_at and self._since(node.removing_at) >= WIPE_S:
            self._move(node, Phase.REMOVED, provider_gone_at=self.now, removed_at=self.now)
            if node.compute_class is ComputeClass.STANDARD:
                self.hosts[str(node.host_id)].cooling_until = self.now + timedelta(seconds=COOLING_S)

    def _move_in_place(self, node: NodeFact, **facts: object) -> None:
        self.nodes[node.uid] = replace(node, **facts)  # type: ignore[arg-type]  # fields by name

    def _since(self, instant: datetime) -> float:
        return (self.now - instant).total_seconds()
