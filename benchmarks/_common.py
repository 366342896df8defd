"""What every benchmark shares: its options, a private PostgreSQL, and a report as table and JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from ebbtide import assembly
from ebbtide.services.fleet_file import FleetFile, PoolSpec, RegionSpec, parse
from ebbtide.services.fleet_hosts import HostSpec

# Neither the table nor a served request should wait for log lines; a server in production writes "info".
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

HERE = Path(__file__).resolve().parent
GPUS_PER_HOST = 8
REGION, POOL, GPU_TYPE = "bench-1", "bench-h100", "H100_SXM"


@dataclass(frozen=True, slots=True)
class Options:
    """quick: small sizes, for CI: the same steps, the numbers mean little."""

    quick: bool
    json: Path | None


def options(about: str | None) -> Options:
    """Read `--quick` and `--json PATH`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it still run?")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args()
    return Options(given.quick, given.json)


@dataclass(frozen=True, slots=True)
class Result:
    """One line: what was measured, and beside it the same work done by a peer or allowed by a limit.

    ratio: value / peer, where there is a peer
    aim:   what the ratio (or, without a peer, the value) should not exceed; None where none was set
    """

    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    aim: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.peer_value if self.peer_value else None

    @property
    def met(self) -> bool | None:
        judged = self.value if self.ratio is None else self.ratio
        return None if self.aim is None else judged <= self.aim


@dataclass(slots=True)
class Report:
    """Collects results; `end` prints them and writes the JSON file. A missed aim is said, no failure."""

    name: str
    given: Options
    settings: dict[str, object] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.results.append(result)

    def end(self) -> int:
        """Print and write everything; the exit status."""
        warning = " (quick: numbers mean little)" if self.given.quick else ""
        print(f"{self.name}{warning} on {_machine_line()}")
        for key, value in self.settings.items():
            print(f"  {key}: {value}")
        header = ("what", "value", "peer", "its value", "ratio", "aim")
        rows = [header, *(_cells(result) for result in self.results)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(header))]
        for row in rows:
            left = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(left).rstrip())
        for result in self.results:
            if result.note:
                print(f"  {result.what}: {result.note}")
        if self.given.json:
            self.given.json.parent.mkdir(parents=True, exist_ok=True)
            self.given.json.write_text(json.dumps(self._as_json(), indent=1) + "\n")
        return 0

    def _as_json(self) -> dict[str, object]:
        return {
            "benchmark": self.name,
            "quick": self.given.quick,
            "machine": machine(),
            "settings": self.settings,
            "results": [
                {
                    "what": one.what,
                    "value": one.value,
                    "unit": one.unit,
                    "peer": one.peer,
                    "peer_value": one.peer_value,
                    "ratio": one.ratio,
                    "aim": one.aim,
                    "met": one.met,
                    "note": one.note,
                }
                for one in self.results
            ],
        }


def _cells(result: Result) -> tuple[str, ...]:
    ratio, met = result.ratio, result.met
    judged = "" if result.aim is None else f"<= {_number(result.aim)}: {'met' if met else 'MISSED'}"
    return (
        result.what,
        f"{_number(result.value)} {result.unit}",
        result.peer,
        "" if result.peer_value is None else f"{_number(result.peer_value)} {result.unit}",
        "" if ratio is None else f"{_number(ratio)}x",
        judged,
    )


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def machine() -> dict[str, object]:
    """The machine, as far as it matters for reading the numbers."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(gib),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _machine_line() -> str:
    facts = machine()
    return (
        f"{facts['cpus']} cores, {facts['memory_gib']} GiB, {facts['system']}, Python {facts['python']}, "
        f"load {facts['load_before']}"
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@contextmanager
def database(*, durable: bool = True) -> Iterator[str]:
    """The URL of a fresh, migrated database on a private server that ends with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as folder,
        assembly.embedded_database(Path(folder), durable=durable) as server,
    ):
        assembly.prepare_database(server.url)
        yield server.url


def fleet(hosts: int, *, blocks: int = 8, boot_s: int = 30, turn_over_s: int = 20) -> FleetFile:
    """One region and one pool of so many hosts in fabric blocks of equal size."""
    drivers = parse("regions: {r: {}}\npools: {p: {region: r, gpu_type: G, blocks: {b: 1}}}")
    named = tuple(HostSpec(f"gpu-{at:06}", f"b{at % blocks}") for at in range(hosts))
    pool = PoolSpec(
        POOL,
        REGION,
        GPU_TYPE,
        GPUS_PER_HOST,
        2_000_000,
        boot_s=boot_s,
        turn_over_s=turn_over_s,
        hosts=named,
    )
    return FleetFile((RegionSpec(REGION, drivers.regions[0].driver_versions),), (pool,))


def peak_rss_mib() -> float:
    """The largest resident set of this process so far, in MiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 2**20
