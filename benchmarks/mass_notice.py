"""Telling everybody on 300 nodes to go, on a real API server with default flags and our ClusterRole.

    python benchmarks/mass_notice.py [--quick] [--json FILE]

15 pods on each node, played by kwok. Measured is the time from the decision until the last pod has a deletion
timestamp: by our driver, all nodes side by side; by a bare aiohttp client that sends the same calls with the
number in flight that is best on this machine; by `kubectl drain` of the nodes in as many processes side by
side as finish soonest (by its log's times; it evicts where the driver sets the condition and deletes). Then
the same with one disruption budget over all pods, which allows all of it but has to be asked. Client, kubectl
and the servers share the machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from _cluster import PODS, Cluster, cluster, kubectl
from _common import Options, Report, Result, options
from _mock_api import names

from ebbtide.clock import AnchoredClock
from ebbtide.core.drain import PodOrder
from ebbtide.core.events import Reason
from ebbtide.drivers.base import ClusterRef, NodeRef, Notice
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.kube.client import Clients, KubeClient, Object
from ebbtide.kube.transport import Request
from ebbtide.kube.way_in import way_in

GRACE_S = 297
IN_FLIGHT = (16, 32, 64)
PROCESSES = (8, 24)
_AGAIN = 30
_BEGAN = time.perf_counter()
_EVICTED = re.compile(r'^I\d{4} (\S+) .*verb="POST" .*/eviction" status="201', re.MULTILINE)


class Watched(KubeClient):
    """Notes when the first pod of each node was told."""

    told_at: dict[str, float]

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(kubeconfig)
        self.told_at = {}

    async def _once(self, request: Request) -> Object:
        answer = await super()._once(request)
        if request.method == "DELETE":
            node = request.path.rpartition("/")[2].rsplit("-", 2)[0]
            self.told_at.setdefault(node, time.perf_counter())
        return answer


async def by_driver(one: Cluster, nodes: Sequence[str], pods: int) -> tuple[float, float]:
    """Seconds until the last pod was told, and until the first of the last node was."""
    made: list[Watched] = []

    def make(text: str) -> KubeClient:
        made.append(Watched(text))
        return made[-1]

    clients = Clients(make)
    driver = KubernetesDriver(clients, AnchoredClock())
    ref = ClusterRef("c", "bench", one.ours)
    deadline = datetime.now(UTC) + timedelta(seconds=300)
    notice = Notice(Reason.PREEMPTED, "a standard cluster takes the host", deadline)

    async def drain(name: str) -> int:
        node = NodeRef(name, name)
        await driver.notify(ref, node, notice)
        seen = await driver.pods(ref, node)
        orders = [PodOrder(pod.uid, pod.name, GRACE_S, namespace=pod.namespace) for pod in seen.pods]
        return len(await driver.signal(ref, node, orders))

    began = time.perf_counter()
    told = sum(await asyncio.gather(*(drain(name) for name in nodes)))
    took = time.perf_counter() - began
    await clients.close()
    assert told == len(nodes) * pods, told
    assert set(made[0].told_at) == set(nodes)
    return took, max(made[0].told_at.values()) - began


async def bare(one: Cluster, nodes: Sequence[str], in_flight: int) -> float:
    """The same calls with nothing around them."""
    way = way_in(one.ours)
    assert isinstance(way.tls, ssl.SSLContext)
    connector = aiohttp.TCPConnector(limit=0, ssl=way.tls)
    places = asyncio.Semaphore(in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": kind} if data else {}
            async with session.request(method, way.server + path, data=data, headers=headers) as answer:
                content = json.loads(await answer.read())
                assert answer.status < 300, content
                return content

        async def node(name: str) -> None:
            async with places:
                path = f"/api/v1/nodes/{name}"
                found = await send("GET", path)
                await send("PATCH", path, _cordon(), "application/merge-patch+json")
                for reason in ("TogetherPreempted", "Preempted"):
                    await send("POST", "/api/v1/namespaces/default/events", _event(found, reason))
                await send("PATCH", f"{path}/status", _draining(), "application/strategic-merge-patch+json")
                listed = await send("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={name}&limit=500")
            await asyncio.gather(*(pod(each) for each in listed["items"]))

        async def pod(each: Any) -> None:
            async with places:
                path, uid = f"{PODS}/{each['metadata']['name']}", each["metadata"]["uid"]
                await send(
                    "PATCH", f"{path}/status", _disrupted(uid), "application/strategic-merge-patch+json"
                )
                await send("DELETE", path, _options(uid))

        began = time.perf_counter()
        await asyncio.gather(*(node(name) for name in nodes))
        return time.perf_counter() - began


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cordon() -> Any:
    notes = {
        "ebbtide/drain-deadline": _now(),
        "ebbtide/drain-reason": "Preempted: a standard cluster takes it",
    }
    return {"spec": {"unschedulable": True}, "metadata": {"annotations": notes}}


def _draining() -> Any:
    mark = {"type": "EbbtideDraining", "status": "True", "reason": "Preempted", "lastTransitionTime": _now()}
    return {"status": {"conditions": [mark]}}


def _event(node: Any, reason: str) -> Any:
    metadata = node["metadata"]
    return {
        "metadata": {"generateName": f"{metadata['name']}-", "namespace": "default"},
        "involvedObject": {
            "kind": "Node",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "apiVersion": "v1",
        },
        "type": "Warning",
        "reason": reason,
        "message": "a standard cluster takes the host; its pods have until then",
        "source": {"component": "ebbtide"},
        "firstTimestamp": _now(),
        "lastTimestamp": _now(),
        "count": 1,
    }


def _disrupted(uid: str) -> Any:
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "Preempted", "lastTransitionTime": _now()}
    return {"metadata": {"uid": uid}, "status": {"conditions": [mark]}}


def _options(uid: str) -> Any:
    return {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": GRACE_S,
        "preconditions": {"uid": uid},
    }


async def by_kubectl(one: Cluster, nodes: Sequence[str], pods: int, processes: int) -> float:
    """`kubectl drain`, each process with its share of the nodes; until the last eviction was granted."""
    shares = [nodes[at::processes] for at in range(min(processes, len(nodes)))]
    command = [str(kubectl()), f"--kubeconfig={one.plane.kubeconfig}", "drain"]
    command += ["--force", f"--grace-period={GRACE_S}", "--timeout=240s", "-v=6"]
    began = time.time()

    async def drain(share: Sequence[str]) -> list[float]:
        evicted: list[float] = []
        for _ in range(_AGAIN):  # where evictions collide over a budget, kubectl gives up and is called again
            process = await asyncio.create_subprocess_exec(
                *command, *share, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, said = await process.communicate()
            text = said.decode()
            evicted += [_second_of_day(at) for at in _EVICTED.findall(text)]
            if process.returncode == 0:
                return evicted
        raise SystemExit(text[-2000:])

    evicted = [at for share in await asyncio.gather(*(drain(share) for share in shares)) for at in share]
    assert len(evicted) == len(nodes) * pods, len(evicted)
    local = time.localtime(began)
    began_at = local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + began % 1
    return max((at - began_at) % 86_400 for at in evicted)


def _second_of_day(written: str) -> float:
    """Of a log line's time, which is local."""
    hours, minutes, seconds = written.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _say(what: str) -> None:
    """How far it is, for who waits."""
    print(f"  {time.perf_counter() - _BEGAN:.0f} s: {what}", file=sys.stderr, flush=True)


async def measure(given: Options, report: Report, sizes: tuple[int, int, int] | None = None) -> None:
    many, few, pods = sizes or ((12, 6, 3) if given.quick else (300, 30, 15))
    report.settings.update(nodes=many, nodes_with_a_budget=few, pods_per_node=pods)
    every = names(many)
    some = every[:few]
    async with cluster() as one:
        _say("the control plane is there")
        await one.nodes(every)

        async def fresh(nodes: Sequence[str]) -> None:
            await one.gone()
            _say(f"pods on {len(nodes)} nodes")
            await one.pods(nodes, pods)
            _say("they run")

        in_flight, processes = {}, {}
        for number in IN_FLIGHT[1:2] if given.quick else IN_FLIGHT:
            await fresh(some)
            in_flight[number] = await bare(one, some, number)
        for number in PROCESSES[:1] if given.quick else PROCESSES:
            await fresh(some)
            processes[number] = await by_kubectl(one, some, pods, number)
        best = min(in_flight, key=lambda number: in_flight[number])
        side_by_side = min(processes, key=lambda number: processes[number])

        await fresh(every)
        ours, first = await by_driver(one, every, pods)
        await fresh(every)
        theirs = await bare(one, every, best)
        await fresh(every)
        drained = await by_kubectl(one, every, pods, side_by_side)

        await one.budget()
        await fresh(some)
        await one.budget_allows(few * pods)
        budgeted, _ = await by_driver(one, some, pods)
        await fresh(some)
        await one.budget_allows(few * pods)
        asked = await by_kubectl(one, some, pods, side_by_side)
    what = f"{many} nodes with {pods} pods told"
    report.add(
        Result(
            what,
            ours,
            "s",
            f"the same calls, bare aiohttp, {best} in flight",
            theirs,
            aim=1.25,
            note=f"{many * pods / ours:,.0f} pods a second; {few} nodes by the peer: {_each(in_flight)}",
        )
    )
    report.add(
        Result(
            f"{what}, beside kubectl",
            ours,
            "s",
            f"kubectl drain, {side_by_side} processes",
            drained,
            aim=0.5,
            note=f"{many * pods / drained:,.0f} pods a second by kubectl; {few} nodes: {_each(processes)}",
        )
    )
    report.add(
        Result(
            f"{few} nodes with {pods} pods told under one budget",
            budgeted,
            "s",
            f"kubectl drain, {side_by_side} processes",
            asked,
            aim=0.2,
            note=f"{few * pods / budgeted:,.0f} pods a second, by kubectl {few * pods / asked:,.0f}",
        )
    )
    report.add(Result(f"first SIGTERM on the last of {many} nodes", first, "s"))


def _each(times: dict[int, float]) -> str:
    return ", ".join(f"{number}: {took:.1f} s" for number, took in times.items())


def main() -> int:
    given = options(__doc__)
    report = Report("mass_notice", given)
    asyncio.run(measure(given, report))
    report.settings["took_s"] = round(time.perf_counter() - _BEGAN)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
