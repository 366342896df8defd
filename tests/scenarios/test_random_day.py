"""A day of everything at once, by the printed seed: the invariants hold after every step, then it rests."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ebbtide.core.drain import PodKind
from ebbtide.errors import Conflict
from ebbtide.playground.behaviours import (
    BootFails,
    Boots,
    CreateReplyLost,
    Dawdles,
    DeleteForgets,
    DeleteReplyLost,
    GpusMissing,
    IgnoresSigterm,
    KubeletDoublesGrace,
    NeverReady,
    Obeys,
    OutOfStock,
    Reregisters,
    StopTakes,
    StopUnconfirmed,
    Volume,
)
from ebbtide.playground.trouble import ClusterUnreachable
from tests.scenarios.conftest import Begin
from tests.scenarios.story import BOOT_S, GPUS, MINUTE, Cluster, Story

HOSTS = 10
DAY_S = 24 * 60 * MINUTE
QUIET_S = 150 * MINUTE
_TENANTS = ("acme", "beta", "gamma")
_PODS = (Obeys(20), Obeys(200), Dawdles(), IgnoresSigterm(), KubeletDoublesGrace())


class Day:
    """What may happen in it: each method is one thing, drawn by chance."""

    def __init__(self, story: Story, rng: random.Random) -> None:
        self.story = story
        self.rng = rng
        self.clusters: list[Cluster] = []
        self.refs: list[str] = []
        self.made = 0
        self.done: list[str] = []
        self.dead: set[str] = set()

    def chances(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        return [
            (6, self.target),
            (3, self.standard),
            (2, self.create),
            (1, self.delete),
            (2, self.claim),
            (2, self.give_back),
            (6, self.pods),
            (2, self.vanish),
            (2, self.restore),
            (4, self.misbehave),
            (2, self.cluster_away),
            (1, self.provider_away),
            (2, self.cordon),
            (2, self.drain_host),
            (2, self.return_host),
            (2, self.die),
        ]

    async def goes_on(self) -> None:
        """The next thing happens, after a while."""
        await self.story.passes(self.rng.choice((0, 3, 30, 300, 1800, 3600)))
        weights, things = zip(*self.chances(), strict=True)
        thing = self.rng.choices(things, weights)[0]
        self.done.append(f"{self.story.now:%H:%M:%S} {thing.__name__}")
        try:
            await thing()
        except Conflict as refusal:
            self.done.append(f"  refused: {refusal.code}")

    async def create(self) -> None:
        if len(self.clusters) >= 5:
            return
        self.made += 1
        target = self.rng.randint(0, 6) * GPUS
        name = f"c{self.made}"
        self.clusters.append(await self.story.orders(self.rng.choice(_TENANTS), name, target=target))

    async def delete(self) -> None:
        if len(self.clusters) > 1:
            await self.clusters.pop(self.rng.randrange(len(self.clusters))).is_deleted()

    async def target(self) -> None:
        if self.clusters:
            await self.rng.choice(self.clusters).changes(target=self.rng.randint(0, 8) * GPUS)

    async def standard(self) -> None:
        if self.clusters:
            await self.rng.choice(self.clusters).changes(gpus=self.rng.randint(1, 3) * GPUS)

    async def claim(self) -> None:
        ref = f"order-{len(self.done)}"
        await self.story.claims(self.rng.randint(1, 3), ref)
        self.refs.append(ref)

    async def give_back(self) -> None:
        if self.refs:
            await self.story.gives_back(self.refs.pop(self.rng.randrange(len(self.refs))))

    async def pods(self) -> None:
        for cluster in self.clusters:
            for node in await cluster.running():
                if self.rng.random() < 0.4 and self._is_seen(cluster, node.uid):
                    kind = self.rng.choice((PodKind.WORKLOAD, PodKind.WORKLOAD, PodKind.DAEMON))
                    volumes = self.rng.choice(((), (), (Volume(5.0),), (Volume(None),)))
                    grace_s = self.rng.choice((30, 300, 900))
                    cluster.runs(node, self.rng.choice(_PODS), grace_s=grace_s, kind=kind, volumes=volumes)

    def _is_seen(self, cluster: Cluster, uid: str) -> bool:
        """Whether the cluster shows the node; one that vanished takes no pods."""
        try:
            return any(node.uid == uid and node.ready for node in self.story.world.nodes(cluster.id))
        except ClusterUnreachable:
            return False

    async def vanish(self) -> None:
        host = await self._host()
        if len(self.dead) < 3:
            self.dead.add(host)
            self.story.world.vanish(host, forgotten=self.rng.random() < 0.5)

    async def restore(self) -> None:
        for host in sorted(self.dead):
            self.story.world.restore(host)
        self.dead.clear()

    async def misbehave(self) -> None:
        """Some host does something badly, a few times or for as long as nobody mends it."""
        behaviour = self.rng.choice(
            (
                BootFails(20),
                NeverReady(boot_s=20),
                GpusMissing(4, boot_s=20, join_s=5),
                Boots((5, 600)),
                OutOfStock(2),
                CreateReplyLost(2),
                StopUnconfirmed(4),
                StopUnconfirmed(15),
                StopTakes(90),
                DeleteForgets(3),
                DeleteReplyLost(2),
                Reregisters(2),
            )
        )
        self.story.world.set_behaviour(behaviour, host=await self._host())

    async def cluster_away(self) -> None:
        if self.clusters:
            end = self.story.now + timedelta(seconds=self.rng.choice((60, 400, 1200)))
            self.story.world.unreachable(self.rng.choice(self.clusters).id, self.story.now, end)

    async def provider_away(self) -> None:
        end = self.story.now + timedelta(seconds=self.rng.choice((30, 400)))
        self.story.world.provider_unreachable(self.story.now, end)

    async def cordon(self) -> None:
        fleet, operator = self.story.sim.system.services.fleet, await self.story.operator()
        await fleet.set_cordon(operator, await self._host(), cordoned=self.rng.random() < 0.3)
        self.story.look()

    async def drain_host(self) -> None:
        await self.story.drains(await self._host())

    async def return_host(self) -> None:
        await self.story.returns(self.rng.choice(await self._in_maintenance() or [await self._host()]))

    async def _in_maintenance(self) -> list[str]:
        found = self.story.watch.ask("""
            SELECT h.name FROM maintenances m JOIN hosts h ON h.id = m.host_id WHERE ended_at IS NULL
            ORDER BY 1
        """)
        return [row["name"] for row in found]

    async def die(self) -> None:
        await self.story.dies()
        self.story.nobody_works(self.rng.choice((0, 30, 280, 700)))
        await self.story.starts()

    async def _host(self) -> str:
        return self.rng.choice([host.name for host in await self.story.hosts()])

    async def is_mended(self) -> None:
        """Everything that was broken is put right; nobody asks for anything any more."""
        await self.restore()
        for name in await self._in_maintenance():
            await self.story.returns(name)
        fleet, operator = self.story.sim.system.services.fleet, await self.story.operator()
        for host in await self.story.hosts():
            boots = Boots((BOOT_S, BOOT_S), join_s=2.0, gpus_s=1.0)
            mended = (boots, OutOfStock(0), CreateReplyLost(0), StopUnconfirmed(0), DeleteForgets(0))
            self.story.world.set_behaviour(*mended, DeleteReplyLost(0), Reregisters(99_999), host=host.name)
            await fleet.set_cordon(operator, host.name, cordoned=False)
        self.story.look()


async def test_a_day_of_everything(given: Begin, rng: random.Random) -> None:
    quiet = {"observe_every_s": 300, "fill_every_s": 300, "leaks_every_s": 900, "meter_every_s": 3600}
    story = await given(HOSTS, headroom=1, blocks=2, lost_after_s=500, **quiet)
    day = Day(story, rng)
    evening = story.now + timedelta(seconds=DAY_S)
    for _ in range(2):
        await day.create()
    try:
        while story.now < evening:
            await day.goes_on()
        await day.is_mended()
        await story.passes(QUIET_S)
        await it_is_at_rest(story, day)
        the_bill_is_what_was_used(story)
    except BaseException:
        print("\n".join(day.done))
        raise


async def it_is_at_rest(story: Story, day: Day) -> None:
    """No node is on its way, no visit fails, and what is free beyond the headroom is wanted by nobody."""
    phases = story.watch.ask("SELECT phase, count(*) AS n FROM nodes WHERE phase <> 'REMOVED' GROUP BY 1")
    assert {row["phase"] for row in phases} <= {"RUNNING"}, phases
    failing = story.watch.ask(
        "SELECT loop, key, outcome FROM visits WHERE due_at IS NOT NULL AND failures > 0"
    )
    assert not failing
    wanted = sum(
        details.desired_preemptible_gpus - details.allocated_preemptible_gpus
        for details in [await cluster.details() for cluster in day.clusters]
    )
    pool = await story.pool()
    assert pool.counts["free"] == 0 or wanted == 0, (pool.counts, wanted)
    going_on = story.watch.ask(
        "SELECT loop, key, outcome FROM visits WHERE due_at IS NOT NULL AND loop IN ('lifecycle', 'cluster')"
    )
    assert not going_on
    lent = story.lent()
    await story.passes(20 * MINUTE)
    assert story.lent() == lent


def the_bill_is_what_was_used(story: Story) -> None:
    """Per node.

    From RUNNING to when it left or its deadline; a host that vanished, never longer than that.
    """
    rows = story.watch.ask("""
        SELECT n.name, n.end_reason, sum(i.end_s - i.start_s) AS billed, bool_or(i.end_s IS NULL) AS open,
               floor(extract(epoch FROM LEAST(n.left_at, n.deadline)))
               - floor(extract(epoch FROM n.running_at)) AS used,
               EXISTS (SELECT 1 FROM lifecycle_events e
                       WHERE e.node_uid = n.uid AND e.reason = 'EbbtideNodeLost') AS lost
        FROM nodes n JOIN intervals i ON i.node_uid = n.uid
        WHERE n.phase = 'REMOVED' AND n.running_at IS NOT NULL AND n.cluster_id IS NOT NULL GROUP BY n.uid
    """)
    assert rows
    for row in rows:
        assert not row["open"], row
        assert row["billed"] == row["used"] or (row["lost"] and row["billed"] <= row["used"]), row
