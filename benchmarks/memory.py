"""Memory of `ebbtide up`: idle, and with 500 clusters.

    python benchmarks/memory.py [--quick] [--json FILE]

The whole of it in one process of its own, as `up` runs it: API, every loop, the simulated fleet, with its
embedded PostgreSQL beside it. Measured: the resident set (RSS) of the Python process when idle, and once 500
clusters with three nodes each have settled; and the PostgreSQL processes' proportional share (PSS), because
they share one buffer. The peer is a Python that has imported FastAPI, SQLAlchemy and psycopg and does
nothing.
Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from _common import Options, Report, Result, options

_FLEET = """
regions: {{bench-1: {{}}}}
pools:
  bench:
    region: bench-1
    gpu_type: H100_SXM
    boot_s: 1
    turn_over_s: 1
    hosts: {{count: {hosts}, name: "gpu-{{n:05}}"}}
"""
_BARE = "import fastapi, sqlalchemy.ext.asyncio, psycopg, sys; print('up', flush=True); sys.stdin.read()"


@contextmanager
def ebbtide(folder: Path, hosts: int) -> Iterator[tuple[int, httpx.Client, str]]:
    """`ebbtide up` over a fleet of so many hosts: process id, a client with its first key, its project."""
    fleet = folder / "fleet.yaml"
    fleet.write_text(_FLEET.format(hosts=hosts))
    data = folder / "data"
    program = "from ebbtide.cli.main import run; run()"
    command = [sys.executable, "-c", program, "up", "--port", "0", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--fleet", str(fleet)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        facts = connection(data / "connection.env")
        with httpx.Client(
            base_url=facts["TOGETHER_BASE_URL"].removesuffix("/v1"),
            headers={"Authorization": f"Bearer {facts['TOGETHER_API_KEY']}"},
            timeout=60,
        ) as client:
            yield process.pid, client, facts["TOGETHER_PROJECT_ID"]
    finally:
        process.terminate()
        process.wait(30)


def connection(file: Path) -> dict[str, str]:
    """The variables of the file that `up` writes, as soon as it has."""
    for _ in range(600):
        if file.exists() and "TOGETHER_PROJECT_ID" in file.read_text():
            lines = file.read_text().splitlines()
            pairs = [line.removeprefix("export ").split("=", 1) for line in lines if "=" in line]
            return {name: value.strip("'\"") for name, value in pairs}
        time.sleep(0.1)
    raise AssertionError("ebbtide up did not write its connection.env within a minute")


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def children(pid: int) -> list[int]:
    """Every process below this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(entry.parent.name)
            found += [child, *children(child)]
    return found


def pss_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def fill(client: httpx.Client, project_id: str, clusters: int, limit_s: float) -> None:
    """So many clusters of one standard and two preemptible nodes; wait until they settled."""
    for at in range(clusters):
        body = {
            "cluster_name": f"memory-{at}",
            "project_id": project_id,
            "region": "bench-1",
            "gpu_type": "H100_SXM",
            "num_gpus": 8,
            "num_preemptible_gpus": 16,
            "billing_type": "ON_DEMAND",
            "cluster_type": "KUBERNETES",
            "cuda_version": "12.8",
            "nvidia_driver_version": "570",
        }
        while (answer := client.post("/v1/compute/clusters", json=body)).status_code == 429:
            time.sleep(0.5)
        assert answer.status_code == 200, answer.text[:300]
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        listed = client.get("/v1/compute/clusters").json()["clusters"]
        if all(one["allocated_preemptible_gpus"] == 16 and one["status"] == "Ready" for one in listed):
            return
        time.sleep(2)
    raise AssertionError("the clusters did not settle")


def bare_mib() -> float:
    with subprocess.Popen(
        [sys.executable, "-c", _BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = rss_mib(process.pid)
        process.terminate()
    return used


def main() -> int:
    given: Options = options(__doc__)
    clusters = 3 if given.quick else 500
    report = Report("memory", given)
    bare = bare_mib()
    peer = "bare libraries"
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as folder,
        ebbtide(Path(folder), 3 * clusters + 8) as (pid, client, project_id),
    ):
        time.sleep(3)
        report.add(Result("ebbtide up, idle", rss_mib(pid), "MiB", peer, bare))
        fill(client, project_id, clusters, 60 + clusters)
        report.add(Result(f"ebbtide up with {clusters} clusters", rss_mib(pid), "MiB", peer, bare))
        shared = pss_mib(children(pid))
        if shared:
            report.add(Result(f"its PostgreSQL with {clusters} clusters (PSS)", shared, "MiB"))
    return report.end()


if __name__ == "__main__":
    if not os.path.isdir("/proc/self"):
        sys.exit("this benchmark reads /proc, which this system does not have")
    sys.exit(main())
