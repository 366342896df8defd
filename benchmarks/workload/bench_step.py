"""What `guard.step` costs a training step when nothing is wrong, and what importing the package costs.

    python benchmarks/workload/bench_step.py [--steps 2000000] [--rounds 7] [--json FILE]

Times a loop with the call and the same loop without it, in turn, and subtracts. The threads that listen for
the notice run as they do in training. The import is that of a fresh interpreter, less an empty program. Both
are processor time, and the least of several rounds counts: whatever else the machine does can only add. The
targets are less than 1 microsecond a step and less than 50 ms for the import.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "workload" / "src"
sys.path.insert(0, str(SOURCE))

STEP_TARGET_NS = 1000.0
IMPORT_TARGET_MS = 50.0


def save(folder: Path) -> None:
    (folder / "state").write_text("state")


def step_ns(steps: int, rounds: int) -> float:
    """Nanoseconds that one call adds to a loop."""
    from ebbtide_workload import Guard

    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as folder, Guard(folder) as guard:
        guard.resume(lambda _: None)
        costs = []
        for _round in range(rounds):
            begun = time.thread_time_ns()
            for _ in range(steps):
                pass
            bare = time.thread_time_ns() - begun
            begun = time.thread_time_ns()
            for step in range(steps):
                guard.step(step, save)
            costs.append((time.thread_time_ns() - begun - bare) / steps)
    return min(costs)


def import_ms(statement: str, rounds: int) -> float:
    """Milliseconds of processor time that a statement takes in a fresh interpreter, beyond starting it."""

    def run(code: str) -> float:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000

    run(statement)
    return min(run(statement) for _ in range(4 * rounds)) - min(run("pass") for _ in range(4 * rounds))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    results = [
        ("guard.step", step_ns(args.steps, args.rounds), "ns", STEP_TARGET_NS),
        (
            "import ebbtide_workload",
            import_ms("import ebbtide_workload", args.rounds),
            "ms",
            IMPORT_TARGET_MS,
        ),
        (
            "... and its Guard",
            import_ms("from ebbtide_workload import Guard", args.rounds),
            "ms",
            IMPORT_TARGET_MS,
        ),
    ]
    print(f"{'what':<28} {'cost':>10}  target")
    for what, cost, unit, target in results:
        print(
            f"{what:<28} {cost:>7.1f} {unit}  < {target:.0f} {unit}  {'met' if cost < target else 'MISSED'}"
        )
    rows = [{"what": w, "cost": round(c, 1), "unit": u, "target": t, "met": c < t} for w, c, u, t in results]
    report = {"benchmark": "step", "python": platform.python_version(), "results": rows}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
