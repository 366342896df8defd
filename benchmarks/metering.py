"""What a minute of metering costs as running nodes grow, and what an hour's minute records cost to derive.

    python benchmarks/metering.py [--quick] [--json FILE]

Billing keeps one open interval for each running node and day, and seals time by observation: a minute in
which nothing changes writes one row for each cluster, not one for each node. Measured, with 1,000, 10,000
and 100,000 running nodes in 50 clusters: one visit of the meter plus the statement that seals the time of
every cluster. A cost that followed the nodes would grow tenfold from line to line.

Then one hour of minute records (60 for each node), derived from intervals in Python as every sink gets them,
beside PostgreSQL's COPY of the same rows into an unlogged table without indexes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from _common import POOL, REGION, Options, Report, Result, database, fleet, median, options

from ebbtide import assembly
from ebbtide.clock import ManualClock
from ebbtide.core.metering import DAY_S, Interval, MinuteRow, epoch_s, minute_rows
from ebbtide.core.nodes import ComputeClass
from ebbtide.services.details import Role
from ebbtide.settings import Settings
from ebbtide.store import clusters
from ebbtide.store.visits import Loop

CLUSTERS = 50
_TABLES = (
    "clusters",
    "nodes",
    "hosts",
    "intervals",
    "phase_transitions",
    "lifecycle_events",
    "ledger_entries",
)
_FILL = """
INSERT INTO clusters (id, project_id, name, region, pool, gpu_type, billing_type, cluster_type,
     cuda_version, nvidia_driver_version, node_group, gpus_per_host, standard_hosts, target_hosts,
     phase, control_plane_ready, observed_until, created_at) SELECT 'cluster-' || at, %(project)s,
     'c' || at, %(region)s, %(pool)s, 'G', 'ON_DEMAND', 'KUBERNETES', '12.8', '570', 'bench', 8, 1,
     20, 'READY', true, %(now)s, %(now)s FROM generate_series(0, %(clusters)s - 1) AS at;
INSERT INTO nodes (uid, name, cluster_id, project_id, pool, host_id, compute_class, gpus, phase,
     phase_since, created_at, running_at) SELECT 'node-' || row, 'node-' || row, 'cluster-' || (row
     %% %(clusters)s), %(project)s, %(pool)s, id, 'preemptible', 8, 'RUNNING', %(now)s, %(now)s,
     %(now)s FROM (SELECT id, row_number() OVER (ORDER BY name) AS row FROM hosts) AS h;
UPDATE hosts h SET node_uid = n.uid FROM nodes n WHERE n.host_id = h.id;
INSERT INTO intervals (node_no, node_uid, cluster_id, project_id, pool, compute_class, gpus,
     start_s) SELECT no, uid, cluster_id, project_id, pool, compute_class, gpus, %(start_s)s FROM
     nodes;
ANALYZE
"""


@dataclass(frozen=True, slots=True)
class Minute:
    """Median milliseconds of one quiet minute and rows written in it."""

    took_ms: float
    rows: int


async def quiet_minutes(nodes: int, rounds: int) -> Minute:
    with database() as url:
        clock = ManualClock()
        system = assembly.build(Settings(), url, clock=clock, alone=True)
        await system.apply_fleet(fleet(nodes))
        key = await system.first_key(Role.MEMBER, "bench", "Bench")
        await fill(url, key.details.project_id, clock)
        await system.begin()
        ids = [f"cluster-{at}" for at in range(CLUSTERS)]
        took = []
        before = 0
        for _ in range(rounds + 1):
            before = await transaction_number(url)
            clock.advance(60)
            began = time.perf_counter()
            assert await system.runner.step(Loop.METERING)
            async with system.db.transaction() as tx:
                await clusters.mark_observed(tx, dict.fromkeys(ids, clock.now()))
            took.append((time.perf_counter() - began) * 1000)
        await system.close()
        return Minute(median(took[1:]), await written_since(url, before))  # the first one warms up


async def fill(url: str, project_id: str, clock: ManualClock) -> None:
    """On every host a running node, billed since now."""
    values = {
        "project": project_id,
        "region": REGION,
        "pool": POOL,
        "now": clock.now(),
        "start_s": epoch_s(clock.now()),
        "clusters": CLUSTERS,
    }
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        for statement in _FILL.split(";"):
            await conn.execute(statement.encode(), values if "%" in statement else None)


async def number(url: str, query: str) -> int:
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        row = await (await conn.execute(query.encode())).fetchone()
        assert row is not None
        return int(row[0])


async def transaction_number(url: str) -> int:
    return await number(url, "SELECT pg_current_xact_id()::text::bigint")


async def written_since(url: str, transaction: int) -> int:
    """Rows of the fleet's and the bill's tables that were written after that transaction."""
    counts = [f"(SELECT count(*) FROM {table} WHERE xmin::text::bigint > {transaction})" for table in _TABLES]
    return await number(url, "SELECT " + " + ".join(counts))


def hour(nodes: int) -> tuple[list[tuple[Interval, int]], int]:
    """Open intervals of so many nodes that began before an hour, sealed beyond it; and the hour's start."""
    start_s = 20_000 * DAY_S
    found = [
        Interval(
            at,
            f"{at:08x}-0000-4000-8000-000000000000",
            f"{at % 500:08x}-1111-4000-8000-000000000000",
            "00000000-2222-4000-8000-000000000000",
            POOL,
            ComputeClass.PREEMPTIBLE,
            8,
            start_s - at % 3600,
        )
        for at in range(nodes)
    ]
    return [(one, start_s + 2 * 3600) for one in found], start_s


def derive(nodes: int, rounds: int) -> tuple[float, int]:
    """Median seconds to derive an hour of records (each looked at, none kept), and how many there are."""
    sealed, start_s = hour(nodes)
    took, count = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        count = sum(1 for _ in minute_rows(sealed, start_s, start_s + 3600))
        took.append(time.perf_counter() - began)
    return median(took), count


def copy_in(nodes: int, rounds: int) -> float:
    """Median seconds of COPY of the same rows, sent as text that is ready beforehand."""
    sealed, start_s = hour(nodes)
    text = [chunk.encode() for chunk in _chunks(minute_rows(sealed, start_s, start_s + 3600))]
    took = []
    with database() as url, psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute(
            "CREATE UNLOGGED TABLE records (id text, node_uid text, cluster_id text, project_id text,"
            " pool text, compute_class text, start_s bigint, end_s bigint, gpu_seconds bigint)"
        )
        for _ in range(rounds):
            conn.execute("TRUNCATE records")
            began = time.perf_counter()
            with conn.cursor().copy("COPY records FROM STDIN") as copy:
                for chunk in text:
                    copy.write(chunk)
            took.append(time.perf_counter() - began)
    return median(took)


def _chunks(rows: Iterator[MinuteRow]) -> Iterator[str]:
    lines: list[str] = []
    for row in rows:
        lines.append("\t".join(map(str, row)))
        if len(lines) == 2000:
            yield "\n".join(lines) + "\n"
            lines.clear()
    if lines:
        yield "\n".join(lines) + "\n"


def main() -> int:
    given: Options = options(__doc__)
    report = Report("metering", given)
    fleets = (100, 400) if given.quick else (1_000, 10_000, 100_000)
    rounds = 3 if given.quick else 7
    minutes = {nodes: asyncio.run(quiet_minutes(nodes, rounds)) for nodes in fleets}
    smallest = minutes[fleets[0]]
    for nodes, minute in minutes.items():
        note = f"{minute.rows:,} rows written a minute, for {CLUSTERS} clusters"
        report.add(
            Result(
                f"a quiet minute of {nodes:,} running nodes",
                minute.took_ms,
                "ms",
                f"of {fleets[0]:,} nodes",
                smallest.took_ms,
                note=note,
            )
        )
    nodes = 1_000 if given.quick else 10_000
    derived_s, count = derive(nodes, rounds)
    report.add(
        Result(
            f"an hour's {count:,} minute records",
            derived_s,
            "s",
            "COPY of the same rows in",
            copy_in(nodes, rounds),
            aim=2.0,
            note=f"{count / derived_s:,.0f} records a second",
        )
    )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
