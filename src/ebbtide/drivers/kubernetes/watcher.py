"""Telling early which of our nodes something happened to: its object changed, or work came to it or went."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import structlog

from ebbtide.core import marks
from ebbtide.drivers.base import ClusterRef
from ebbtide.drivers.kubernetes import nodes, objects, pods
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.errors import BadInput
from ebbtide.kube.client import WATCH_S, Clients, KubeClient
from ebbtide.kube.watch import Mirror, News

T = TypeVar("T")

log = structlog.get_logger()

GATHER_S = 0.25
BOUND_AND_UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class KubernetesWatcher:
    """A `Watcher`: two watches on each cluster, of nodes and of the pods bound to any."""

    def __init__(
        self,
        clients: Clients,
        *,
        gather_s: float = GATHER_S,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        watch_s: int = WATCH_S,
    ) -> None:
        """gather_s: what happens within this is told together. wait: how to wait, here and between two tries
        of a watch. watch_s: see `kube.watch.Mirror`.
        """
        self._clients = clients
        self._gather_s = gather_s
        self._wait = wait
        self._watch_s = watch_s

    async def changes(self, cluster: ClusterRef) -> AsyncGenerator[frozenset[str], None]:
        """See `drivers.base.Watcher`."""
        if cluster.kubeconfig is None:
            return
        kubeconfig = cluster.kubeconfig
        try:
            self._clients.of(cluster.cluster_id, kubeconfig)
        except BadInput as error:
            log.error("cluster cannot be watched", cluster=cluster.cluster_id, why=error.message)
            return
        seen = _Seen(lambda: self._clients.of(cluster.cluster_id, kubeconfig), self._wait, self._watch_s)
        tasks = [asyncio.create_task(seen.follow_nodes()), asyncio.create_task(seen.follow_pods())]
        for task in tasks:
            task.add_done_callback(lambda _: seen.told.set())
        try:
            while True:
                await seen.told.wait()
                for task in tasks:
                    if task.done():
                        await task  # it never ends but by an error of ours
                await self._wait(self._gather_s)
                if uids := seen.take():
                    yield uids
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Node(NamedTuple):
    uid: str
    name: str
    ready: bool
    gpus: int
    cordoned: bool
    deleting: bool
    taints: tuple[str, ...]


def slim_node(node: Json) -> _Node | None:
    """What decides when something is to be done about a node of ours."""
    uid = objects.labels(node).get(marks.LABEL_NODE_UID)
    if not isinstance(uid, str) or not uid:
        return None
    (seen,) = nodes.seen([node], ())
    taints = tuple(objects.text(taint, "key") for taint in objects.items(node, "spec", "taints"))
    return _Node(uid, seen.name, seen.ready, seen.gpus, seen.cordoned, seen.deleting, taints)


def slim_pod(pod: Json) -> str | None:
    """The name of the node that a pod keeps busy."""
    return sys.intern(objects.text(pod, "spec", "nodeName")) or None if pods.counts(pod) else None


class _Seen:
    """What one cluster's watches saw, and what was not told yet. told: something is there to be taken."""

    def __init__(
        self, client: Callable[[], KubeClient], wait: Callable[[float], Awaitable[None]], watch_s: int
    ) -> None:
        self.told = asyncio.Event()
        self._nodes = Mirror(
            client, nodes.ALL, slim_node, wait=wait, watch_s=watch_s, labelSelector=marks.LABEL_NODE_UID
        )
        self._pods = Mirror(
            client, pods.ALL, slim_pod, wait=wait, watch_s=watch_s, fieldSelector=BOUND_AND_UNFINISHED
        )
        self._uids: set[str] = set()
        self._names: set[str] = set()

    def take(self) -> frozenset[str]:
        """Uids of the nodes about which something changed since the last time. Names whose node was not
        listed yet wait for it.
        """
        self.told.clear()
        named = {node.name: node.uid for node in self._nodes.items.values()}
        taken = self._uids | {named[name] for name in self._names if name in named}
        self._uids = set()
        self._names = set() if self._nodes.listed else self._names
        return frozenset(taken)

    async def follow_nodes(self) -> None:
        async with aclosing(self._nodes.follow()) as all_news:
            async for news in all_news:
                touched = list(self._nodes.items.values()) if news.first else _touched(news)
                self._uids |= {node.uid for node in touched}
                self.told.set()

    async def follow_pods(self) -> None:
        async with aclosing(self._pods.follow()) as all_news:
            async for news in all_news:
                if news.first:  # what came and went before is not known
                    self._uids |= {node.uid for node in self._nodes.items.values()}
                self._names |= set(_touched(news))
                self.told.set()


def _touched(news: News[T]) -> list[T]:
    """Whatever changed, as it was and as it is."""
    both = ((change.before, change.after) for change in news.changes)
    return [one for pair in both for one in pair if one is not None]
