"""What watching a cluster of 300 nodes with 4,500 pods takes of memory.

    python benchmarks/watcher.py [--quick] [--json FILE]

In a process of its own, which reads from a server in another (`_mock_api.py`): everything listed, then one
change of each pod. Beside it a process that does the same and keeps the objects whole, as a cache of a
cluster does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from _common import Options, Report, Result, options
from _mock_api import names
from driver_alone import mock

LIMIT_S = 120


def peak_mib(what: str, port: int, nodes: int) -> float:
    """The peak of a process that watches so."""
    program = Path(__file__).with_name("_watching.py")
    command = [sys.executable, str(program), what, str(port), names(nodes)[-1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return float(done.stdout)


def measure(given: Options, report: Report) -> None:
    nodes, pods = (4, 5) if given.quick else (300, 15)
    report.settings.update(nodes=nodes, pods=nodes * pods)
    with mock(nodes, pods) as port:
        idle, ours, whole = (peak_mib(what, port, nodes) for what in ("nothing", "watcher", "whole"))
    count = f"watching {nodes} nodes with {nodes * pods:,} pods"
    note = f"{idle:.0f} MiB of it before anything is watched"
    report.add(Result(f"{count}: peak memory of the process", ours, "MiB", aim=150, note=note))
    report.add(Result(f"{count}: added by it", ours - idle, "MiB", "objects kept whole", whole - idle))


def main() -> int:
    given = options(__doc__)
    report = Report("watcher", given)
    measure(given, report)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
