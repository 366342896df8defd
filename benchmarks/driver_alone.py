"""What our driver costs beside bare HTTP calls: everybody on 64 nodes with 30 pods each is told to go.

    python benchmarks/driver_alone.py [--quick] [--json FILE]

Against a server that answers at once from memory (`_mock_api.py`, a process of its own). The driver announces
each node, reads its pods and signals them, all nodes side by side. The peer sends the very same requests, as
recorded from a run of the driver, with nothing but aiohttp and `json` around them, as many in flight. CPU
time is of this process alone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from _common import Options, Report, Result, median, options
from _mock_api import names
from _watching import kubeconfig

from ebbtide.cli.listening import settled
from ebbtide.clock import AnchoredClock
from ebbtide.core.drain import PodOrder
from ebbtide.core.events import Reason
from ebbtide.drivers.base import ClusterRef, NodeRef, Notice
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients, KubeClient, Object
from ebbtide.kube.transport import Request

IN_FLIGHT = 32
NOTICE = Notice(Reason.PREEMPTED, "a standard cluster takes the host", datetime(2030, 1, 1, tzinfo=UTC))


class Recording(KubeClient):
    """Keeps what it sends."""

    sent: list[Request]

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(kubeconfig)
        self.sent = []

    async def _once(self, request: Request) -> Object:
        self.sent.append(request)
        return await super()._once(request)


@contextmanager
def mock(nodes: int, pods: int) -> Iterator[int]:
    """The server's port."""
    program = Path(__file__).with_name("_mock_api.py")
    command = [sys.executable, str(program), str(nodes), str(pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.terminate()


async def by_driver(clients: Clients, port: int, nodes: int) -> int:
    """Tell everybody; how many pods that were."""
    driver = KubernetesDriver(clients, AnchoredClock())
    cluster = ClusterRef("c", "bench", kubeconfig(port))

    async def drain(name: str) -> int:
        node = NodeRef(name, name)
        await driver.notify(cluster, node, NOTICE)
        seen = await driver.pods(cluster, node)
        orders = [PodOrder(pod.uid, pod.name, 297, namespace=pod.namespace) for pod in seen.pods]
        return len(await driver.signal(cluster, node, orders))

    return sum(await asyncio.gather(*(drain(name) for name in names(nodes))))


async def bare(requests: Sequence[Request], port: int) -> None:
    """The same requests by aiohttp, answers parsed."""
    waiting = iter(requests)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:

        async def one_after_the_other() -> None:
            for request in waiting:
                data = None if request.body is None else json.dumps(request.body)
                params = {key: str(value) for key, value in request.params.items() if value is not None}
                headers = {"Content-Type": str(request.content_type)} if data else {}
                async with session.request(
                    request.method, request.path, params=params, data=data, headers=headers
                ) as answer:
                    json.loads(await answer.read())

        await asyncio.gather(*(one_after_the_other() for _ in range(IN_FLIGHT)))


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Seconds on the clock, and of this process's CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - began, time.process_time() - cpu


async def record(port: int, nodes: int, pods: int) -> list[Request]:
    recorders: list[Recording] = []

    def make(text: str) -> KubeClient:
        recorders.append(Recording(text))
        return recorders[-1]

    clients = Clients(make)
    assert await by_driver(clients, port, nodes) == nodes * pods
    await clients.close()
    return recorders[0].sent


async def measure(given: Options, report: Report) -> None:
    nodes, pods, rounds = (4, 5, 1) if given.quick else (64, 30, 5)
    report.settings.update(nodes=nodes, pods_per_node=pods, rounds=rounds, in_flight=IN_FLIGHT)
    settled()  # as our server does when it has started
    with mock(nodes, pods) as port:
        requests = await record(port, nodes, pods)
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for _ in range(rounds):  # in turn, so that other load on the machine meets both
            clients = Clients()
            ours.append(await timed(lambda clients=clients: by_driver(clients, port, nodes)))  # type: ignore[misc]  # mypy infers no type for a lambda with a default
            await clients.close()
            theirs.append(await timed(lambda: bare(requests, port)))
    each = f"{len(requests)} requests, {len(requests) / (nodes * pods):.2f} for each pod"
    for at, what in enumerate(("time", "CPU time")):
        report.add(
            Result(
                what=f"{what}: {nodes} nodes with {pods} pods told by the driver",
                value=median([one[at] for one in ours]) * 1000,
                unit="ms",
                peer="the same requests, bare aiohttp",
                peer_value=median([one[at] for one in theirs]) * 1000,
                aim=1.7 if at == 0 else None,
                note=each if at == 0 else "",
            )
        )


def main() -> int:
    given = options(__doc__)
    report = Report("driver_alone", given)
    asyncio.run(measure(given, report))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
