"""The watcher: which of our nodes something happened to, by the ledger's uids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from ebbtide.core import marks
from ebbtide.drivers.base import ClusterRef
from ebbtide.drivers.kubernetes.watcher import KubernetesWatcher, slim_node, slim_pod
from ebbtide.kube.client import Clients, KubeClient, KubeList, Object, WatchEvent
from ebbtide.kube.errors import Expired

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
CLUSTER = ClusterRef("c-1", "demo", "any text")


def node(name: str, *, ready: bool = True, **more: Any) -> Object:
    return {
        "metadata": {"name": name, "uid": f"k-{name}", "labels": {marks.LABEL_NODE_UID: f"uid-{name}"}},
        "spec": more,
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def pod(name: str, on: str = "a", *, phase: str = "Running", owner: str = "Job") -> Object:
    owners = [{"kind": owner, "name": "owner", "controller": True}]
    return {
        "metadata": {"name": name, "uid": f"k-{name}", "ownerReferences": owners},
        "spec": {"nodeName": on} if on else {},
        "status": {"phase": phase},
    }


class Cluster(KubeClient):
    """An API server in memory: lists what it has; watches tell what `say` was called with."""

    def __init__(self, *objects: Object) -> None:
        self.busy = 0
        self.has = {
            NODES: [one for one in objects if "Ready" in str(one)],
            PODS: [one for one in objects if "Ready" not in str(one)],
        }
        self.selectors: dict[str, dict[str, Any]] = {}
        self.open = 0
        self._told: dict[str, asyncio.Queue[WatchEvent | Exception]] = {
            path: asyncio.Queue() for path in self.has
        }
        self.hold = asyncio.Event()  # nodes are not listed before
        self.hold.set()

    def say(self, kind: str, thing: Object) -> None:
        self._told[NODES if "conditions" in thing["status"] else PODS].put_nowait(WatchEvent(kind, thing))

    def expire(self, path: str) -> None:
        self._told[path].put_nowait(Expired("watch", 410))

    async def pages(self, path: str, *, page: int = 500, **params: Any) -> AsyncIterator[KubeList]:
        if path == NODES:
            await self.hold.wait()
        self.selectors[path] = params
        yield KubeList(list(self.has[path]), "10")

    async def watch(
        self, path: str, *, resource_version: str, watch_s: int = 0, **params: Any
    ) -> AsyncGenerator[WatchEvent, None]:
        assert resource_version == "10"
        self.open += 1
        try:
            while True:
                told = await self._told[path].get()
                if isinstance(told, Exception):
                    raise told
                yield told
        finally:
            self.open -= 1


class Telling:
    """What a watcher tells, one after the other; with nothing to tell, `none` says so."""

    def __init__(self, changes: AsyncGenerator[frozenset[str], None]) -> None:
        self._changes = changes
        self._next: asyncio.Task[frozenset[str]] | None = None

    async def next(self) -> set[str]:
        task, self._next = self._next or self._ask(), None
        return set(await asyncio.wait_for(task, 5))

    async def none(self) -> bool:
        self._next = self._next or self._ask()
        for _ in range(20):
            await asyncio.sleep(0)
        return not self._next.done()

    def _ask(self) -> asyncio.Task[frozenset[str]]:
        async def ask() -> frozenset[str]:
            return await anext(self._changes)

        return asyncio.create_task(ask())

    async def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def told_of(cluster: Cluster) -> AsyncIterator[Telling]:
    watcher = KubernetesWatcher(Clients(lambda _: cluster), wait=at_once)
    async with aclosing(watcher.changes(CLUSTER)) as changes:
        telling = Telling(changes)
        try:
            yield telling
        finally:
            await telling.end()
    assert cluster.open == 0


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(node("a"), node("b"), pod("p-1", "a"), pod("p-2", "a"), pod("p-3", "elsewhere"))


async def test_at_first_every_node(cluster: Cluster) -> None:
    async with told_of(cluster) as telling:
        assert await telling.next() == {"uid-a", "uid-b"}
        assert await telling.none()
    assert cluster.selectors == {
        NODES: {"labelSelector": "ebbtide/node-uid"},
        PODS: {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
    }


async def test_work_that_comes_and_goes_is_told_by_its_node(cluster: Cluster) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.say("DELETED", pod("p-1", "a"))
        assert await telling.next() == {"uid-a"}
        cluster.say("ADDED", pod("p-4", "b"))
        assert await telling.next() == {"uid-b"}
        cluster.say("MODIFIED", pod("p-4", "b", phase="Succeeded"))
        assert await telling.next() == {"uid-b"}


async def test_what_happens_at_once_is_told_together(cluster: Cluster) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        for each in (pod("p-1", "a"), pod("p-2", "a")):
            cluster.say("DELETED", each)
        cluster.say("MODIFIED", node("b", unschedulable=True))
        told = await telling.next()
        while told != {"uid-a", "uid-b"}:  # two watches: which is read first is not said
            told |= await telling.next()
        assert await telling.none()


@pytest.mark.parametrize(
    "event",
    [
        ("MODIFIED", pod("p-1", "a")),
        ("ADDED", pod("logs", "a", owner="DaemonSet")),
        ("DELETED", pod("etcd", "a", owner="Node")),
        ("DELETED", pod("p-3", "elsewhere")),
        ("MODIFIED", node("a")),
        ("ADDED", {**node("standard"), "metadata": {"name": "standard", "uid": "k"}}),
    ],
    ids=["heartbeat", "daemon", "mirror", "not ours", "node's heartbeat", "no node of ours"],
)
async def test_what_is_no_news(cluster: Cluster, event: tuple[str, Object]) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.say(*event)
        assert await telling.none()


@pytest.mark.parametrize(
    "changed",
    [
        node("a", ready=False),
        node("a", unschedulable=True),
        node("a", taints=[{"key": "ebbtide/initializing"}]),
        {**node("a"), "status": {**node("a")["status"], "allocatable": {marks.GPU: "8"}}},
        {**node("a"), "metadata": {**node("a")["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
    ids=["not ready", "cordoned", "tainted", "GPUs came", "deleted by its tenant"],
)
async def test_what_matters_of_a_node(cluster: Cluster, changed: Object) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.say("MODIFIED", changed)
        assert await telling.next() == {"uid-a"}


async def test_a_node_that_came_or_went(cluster: Cluster) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.say("ADDED", node("c"))
        assert await telling.next() == {"uid-c"}
        cluster.say("ADDED", pod("p-5", "c"))
        assert await telling.next() == {"uid-c"}
        cluster.say("DELETED", node("c"))
        assert await telling.next() == {"uid-c"}


async def test_pods_seen_before_their_nodes_wait_for_them(cluster: Cluster) -> None:
    cluster.hold.clear()
    async with told_of(cluster) as telling:
        cluster.say("DELETED", pod("p-1", "a"))
        assert await telling.none()
        cluster.hold.set()
        assert await telling.next() == {"uid-a", "uid-b"}


async def test_after_a_gap_only_what_differs(cluster: Cluster) -> None:
    """F1, F2: a pod that went while nobody looked is told; what stayed is no news."""
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.has[PODS] = [pod("p-2", "a"), pod("p-3", "elsewhere"), pod("p-6", "b")]
        cluster.expire(PODS)
        assert await telling.next() == {"uid-a", "uid-b"}
        cluster.expire(NODES)
        assert await telling.none()


async def test_a_kubeconfig_of_no_use_ends_it() -> None:
    for text in ("nonsense", None):
        watcher = KubernetesWatcher(Clients())
        assert [uids async for uids in watcher.changes(ClusterRef("c", "demo", text))] == []


async def test_an_error_of_ours_is_not_silent(cluster: Cluster) -> None:
    async with told_of(cluster) as telling:
        await telling.next()
        cluster.say("ADDED", {"status": {"conditions": []}, "metadata": "no object"})
        cluster.say("ADDED", {"status": {"conditions": []}, "metadata": {"labels": 7}})
        assert await telling.none(), "what lacks anything reads as empty"
        cluster._told[NODES].put_nowait(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await telling.next()


def test_little_is_kept() -> None:
    assert slim_pod(pod("p", "a")) is slim_pod(pod("q", "a")), "one string for all pods of a node"
    assert slim_pod(pod("p", "")) is None
    kept = slim_node(node("a", taints=[{"key": "x", "value": "y" * 1000}]))
    assert kept is not None
    assert kept.taints == ("x",)
