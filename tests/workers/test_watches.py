"""Watches that become hints: what is due because of them, and that a sick cluster keeps no other waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import ClusterRef
from ebbtide.errors import Unavailable
from ebbtide.playground.behaviours import Obeys
from ebbtide.store import clusters
from ebbtide.store.seal import Sealer, new_key
from ebbtide.store.visits import Loop
from ebbtide.workers import watches as watches_module
from ebbtide.workers.watches import Watches
from tests.workers.conftest import Rig

PREEMPTIBLE = ComputeClass.PREEMPTIBLE


class Watcher:
    """Tells what a test says. watched: which clusters are followed, with the kubeconfig of each."""

    def __init__(self) -> None:
        self.watched: dict[str, str | None] = {}
        self.begun: list[str] = []
        self._say: dict[str, asyncio.Queue[frozenset[str] | Exception | None]] = {}

    async def changes(self, cluster: ClusterRef) -> AsyncGenerator[frozenset[str], None]:
        self.begun.append(cluster.cluster_id)
        self.watched[cluster.cluster_id] = cluster.kubeconfig
        queue = self._say.setdefault(cluster.cluster_id, asyncio.Queue())
        try:
            while (said := await queue.get()) is not None:
                if isinstance(said, Exception):
                    raise said
                yield said
        finally:
            self.watched.pop(cluster.cluster_id, None)

    def say(self, cluster_id: str, said: frozenset[str] | Exception | None) -> None:
        self._say.setdefault(cluster_id, asyncio.Queue()).put_nowait(said)


class Time:
    """Rests are over at once and take no time, unless a test lets it pass. rested: how long they were."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rested: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def rest(self, seconds: float) -> None:
        self.rested.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def watches(rig: Rig, watcher: Watcher, time: Time) -> Watches:
    return Watches(rig.sim.system.db, watcher, wait=time.rest, now=time)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def due(rig: Rig, loop: Loop) -> list[str]:
    """The keys of the loop's visits that are due now."""
    found = await rig.stored("visits", "loop = :loop AND due_at <= :now", loop=loop, now=rig.sim.now)
    return sorted(str(row["key"]) for row in found)


async def drained_by_order(rig: Rig, hosts: int = 3) -> tuple[str, str]:
    """A cluster and its preemptible node, which was told and waits for its pod; nothing is due."""
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    rig.world.run_pods(cluster, node.name, 1, Obeys(200), 300, "train")
    await rig.sim.settle()
    await rig.order(hosts)
    await rig.sim.settle()
    assert await rig.phase(cluster, PREEMPTIBLE) is Phase.DRAINING
    return cluster, node.uid


async def test_a_draining_node_is_looked_at_when_something_happened_on_it(
    rig: Rig, watches: Watches, watcher: Watcher
) -> None:
    cluster, uid = await drained_by_order(rig)
    await watches.refresh()
    assert await due(rig, Loop.LIFECYCLE) == []
    watcher.say(cluster, frozenset({uid, "of-somebody-else"}))
    await settle()
    assert await due(rig, Loop.LIFECYCLE) == [uid]
    assert await due(rig, Loop.OBSERVATION) == [cluster]


async def test_a_running_node_needs_no_visit_but_its_cluster_a_look(
    rig: Rig, watches: Watches, watcher: Watcher
) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    await rig.sim.settle()
    await watches.refresh()
    watcher.say(cluster, frozenset({node.uid}))
    await settle()
    assert await due(rig, Loop.LIFECYCLE) == []
    assert await due(rig, Loop.OBSERVATION) == [cluster]


async def test_nodes_of_another_cluster_are_not_its_to_wake(
    rig: Rig, watches: Watches, watcher: Watcher
) -> None:
    other = await rig.running("other", slug="buyer")
    _, uid = await drained_by_order(rig, hosts=2)
    await watches.refresh()
    watcher.say(other, frozenset({uid}))
    await settle()
    assert await due(rig, Loop.LIFECYCLE) == []


async def test_a_busy_cluster_is_looked_at_now_and_then_only(
    rig: Rig, watches: Watches, watcher: Watcher, time: Time
) -> None:
    cluster = await rig.running(target=8)
    node = await rig.node(cluster, PREEMPTIBLE)
    await rig.sim.settle()
    await watches.refresh()
    looks = 0
    for _ in range(21):
        watcher.say(cluster, frozenset({node.uid}))
        await settle()
        looks += len(await rig.visit(Loop.OBSERVATION))
        time.now += watches_module.REST_S
        rig.wait(watches_module.REST_S)
    assert time.rested == [watches_module.REST_S] * 21
    assert looks == 2, "at once, and after ten seconds"


async def test_clusters_come_and_go(rig: Rig, watches: Watches, watcher: Watcher) -> None:
    await watches.refresh()
    assert watcher.watched == {}
    first = await rig.running("first")
    second = await rig.running("second")
    await watches.refresh()
    await settle()
    assert set(watcher.watched) == {first, second}

    await rig.sim.system.services.clusters.delete(await rig.caller(), first)
    await rig.sim.run_for(120)
    await watches.refresh()
    await settle()
    assert set(watcher.watched) == {second}
    assert watcher.begun.count(second) == 1, "what is watched well stays as it is"


async def test_another_way_in_begins_anew(rig: Rig, watches: Watches, watcher: Watcher) -> None:
    cluster = await rig.running()
    await watches.refresh()
    await settle()
    db = rig.sim.system.db
    async with db.transaction() as tx:
        await clusters.set_fields(tx, cluster, driver_kubeconfig=db.sealer.seal("another"))
    await watches.refresh()
    await settle()
    assert watcher.watched == {cluster: "another"}
    assert watcher.begun == [cluster, cluster]


async def test_one_kubeconfig_that_no_key_opens_ends_no_other_watch(
    rig: Rig, watches: Watches, watcher: Watcher
) -> None:
    locked, open_ = await rig.running("locked"), await rig.running("open")
    async with rig.sim.system.db.transaction() as tx:
        await clusters.set_fields(tx, locked, driver_kubeconfig=Sealer([new_key()]).seal("lost"))
    await watches.refresh()
    await settle()
    assert set(watcher.watched) == {open_}
    rig.wait(rig.sim.settings.observe_every_s)
    said = await rig.visit(Loop.OBSERVATION)
    assert sum("EBBTIDE_SECRET_KEYS" in sentence for sentence in said) == 1


@pytest.mark.parametrize("end", [None, ZeroDivisionError()], ids=["ends", "breaks"])
async def test_a_watch_that_ended_begins_anew_and_leaves_the_others(
    rig: Rig, watches: Watches, watcher: Watcher, end: Exception | None
) -> None:
    sick, well = await rig.running("sick"), await rig.running("well")
    await rig.sim.settle()
    await watches.refresh()
    watcher.say(sick, end)
    await settle()
    assert set(watcher.watched) == {well}
    watcher.say(well, frozenset({"any"}))
    await settle()
    assert await due(rig, Loop.OBSERVATION) == [well]
    await watches.refresh()
    await settle()
    assert set(watcher.watched) == {sick, well}


async def test_a_database_that_is_away_ends_nothing(
    rig: Rig, watches: Watches, watcher: Watcher, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await rig.running()
    await rig.sim.settle()
    db, read, transaction = rig.sim.system.db, rig.sim.system.db.read, rig.sim.system.db.transaction

    def away() -> object:
        raise Unavailable("away")

    task = asyncio.create_task(watches.run())
    await settle()
    monkeypatch.setattr(db, "read", away)
    monkeypatch.setattr(db, "transaction", away)
    watcher.say(cluster, frozenset({"any"}))
    await settle()
    assert not task.done()
    monkeypatch.setattr(db, "read", read)
    monkeypatch.setattr(db, "transaction", transaction)
    assert await due(rig, Loop.OBSERVATION) == [], "that hint is lost; a timed look makes up for it"
    watcher.say(cluster, frozenset({"any"}))
    time.now += 60
    await settle()
    assert await due(rig, Loop.OBSERVATION) == [cluster]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert watcher.watched == {}, "nothing is left watching"
