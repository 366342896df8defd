"""Reading clusters through the real server, beside the same queries with plain `json.dumps`.

    python benchmarks/api_reads.py [--quick] [--json FILE]

1,000 clusters of two nodes each, on a simulated fleet that settled. The server runs in a process of its own,
as `ebbtide serve` does; requests come one at a time over an open connection on loopback. Two peers run the
same SQL statements, recorded while the service reads, on one plain psycopg connection, and answer with
`json.dumps` of their rows: one behind a bare function under the same web server (its ratio is judged, the aim
is 2), one without any HTTP in this process (in the notes).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import httpx
import psycopg
import sqlalchemy as sa
import uvicorn
from _common import GPU_TYPE, GPUS_PER_HOST, REGION, Options, Report, Result, database, fleet, median, options
from creates import serve
from psycopg.rows import dict_row

from ebbtide import assembly
from ebbtide.api import server
from ebbtide.services.details import ClusterOrder, Replay, Role
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation
from ebbtide.store.seal import Sealer, new_key

Statement = tuple[str, Any]
KEY = new_key()  # what kubeconfigs are sealed with


async def fill(url: str, clusters: int) -> tuple[str, str]:
    """Clusters that settled; an API key's secret, and one of the ids."""
    sim = Simulation(url, inline=True)
    await sim.begin(fleet(2 * clusters + 8, blocks=20))
    key = await sim.system.first_key(Role.MEMBER, "bench", "Bench")
    caller = await sim.system.services.access.authenticate(key.secret)
    one = ""
    for at in range(clusters):
        order = ClusterOrder(
            f"reads-{at}", REGION, GPU_TYPE, GPUS_PER_HOST, num_preemptible_gpus=GPUS_PER_HOST
        )
        one = (await sim.system.services.clusters.create(caller, order, Replay(f"reads-{at}"))).id
    await sim.run_for(120)
    settled = await sim.system.services.clusters.retrieve(caller, one)
    assert settled.phase == "READY", settled.phase
    await sim.system.close()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        sealed = Sealer([KEY]).seal("a kubeconfig of about two thousand characters\n" * 43)
        conn.execute("UPDATE clusters SET kubeconfig = %s", [sealed])
        conn.execute("VACUUM ANALYZE")
    return key.secret, one


async def recorded(url: str, secret: str, cluster_id: str) -> tuple[list[Statement], list[Statement]]:
    """The statements that the service runs for a list and for one cluster, the key's check included."""
    system = assembly.build(Settings(), url, alone=True, secret_keys=[KEY])
    heard: list[Statement] = []

    def hear(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        heard.append((statement, parameters))

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", hear)
    try:
        caller = await system.services.access.authenticate(secret)
        await system.services.clusters.list(caller)
        whole, heard[:] = list(heard), []
        caller = await system.services.access.authenticate(secret)
        await system.services.clusters.retrieve(caller, cluster_id)
        return whole, list(heard)
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", hear)
        await system.close()


def serve_plainly(url: str, port: Connection, statements: dict[str, list[Statement]]) -> None:
    """The peer behind HTTP: no framework, no checks, rows as they come."""
    opened: list[psycopg.AsyncConnection[Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if not opened:
            opened.append(
                await psycopg.AsyncConnection.connect(url, row_factory=dict_row, prepare_threshold=1)
            )
        async with opened[0].transaction():
            rows = []
            for sql, parameters in statements[scope["path"]]:
                cursor = await opened[0].execute(sql.encode(), parameters)
                rows.append(await cursor.fetchall() if cursor.description else [])
        body = json.dumps(rows, default=str).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    listener = server.bind("127.0.0.1", 0)
    port.send(listener.getsockname()[1])
    config = uvicorn.Config(app, access_log=False, log_config=None, lifespan="off")
    uvicorn.Server(config).run([listener])


def plainly(conn: psycopg.Connection[Any], statements: list[Statement]) -> int:
    """The peer without HTTP; answers the size of its JSON."""
    with conn.transaction():
        cursors = [conn.execute(sql.encode(), parameters) for sql, parameters in statements]
        rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    return len(json.dumps(rows, default=str))


def in_turn(works: Sequence[Callable[[], int]], rounds: int) -> list[tuple[float, int]]:
    """Median milliseconds and bytes of each; in turn, so that all meet the same machine."""
    took: list[list[float]] = [[] for _ in works]
    sizes = [0] * len(works)
    for _ in range(rounds + 1):
        for at, work in enumerate(works):
            began = time.perf_counter()
            sizes[at] = work()
            took[at].append((time.perf_counter() - began) * 1000)
    return [(median(one[1:]), size) for one, size in zip(took, sizes, strict=True)]


def measure(
    report: Report,
    url: str,
    ports: Sequence[int],
    secret: str,
    asked: dict[str, list[Statement]],
    rounds: int,
) -> None:
    headers = {"Authorization": f"Bearer {secret}"}
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", headers=headers, timeout=120) as client,
        httpx.Client(base_url=f"http://127.0.0.1:{ports[1]}", timeout=120) as bare,
        psycopg.connect(url, row_factory=dict_row, prepare_threshold=1) as conn,
    ):
        for path, statements in asked.items():
            whole = path.endswith("clusters")
            (served, size), (peer, peer_size), (inside, _) = in_turn(
                (
                    partial(get, client, path),
                    partial(get, bare, path),
                    partial(plainly, conn, statements),
                ),
                rounds if whole else rounds * 20,
            )
            note = (
                f"{size:,} bytes beside {peer_size:,}; {len(statements)} statements; "
                f"without any HTTP the queries and json.dumps took {inside:.3g} ms"
            )
            what = "list of all clusters" if whole else "one cluster"
            report.add(Result(what, served, "ms", "queries + json.dumps, bare HTTP", peer, 2.0, note))


def get(client: httpx.Client, path: str) -> int:
    answer = client.get(path)
    answer.raise_for_status()
    return len(answer.content)


def main() -> int:
    given: Options = options(__doc__)
    size, rounds = (30, 3) if given.quick else (1_000, 11)
    report = Report("api_reads", given, {"clusters": size})
    context = multiprocessing.get_context("spawn")
    with database() as url:
        plain = url.replace("+psycopg", "")
        secret, cluster_id = asyncio.run(fill(url, size))
        whole, one = asyncio.run(recorded(url, secret, cluster_id))
        asked = {"/v1/compute/clusters": whole, f"/v1/compute/clusters/{cluster_id}": one}
        ours, theirs = context.Pipe()
        servers = [
            context.Process(target=serve, args=(url, theirs, [KEY]), daemon=True),
            context.Process(target=serve_plainly, args=(plain, theirs, asked), daemon=True),
        ]
        ports = []
        try:
            for one_server in servers:
                one_server.start()
                ports.append(ours.recv())
            measure(report, plain, ports, secret, asked, rounds)
        finally:
            for one_server in servers:
                one_server.terminate()
                one_server.join()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
