"""One process of the benchmark `watcher`: watch, print the peak of its memory, end.

python benchmarks/_watching.py nothing|watcher|whole PORT LAST_NODE
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from contextlib import aclosing
from pathlib import Path

import structlog

from ebbtide.drivers.base import ClusterRef
from ebbtide.drivers.kubernetes.watcher import KubernetesWatcher
from ebbtide.kube.client import Clients, KubeClient, Object

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def kubeconfig(port: int) -> str:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": ""}}
    config = {"kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "x"}
    return json.dumps(config)


async def watcher(port: int, last: str) -> None:
    """Ours, until something is told of the last node after all were told of."""
    clients = Clients()
    async with aclosing(
        KubernetesWatcher(clients).changes(ClusterRef("c", "bench", kubeconfig(port)))
    ) as all_told:
        everybody = 0
        async for uids in all_told:
            if uids == {last} and everybody:
                break
            everybody = max(everybody, len(uids))
    await clients.close()


async def whole(port: int, _last: str) -> None:
    """Every object as it came."""
    client = KubeClient(kubeconfig(port))
    kept: dict[str, Object] = {}
    for path in ("/api/v1/nodes", "/api/v1/pods"):
        listed = await client.list(path)
        kept |= {each["metadata"]["uid"]: each for each in listed.items}
    async with aclosing(client.watch("/api/v1/pods", resource_version="1000")) as events:
        async for event in events:
            if event.kind == "DELETED":
                break
            kept[event.object["metadata"]["uid"]] = event.object
    await client.close()


def main() -> None:
    what, port, last = sys.argv[1:]
    if what != "nothing":
        asyncio.run((watcher if what == "watcher" else whole)(int(port), last))
    print(peak_mib())


def peak_mib() -> float:
    """The largest resident set so far. Where it can be told, without that of the process which started us."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
