"""200 standard creates at once through HTTP, on 12,500 hosts with 500 clusters already there.

    python benchmarks/creates.py [--quick] [--json FILE]

A tenant's create is decided inside the request: its hosts are promised, or it is refused. So 200 of them wait
for the same pool's lock. Three rounds on the same fleet, durable PostgreSQL, 200 at once in each:

- the bare transaction: lock the pool, take a host, insert cluster, claim, node and history; psycopg alone
- HTTP: uvicorn on loopback in a process of its own; a client in this process with 200 open connections
- the same service call without HTTP, in this process

Hosts beyond two and a half rounds are cordoned before, so that the last round also shows that exactly the
capacity is granted.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection

import httpx
import psycopg
import uvicorn
from _common import (
    GPU_TYPE,
    GPUS_PER_HOST,
    POOL,
    REGION,
    Options,
    Report,
    Result,
    database,
    fleet,
    options,
    percentile,
)

from ebbtide import assembly
from ebbtide.api import server
from ebbtide.errors import Conflict
from ebbtide.ids import SystemIds
from ebbtide.services.details import Caller, ClusterOrder, Replay, Role
from ebbtide.settings import Settings


@dataclass(frozen=True, slots=True)
class Size:
    hosts: int
    clusters: int
    creates: int


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of each create, and how many were granted."""

    took_s: Sequence[float]
    granted: int


def serve(url: str, port: Connection, keys: Sequence[str] = ()) -> None:
    """The API in a process of its own; ends with its parent."""
    system = assembly.build(Settings(), url, secret_keys=keys)
    listener = server.bind("127.0.0.1", 0)
    port.send(listener.getsockname()[1])
    uvicorn.Server(server.config(system.app(), "127.0.0.1", 0)).run([listener])


async def at_once(creates: int, create: Callable[[int], Awaitable[bool]]) -> Round:
    took: list[float] = []

    async def one(number: int) -> bool:
        began = time.perf_counter()
        granted = await create(number)
        took.append(time.perf_counter() - began)
        return granted

    granted = await asyncio.gather(*(one(number) for number in range(creates)))
    return Round(took, sum(granted))


_numbers = count()


def order(gpus: int = GPUS_PER_HOST, target: int = 0) -> ClusterOrder:
    return ClusterOrder(f"bench-{next(_numbers)}", REGION, GPU_TYPE, gpus, num_preemptible_gpus=target)


async def through_http(port: int, secret: str, creates: int) -> Round:
    limits = httpx.Limits(max_connections=creates, max_keepalive_connections=creates)
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", limits=limits, headers=headers, timeout=120
    ) as client:
        # Connections are opened first: a client's are, too.
        await asyncio.gather(*(client.get("/healthz") for _ in range(creates)))

        async def create(number: int) -> bool:
            asked = order()
            body = {
                "cluster_name": asked.cluster_name,
                "region": REGION,
                "gpu_type": GPU_TYPE,
                "num_gpus": asked.num_gpus,
                "billing_type": "ON_DEMAND",
                "cluster_type": "KUBERNETES",
                "cuda_version": "12.8",
                "nvidia_driver_version": "570",
            }
            answer = await client.post("/v1/compute/clusters", content=json.dumps(body))
            if answer.status_code not in (200, 409):
                raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")
            return answer.status_code == 200

        return await at_once(creates, create)


async def through_service(system: assembly.System, caller: Caller, creates: int) -> Round:
    async def create(number: int) -> bool:
        asked = order()
        try:
            await system.services.clusters.create(caller, asked, Replay(asked.cluster_name))
        except Conflict:
            return False
        return True

    return await at_once(creates, create)


_BARE = """
UPDATE pools SET generation = generation + 1 WHERE name = %(pool)s;
SELECT count(*) FROM hosts WHERE pool = %(pool)s AND state = 'available' AND node_uid IS NULL;
INSERT INTO clusters (id, project_id, name, region, pool, gpu_type, billing_type, cluster_type,
     cuda_version, nvidia_driver_version, node_group, gpus_per_host, standard_hosts, target_hosts,
     phase, created_at) VALUES (%(cluster)s, %(project)s, %(cluster)s, %(region)s, %(pool)s, 'G',
     'ON_DEMAND', 'KUBERNETES', '12.8', '570', 'bench', 8, 1, 0, 'WAITING_FOR_CONTROL_PLANE_NODES',
     now());
INSERT INTO claims (id, kind, pool, cluster_id, for_whom, hosts, state, created_at) VALUES
     (%(claim)s, 'standard', %(pool)s, %(cluster)s, 'bench', 1, 'open', now());
UPDATE hosts SET node_uid = %(node)s WHERE id = (SELECT id FROM hosts WHERE pool = %(pool)s AND
     state = 'available' AND node_uid IS NULL ORDER BY fabric_block, name LIMIT 1);
INSERT INTO nodes (uid, name, cluster_id, project_id, pool, claim_id, host_id, compute_class,
     gpus, phase, phase_since, created_at) SELECT %(node)s, %(node)s, %(cluster)s, %(project)s,
     %(pool)s, %(claim)s, id, 'standard', 8, 'SCHEDULING', now(), now() FROM hosts WHERE node_uid =
     %(node)s;
INSERT INTO phase_transitions (node_uid, cluster_id, phase, at) VALUES (%(node)s, %(cluster)s,
     'PENDING', now()), (%(node)s, %(cluster)s, 'SCHEDULING', now())
"""


async def bare(url: str, project_id: str, creates: int, connections: int = 20) -> Round:
    """The same rows by hand. As many connections as the service has, shared by all creates."""
    ids = SystemIds()
    plain = url.replace("+psycopg", "")
    opened = [await psycopg.AsyncConnection.connect(plain, prepare_threshold=1) for _ in range(connections)]
    free: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
    for one in opened:
        free.put_nowait(one)

    async def create(number: int) -> bool:
        conn = await free.get()
        values = {
            "pool": POOL,
            "region": REGION,
            "project": project_id,
            "cluster": ids.uuid4(),
            "claim": ids.uuid4(),
            "node": ids.uuid4(),
        }
        async with conn.transaction():
            for statement in _BARE.split(";"):
                await conn.execute(statement, values)
        free.put_nowait(conn)
        return True

    answer = await at_once(creates, create)
    for one in opened:
        await one.close()
    return answer


async def fill(system: assembly.System, url: str, caller: Caller, size: Size) -> None:
    """500 clusters that are there, and hosts for about two and a half rounds."""
    await system.apply_fleet(fleet(size.hosts, blocks=25))
    for _ in range(size.clusters):
        asked = order(2 * GPUS_PER_HOST, 8 * GPUS_PER_HOST)
        await system.services.clusters.create(caller, asked, Replay(asked.cluster_name))
    left = 2 * size.creates + size.creates // 2
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", "")) as conn:
        await conn.execute(
            "UPDATE hosts SET state = 'cordoned' WHERE id IN (SELECT id FROM hosts WHERE node_uid IS NULL"
            " ORDER BY name OFFSET %s)",
            [left],
        )
        await conn.execute("VACUUM ANALYZE" if conn.autocommit else "ANALYZE")


async def run(size: Size, report: Report) -> None:
    with database() as url:
        system = assembly.build(Settings(), url, alone=True)
        key = await system.first_key(Role.MEMBER, "bench", "Bench")
        caller = await system.services.access.authenticate(key.secret)
        await fill(system, url, caller, size)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(url, theirs), daemon=True)
        process.start()
        try:
            port = await asyncio.to_thread(ours.recv)
            by_hand = await bare(url, caller.project_id, size.creates)
            served = await through_http(port, key.secret, size.creates)
            plain = await through_service(system, caller, size.creates)
        finally:
            process.terminate()
            process.join()
            await system.close()
    expected = size.creates // 2
    assert (served.granted, plain.granted) == (size.creates, expected), "exactly the capacity is granted"
    _report(report, size, served, plain, by_hand)


def _report(report: Report, size: Size, served: Round, plain: Round, by_hand: Round) -> None:
    at_once = f"{size.creates} creates at once"
    for percent in (50, 99):
        bare_ms = percentile(by_hand.took_s, percent) * 1000
        for name, one in (("through HTTP", served), ("service call", plain)):
            report.add(
                Result(
                    f"p{percent} of {at_once}, {name}",
                    percentile(one.took_s, percent) * 1000,
                    "ms",
                    "bare transaction",
                    bare_ms,
                )
            )
    report.add(
        Result(
            f"granted with capacity for {size.creates // 2} of {size.creates}",
            plain.granted,
            "",
            "capacity",
            size.creates // 2,
            aim=1.0,
        )
    )


def main() -> int:
    given: Options = options(__doc__)
    size = Size(200, 5, 20) if given.quick else Size(12_500, 500, 200)
    report = Report("creates", given)
    report.settings = {"hosts": size.hosts, "clusters there": size.clusters, "PostgreSQL": "durable"}
    asyncio.run(run(size, report))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
