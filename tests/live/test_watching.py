"""Watches on a real API server, and what goes wrong with them: theme 6 of the scenarios.

Timed looks are made rare here, so that whatever happens soon was heard by a watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from ebbtide.core.nodes import Phase
from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes.watcher import KubernetesWatcher
from ebbtide.kube.client import Clients, KubeClient, WatchEvent
from ebbtide.kube.errors import KubeError
from ebbtide.kube.way_in import address
from tests.live.drains import EVENTS, NOTICE, PODS, Place
from tests.live.proxy import Proxy, compact
from tests.live.system import SETTINGS, Live, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

WINDOW_S = 120
RARELY_S = 60  # timed looks
WATCH_S = 3
SOON_S = 4  # from a pod's end until its node leaves; seen a few times a second
HOSTS = 5


class Noting(KubeClient):
    """Notes how its watches ended and how often things were listed."""

    ended: list[str]
    lists: int

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(kubeconfig, limit_s=5)
        self.ended = []
        self.lists = 0

    async def pages(self, path: str, **params: Any) -> AsyncGenerator[Any, None]:
        self.lists += path == "/api/v1/pods" and "spec.nodeName!=" in str(params.get("fieldSelector"))
        async with aclosing(super().pages(path, **params)) as pages:
            async for page in pages:
                yield page

    async def watch(self, path: str, **params: Any) -> AsyncGenerator[WatchEvent, None]:
        try:
            async with aclosing(super().watch(path, **params)) as events:
                async for event in events:
                    yield event
        except KubeError as error:
            self.ended.append(type(error).__name__)
            raise


class Bench:
    """A running system behind a proxy."""

    def __init__(self, live: Live, proxy: Proxy, clients: list[Noting]) -> None:
        self.live = live
        self.proxy = proxy
        self.clients = clients
        self.taken = 0

    @property
    def ended(self) -> list[str]:
        return [how for client in self.clients for how in client.ended]

    async def drain(self, notes: dict[str, str], hosts: int = 1) -> tuple[list[NodeRef], list[str], datetime]:
        """Put a pod on every node, take so many, wait until theirs were told.

        Answer them, their pods, and when it was.
        """
        live = self.live
        nodes = await live.whole(HOSTS - 1)
        pods = {
            node.name: (await live.place.pod(node, "job", grace_s=300, notes=notes))["metadata"]["name"]
            for node in nodes
        }
        self.taken += 1
        await live.claims(hosts, f"claim-{self.taken}")
        at = live.now

        async def told() -> bool:
            found = await live.nodes(Phase.DRAINING)
            on_them = [await live.place.admin.get(f"{PODS}/{pods[one.name]}") for one in found]
            return len(found) == hosts and all("deletionTimestamp" in pod["metadata"] for pod in on_them)

        await live.until(told)
        taken = [NodeRef(one.uid, one.name) for one in await live.nodes(Phase.DRAINING)]
        return taken, [pods[node.name] for node in taken], at

    async def leaves(self, node: NodeRef, limit_s: float) -> datetime:
        """When the node was no longer draining."""

        async def left() -> bool:
            return (await self.live.node(node.uid)).phase in (Phase.REMOVING, Phase.REMOVED)

        await self.live.until(left, limit_s)
        return self.live.now

    async def restored(self) -> None:
        """Hosts are given back, and work is gone."""
        await self.live.gives_back(f"claim-{self.taken}")
        for pod in (await self.live.place.admin.list(PODS)).items:
            await self.live.place.admin.delete(f"{PODS}/{pod['metadata']['name']}", grace_s=0)
        await self.live.whole(HOSTS - 1)

    def last_seen(self, pod: str) -> datetime:
        return self.live.pod_seen(pod)[-1][0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bench(place: Place, module_database_url: str) -> AsyncIterator[Bench]:
    server, _ = address(place.cluster.kubeconfig or "")
    settings = replace(
        SETTINGS,
        drain_window_s=WINDOW_S,
        drain_look_every_s=RARELY_S,
        observe_every_s=RARELY_S,
        lost_after_s=150,
    )
    made: list[Noting] = []

    def noting(kubeconfig: str) -> KubeClient:
        made.append(Noting(kubeconfig))
        return made[-1]

    async with (
        Proxy(int(server.rpartition(":")[2])) as proxy,
        running(
            place,
            module_database_url,
            hosts=HOSTS,
            target=HOSTS - 1,
            settings=settings,
            watcher=lambda clients: KubernetesWatcher(clients, watch_s=WATCH_S),
            door=lambda kubeconfig: kubeconfig.replace(server, f"https://127.0.0.1:{proxy.port}"),
            client=noting,
        ) as live,
    ):
        await live.whole(HOSTS - 1)
        yield Bench(live, proxy, made)


async def test_a_drain_ends_soon_after_its_last_pod(bench: Bench) -> None:
    (node,), (pod,), _ = await bench.drain({"ebbtide/exits-after-s": "5"})
    left_at = await bench.leaves(node, 20)
    assert (left_at - bench.last_seen(pod)).total_seconds() < SOON_S
    await bench.restored()


async def test_f2_old_events_are_no_news(bench: Bench) -> None:
    """500 notices of last month in the cluster, and a watcher that has just begun: nobody is told of any."""
    live = bench.live
    nodes = await live.whole(HOSTS - 1)
    old = [
        {
            "metadata": {"name": f"old-{at}", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": nodes[at % len(nodes)].name, "apiVersion": "v1"},
            "reason": NOTICE,
            "type": "Warning",
            "reportingComponent": "ebbtide",
            "firstTimestamp": "2026-01-01T00:00:00Z",
        }
        for at in range(500)
    ]
    before = [await live.reasons(node.uid) for node in nodes]
    await asyncio.gather(*(live.place.admin.create(EVENTS, one) for one in old))
    clients = Clients()
    told: list[frozenset[str]] = []

    async def follow() -> None:
        async with aclosing(
            KubernetesWatcher(clients, watch_s=WATCH_S).changes(live.place.cluster)
        ) as changes:
            async for uids in changes:
                told.append(uids)

    task = asyncio.create_task(follow())
    await asyncio.sleep(WATCH_S * 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clients.close()
    assert told[0] > {node.uid for node in nodes}, "and the standard one"
    assert told[1:] == []
    assert [await live.reasons(node.uid) for node in nodes] == before
    assert len(await live.nodes(Phase.RUNNING)) == HOSTS - 1
    await asyncio.gather(*(live.place.admin.delete(f"{EVENTS}/old-{at}") for at in range(500)))


async def test_f4_a_half_open_connection_is_noticed_and_the_drain_still_ends_early(bench: Bench) -> None:
    (node,), (pod,), at = await bench.drain({"ebbtide/exits-after-s": "8"})
    await asyncio.sleep(2)  # nothing is asked any more; all now depends on the watches
    broken = bench.ended.count("Unreachable")
    assert await bench.proxy.freeze() >= 2, "two watches at least went through it"
    left_at = await bench.leaves(node, WINDOW_S)
    details = await bench.live.node(node.uid)
    assert details.deadline is not None
    assert left_at < details.deadline
    assert (left_at - bench.last_seen(pod)).total_seconds() < WATCH_S + 8 + SOON_S + 2
    assert bench.ended.count("Unreachable") > broken
    assert (left_at - at).total_seconds() < RARELY_S, "and not by the timed look"
    await bench.restored()


async def test_f1_f5_the_api_server_is_away_amid_a_drain_and_etcd_forgets_the_past(bench: Bench) -> None:
    """What was heard before is no longer there to go on from; the drain goes on all the same."""
    live, place = bench.live, bench.live.place
    plane = place.machines.kwok._planes.get(place.cluster.cluster_id)
    assert plane is not None
    (node,), (pod,), at = await bench.drain({"ebbtide/obeys": "false"})
    deadline = (await live.node(node.uid)).deadline
    lists = sum(client.lists for client in bench.clients)
    await asyncio.sleep(2)
    await plane.control.stop_server("kube-apiserver")
    await asyncio.sleep(4)
    await compact(plane.folder)
    await plane.control.start_server("kube-apiserver")
    back_at = live.now
    assert (back_at - at).total_seconds() < RARELY_S - 10, "else a timed look would do"
    assert (await live.node(node.uid)).phase is Phase.DRAINING

    async def listed_again() -> bool:
        return "Expired" in bench.ended and sum(client.lists for client in bench.clients) > lists

    await live.until(listed_again, 30)
    await place.admin.delete(f"{PODS}/{pod}", grace_s=0)
    left_at = await bench.leaves(node, SOON_S)
    details = await live.node(node.uid)
    assert details.deadline == deadline, "the clock kept running"
    assert deadline is not None
    assert left_at < deadline
    reasons = await live.reasons(node.uid)
    assert reasons.count(NOTICE) == 1
    notices = [one for one in await place.events_on(node) if one["reason"] == NOTICE]
    assert [one["count"] for one in notices] == [1]
    await bench.restored()
