"""How the scenarios speak: a fleet, tenants, their clusters, what passes, and what is seen then.

Everything is on a manual clock over a real PostgreSQL. After every step and every request the invariants
are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from ebbtide.core.drain import PodKind
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.playground.behaviours import Obeys, PodBehaviour, Volume
from ebbtide.playground.facts import Fact, What
from ebbtide.playground.flaky import Flaky
from ebbtide.providers.base import Provider
from ebbtide.services import Services
from ebbtide.services.details import (
    Caller,
    ClaimDetails,
    ClusterChange,
    ClusterDetails,
    ClusterOrder,
    HostDetails,
    NodeDetails,
    PoolDetails,
    Replay,
    Role,
    UsageLine,
)
from ebbtide.services.fleet_file import FleetFile, parse
from ebbtide.services.hosts import HostReport
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation
from ebbtide.workers.outcome import LoopWorker
from ebbtide.workers.runner import Findings
from tests.scenarios.doubling import How, twice
from tests.scenarios.killing import Killed, Killer
from tests.scenarios.watch import Watch

T = TypeVar("T")

REGION, POOL, GPU_TYPE = "eu-1", "eu-h100", "H100_SXM"
GPUS = 8
BOOT_S, WIPE_S = 30, 20
MINUTE = 60
PREEMPTIBLE, STANDARD = ComputeClass.PREEMPTIBLE, ComputeClass.STANDARD
JOINED_BY_S = 60  # a control plane (5 s), a boot (30 s), joining (3 s), and the looks between them


def fleet(hosts: int, *, headroom: int = 0, blocks: int = 1) -> FleetFile:
    """One region with one pool of H100 hosts, at 2 dollars per GPU-hour, spread over fabric blocks."""
    sizes = Counter(number % blocks for number in range(hosts))
    return parse(f"""
regions:
  {REGION}: {{}}
pools:
  {POOL}:
    region: {REGION}
    gpu_type: {GPU_TYPE}
    price_per_gpu_hour: 2.00
    headroom_hosts: {headroom}
    boot_s: {BOOT_S}
    turn_over_s: {WIPE_S}
    blocks: {{{", ".join(f"b{block}: {size}" for block, size in sizes.items())}}}
""")


class Story:
    """A system, its world, and the watch over both.

    side_by_side: visits and requests of one instant run concurrently, as in a server, and not one by one
    provider:     wraps the simulated provider, for one that behaves otherwise
    """

    def __init__(
        self,
        database_url: str,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        side_by_side: bool = False,
        provider: Callable[[Provider], Provider] = lambda plain: plain,
    ) -> None:
        self.flaky = Flaky()
        self.killer = Killer()
        self.revives = False  # whether a killed process is started again at once
        self.worker: Callable[[LoopWorker], LoopWorker] | None = None
        self.sim = Simulation(
            database_url,
            settings=settings,
            seed=seed,
            provider=lambda plain: self.killer.wrap(self.flaky.wrap(provider(plain))),
            driver=lambda plain: self.killer.wrap(self.flaky.wrap(plain)),
            inline=not side_by_side,
        )
        self.world = self.sim.world
        self.watch = Watch(database_url, self.world)
        self.sim.after_step.append(self.look)
        self._callers: dict[tuple[str, Role], Caller] = {}
        self._requests = 0
        self._died_at: datetime | None = None

    async def begin(self, file: FleetFile) -> Story:
        self._attend()
        await self.sim.begin(file)
        return self

    def doubles(self, how: How) -> None:
        """From now on every visit is made twice."""
        self.worker = twice(self.watch, how)
        self._attend()

    def _attend(self) -> None:
        """Stand beside the process that lives now."""
        system = self.sim.system
        self.killer.watch(system.db)
        if self.worker is not None:
            runner = system.runner
            runner._workers = {loop: self.worker(worker) for loop, worker in runner._workers.items()}

    async def end(self) -> None:
        """Close everything, having looked once more."""
        self.look()
        self.watch.close()
        await self.sim.system.close()

    def look(self) -> None:
        self.watch.look(self.now)

    # time and the process

    @property
    def now(self) -> datetime:
        return self.sim.now

    async def passes(self, seconds: float) -> None:
        """So much time passes, and everything in it happens."""
        await self.until(self.now + timedelta(seconds=seconds))

    async def until(self, instant: datetime) -> None:
        await self._survive(partial(self.sim.run_until, instant))

    async def asks(self, request: Callable[[Services], Awaitable[T]]) -> T:
        """A request; its client sends it again when the process dies under it."""
        answer = await self._survive(lambda: request(self.sim.system.services))
        self.look()
        return answer

    async def _survive(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except Killed:
                if not self.revives:
                    raise
                armed, self.killer.armed = self.killer.armed, False
                await self.dies()
                await self.starts()
                self.look()
                self.killer.armed = armed

    async def dies(self) -> None:
        """The process is killed; the world goes on without it."""
        await self.sim.kill()
        self._died_at = self.now

    def nobody_works(self, seconds: float) -> None:
        """Time passes while no process lives."""
        self.sim.clock.advance(seconds)

    async def starts(self) -> Findings:
        """A new process begins, over what the old one left."""
        findings = await self.sim.start()
        self._attend()
        if self._died_at is not None:
            self.watch.down.append((self._died_at, self.now))
            self._died_at = None
        return findings

    # people

    async def caller(self, who: str = "acme", role: Role = Role.MEMBER) -> Caller:
        if (who, role) not in self._callers:
            armed, self.killer.armed = self.killer.armed, False
            self._callers[who, role] = await self.sim.caller(who, role)
            self.killer.armed = armed
        return self._callers[who, role]

    async def operator(self) -> Caller:
        return await self.caller("ops", Role.OPERATOR)

    async def orders(
        self,
        who: str = "acme",
        name: str = "train",
        *,
        gpus: int = GPUS,
        target: int = 0,
        token: str | None = None,
    ) -> Cluster:
        """A tenant creates a cluster."""
        self._requests += 1
        order = ClusterOrder(name, REGION, GPU_TYPE, num_gpus=gpus, num_preemptible_gpus=target)
        replay = Replay(f"{name}/{gpus}/{target}", token or f"request {self._requests}")
        caller = await self.caller(who)
        made = await self.asks(lambda services: services.clusters.create(caller, order, replay))
        return Cluster(self, who, made.id)

    async def claims(self, hosts: int, ref: str, for_whom: str = "another platform") -> ClaimDetails:
        """Another system asks for hosts."""
        answer = await self.sim.system.services.claims.create(
            await self.operator(), POOL, hosts, ref, for_whom
        )
        self.look()
        return answer

    async def claim(self, ref: str) -> ClaimDetails:
        return await self.sim.system.services.claims.retrieve(await self.operator(), ref)

    async def gives_back(self, ref: str, *hosts: str) -> ClaimDetails:
        """Another system gives hosts back, all of them if none is named."""
        operator = await self.operator()
        return await self.asks(lambda services: services.claims.give_back(operator, ref, hosts or None))

    async def drains(self, host: str, reason: str = "a loud fan", *, dry_run: bool = False) -> HostReport:
        """The operator has a host emptied to be worked on."""
        operator = await self.operator()
        return await self.asks(lambda services: services.hosts.drain(operator, host, reason, dry_run=dry_run))

    async def returns(self, host: str) -> HostReport:
        """The operator puts it back into service."""
        operator = await self.operator()
        return await self.asks(lambda services: services.hosts.give_back(operator, host))

    async def host(self, name: str) -> HostReport:
        return await self.sim.system.services.hosts.show(await self.operator(), name)

    # what is seen

    async def pool(self) -> PoolDetails:
        (only,) = await self.sim.system.services.fleet.pools(await self.operator())
        return only

    async def hosts(self) -> tuple[HostDetails, ...]:
        return await self.sim.system.services.fleet.hosts(await self.operator())

    async def free_hosts(self) -> int:
        return (await self.pool()).counts["free"]

    def facts(self, what: What, node: NodeDetails | None = None) -> list[Fact]:
        return self.world.facts(what=what, node_uid=node.uid if node else None)

    def billed_s(self, node: NodeDetails) -> int:
        """Seconds of the node's closed intervals. Fails if one is open."""
        rows = self.watch.ask("SELECT start_s, end_s FROM intervals WHERE node_uid = %s", node.uid)
        assert rows
        assert all(row["end_s"] is not None for row in rows), rows
        return sum(row["end_s"] - row["start_s"] for row in rows)

    def billed_until(self, node: NodeDetails) -> int:
        """The second at which the node's bill ends."""
        (row,) = self.watch.ask("SELECT max(end_s) AS end_s FROM intervals WHERE node_uid = %s", node.uid)
        assert row["end_s"] is not None
        return int(row["end_s"])

    async def usage(self, who: str = "acme", by: str = "node") -> tuple[UsageLine, ...]:
        since, until = self.now - timedelta(days=7), self.now + timedelta(days=1)
        return (await self.sim.system.services.usage.read(await self.caller(who), since, until, by=by)).lines

    def preempted(self) -> int:
        """How many preemption notices there were in all."""
        (row,) = self.watch.ask(
            "SELECT count(*) AS n FROM lifecycle_events WHERE reason = 'TogetherPreempted'"
        )
        return int(row["n"])

    def lent(self) -> int:
        """How many preemptible nodes there ever were."""
        (row,) = self.watch.ask("SELECT count(*) AS n FROM nodes WHERE compute_class = 'preemptible'")
        return int(row["n"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """A tenant's cluster, as the tenant handles it."""

    story: Story
    who: str
    id: str

    async def details(self) -> ClusterDetails:
        return await self.story.sim.system.services.clusters.retrieve(
            await self.story.caller(self.who), self.id
        )

    async def changes(self, *, gpus: int | None = None, target: int | None = None) -> ClusterDetails:
        change = ClusterChange(num_gpus=gpus, num_preemptible_gpus=target)
        caller = await self.story.caller(self.who)
        return await self.story.asks(lambda services: services.clusters.update(caller, self.id, change))

    async def is_deleted(self) -> None:
        """The tenant deletes it."""
        caller = await self.story.caller(self.who)
        await self.story.asks(lambda services: services.clusters.delete(caller, self.id))

    async def nodes(self, compute_class: ComputeClass = PREEMPTIBLE) -> list[NodeDetails]:
        """Nodes in it now, in the order of their making."""
        return [node for node in (await self.details()).nodes if node.compute_class is compute_class]

    async def running(self, compute_class: ComputeClass = PREEMPTIBLE) -> list[NodeDetails]:
        return [node for node in await self.nodes(compute_class) if node.phase is Phase.RUNNING]

    async def running_standard(self) -> list[NodeDetails]:
        return await self.running(STANDARD)

    async def draining(self, compute_class: ComputeClass = PREEMPTIBLE) -> list[NodeDetails]:
        return [node for node in await self.nodes(compute_class) if node.phase is Phase.DRAINING]

    async def gone(self, compute_class: ComputeClass = PREEMPTIBLE) -> list[NodeDetails]:
        """Nodes that left it."""
        return [node for node in (await self.details()).deleted_nodes if node.compute_class is compute_class]

    async def node(self, uid: str) -> NodeDetails:
        """One of its nodes, here or gone."""
        details = await self.details()
        (found,) = [node for node in details.nodes + details.deleted_nodes if node.uid == uid]
        return found

    async def allocated(self) -> int:
        return (await self.details()).allocated_preemptible_gpus

    async def reasons(self) -> Counter[str]:
        """Lifecycle events by reason."""
        return Counter(event.reason for event in (await self.details()).events)

    def runs(
        self,
        node: NodeDetails,
        behaviour: PodBehaviour | None = None,
        *,
        grace_s: int = 300,
        count: int = 1,
        name: str = "job",
        kind: PodKind = PodKind.WORKLOAD,
        volumes: Sequence[Volume] = (),
        bind_at: datetime | None = None,
    ) -> None:
        """Pods run on the node."""
        self.story.world.run_pods(
            self.id,
            node.uid,
            count,
            behaviour or Obeys(60),
            grace_s,
            name,
            kind=kind,
            volumes=volumes,
            bind_at=bind_at,
        )


def left_at(node: NodeDetails) -> datetime:
    """When it left its cluster."""
    assert node.removed_at is not None
    return node.removed_at


def after(start: datetime, instant: datetime | None) -> float:
    """Seconds from one instant to another."""
    assert instant is not None
    return (instant - start).total_seconds()


def whole(instant: datetime) -> int:
    return epoch_s(instant)
