"""A month of a pool of 1,000 hosts with 50 clusters, simulated: how much faster than real time is it?

    python benchmarks/simulated_month.py [--quick] [--json FILE]

The whole system runs on a manual clock: services, every loop, the store on a real PostgreSQL, and the
simulated fleet. Standard demand follows the busy nodes of a public trace (Philly, see traces/README.md),
scaled to the pool and read every `--grid` minutes; the clusters share it evenly and scale their standard
nodes accordingly. Every cluster also wants preemptible nodes, more together than there ever are, and runs as
many pods as it wants nodes: half of them end 30 s after SIGTERM, half of them take 4 minutes. The limit
beside the result is ten minutes for thirty days.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import csv
import gzip
import pstats
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from _common import (
    GPU_TYPE,
    GPUS_PER_HOST,
    HERE,
    REGION,
    Options,
    Report,
    Result,
    database,
    fleet,
    peak_rss_mib,
)

from ebbtide.errors import Conflict
from ebbtide.playground.behaviours import Obeys
from ebbtide.playground.facts import What
from ebbtide.services.details import Caller, ClusterChange, ClusterOrder, Replay, Role
from ebbtide.settings import Settings, from_environment, variable
from ebbtide.simulation import Simulation

TRACE = HERE / "traces" / "philly_2017_active_nodes_10min.csv.gz"
TRACE_HOSTS = 420
FIRST_MINUTE = 47_640  # from here on the trace has no holes for longer than a month
LIMIT_S_A_DAY = 600 / 30


@dataclass(frozen=True, slots=True)
class Size:
    hosts: int
    clusters: int
    minutes: int
    grid: int


@dataclass(slots=True)
class Month:
    """What happened and what it took. steps: the standard hosts wanted, one figure per grid step."""

    sim: Simulation
    size: Size
    steps: list[int]
    counts: Counter[str] = field(default_factory=Counter)
    members: dict[str, Caller] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    async def open(self) -> None:
        """Make the clusters, each with a target and its pods, meet the first demand, and let them settle."""
        await self.sim.begin(fleet(self.size.hosts, blocks=10))
        clusters = self.sim.system.services.clusters
        for at in range(self.size.clusters):
            caller = await self.sim.caller(f"tenant-{at % 10}", Role.MEMBER)
            target = self.size.hosts // self.size.clusters
            order = ClusterOrder(
                f"month-{at}",
                REGION,
                GPU_TYPE,
                GPUS_PER_HOST,
                num_preemptible_gpus=target * GPUS_PER_HOST,
            )
            made = await clusters.create(caller, order, Replay(f"month-{at}"))
            self.members[made.id], self.held[made.id] = caller, 1
        await self.sim.run_for(600)
        for cluster_id in self.members:
            for name, exits_s in (("quick", 30.0), ("slow", 240.0)):
                self.sim.world.run_pods(
                    cluster_id,
                    count=(self.size.hosts // self.size.clusters + 1) // 2,
                    behaviour=Obeys(exits_s),
                    grace_s=300,
                    name=name,
                    gpus=GPUS_PER_HOST,
                    on="preemptible",
                    reschedule=True,
                )
        await self._scale(self.steps[0])
        await self.sim.run_for(900)
        self.counts.clear()

    async def play(self) -> None:
        """Follow the demand through the month."""
        started = self.sim.now
        for step, wanted in enumerate(self.steps):
            self.counts["visits"] += await self.sim.run_until(
                started + timedelta(minutes=step * self.size.grid)
            )
            await self._scale(wanted)
        self.counts["visits"] += await self.sim.run_until(started + timedelta(minutes=self.size.minutes))

    async def _scale(self, wanted: int) -> None:
        each, rest = divmod(wanted, len(self.held))
        for at, (cluster_id, had) in enumerate(self.held.items()):
            standard = max(1, each + (at < rest))
            if standard == had:
                continue
            change = ClusterChange(num_gpus=standard * GPUS_PER_HOST)
            try:
                await self.sim.system.services.clusters.update(self.members[cluster_id], cluster_id, change)
            except Conflict:
                self.counts["refused"] += 1
                continue
            self.held[cluster_id] = standard
            self.counts["updates"] += 1
            self.counts["standard hosts given"] += max(0, standard - had)


def demand(size: Size) -> list[int]:
    """Standard hosts wanted at each grid step: the trace's largest value in it, scaled to the pool."""
    with gzip.open(TRACE, "rt") as lines:
        rows = [(int(row["minute"]), int(row["active_nodes_max"])) for row in csv.DictReader(lines)]
    steps = [0] * (size.minutes // size.grid)
    for minute, active in rows:
        at = (minute - FIRST_MINUTE) // size.grid
        if 0 <= at < len(steps):
            steps[at] = max(steps[at], active * size.hosts // TRACE_HOSTS)
    return steps


async def run(size: Size, settings: Settings, report: Report, profile: Path | None) -> None:
    with database(durable=False) as url:
        sim = Simulation(url, settings=settings, seed=7, inline=True)
        month = Month(sim, size, demand(size))
        await month.open()
        recorder = cProfile.Profile(time.process_time) if profile else None
        began = time.perf_counter()
        if recorder:
            recorder.enable()
        await month.play()
        if recorder:
            recorder.disable()
        took_s = time.perf_counter() - began
        if recorder and profile:
            with profile.open("w") as out:
                pstats.Stats(recorder, stream=out).sort_stats("tottime").print_stats(60)
        await _report(month, took_s, report)
        await sim.system.close()


async def _report(month: Month, took_s: float, report: Report) -> None:
    sim, size = month.sim, month.size
    days, visits = size.minutes / 1440, month.counts["visits"]
    assert not sim.world.violations, sim.world.violations[:3]
    told = Counter(fact.what for fact in sim.world.facts())
    lived = (
        ", ".join(f"{count:,} {what}" for what, count in month.counts.items() if what != "visits")
        or "no change"
    )
    report.add(
        Result(
            f"{days:g} days of {size.hosts:,} hosts, {size.clusters} clusters",
            took_s,
            "s",
            "ten minutes for thirty days",
            LIMIT_S_A_DAY * days,
            aim=1.0,
            note=f"{lived}; of the last facts: {told[What.NOTICE]:,} notices, {told[What.UP]:,} boots",
        )
    )
    report.add(Result("simulated seconds per second", size.minutes * 60 / took_s, "s"))
    report.add(Result("visits per second", visits / took_s, "", note=f"{visits:,} visits"))
    report.add(Result("peak memory of the process", peak_rss_mib(), "MiB"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--grid", type=int, default=60, help="minutes between two readings of the trace")
    parser.add_argument("--profile", type=Path, help="write where the time went")
    given = parser.parse_args()
    size = Size(1000, 50, int(given.days * 1440), given.grid)
    if given.quick:
        size = Size(100, 5, 240, 30)
    # Whatever changes in the simulated world makes its cluster due at once, so that regular looks only seal
    # the bill and find what was forgotten: they may be as rare as this without anything coming later.
    different = {
        "observe_every_s": 600,
        "lost_after_s": 1200,
        "fill_every_s": 600,
        "meter_every_s": 600,
        "leaks_every_s": 600,
        "drain_look_every_s": 60,
    }
    settings = from_environment({variable(name): str(value) for name, value in different.items()})
    report = Report("simulated_month", Options(given.quick, given.json))
    report.settings = {
        "demand": f"Philly 2017, busy nodes of {TRACE_HOSTS} scaled to the pool, every {size.grid} minutes",
        "settings that differ": ", ".join(f"{name}={value}" for name, value in different.items()),
    }
    asyncio.run(run(size, settings, report, given.profile))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
