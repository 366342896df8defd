"""A checkpoint's commit beside the plain write and fsync of the same bytes, in turn, in the same run.

    python benchmarks/workload/bench_checkpoint.py [--megabytes 256] [--files 4] [--rounds 9] [--folder DIR]
    [--json FILE]

"plain" writes the files and fsyncs each and their folder, which is what a careful script does by hand.
"guarded" is `Checkpoints.save` with the same writer less the fsync: checksums, manifest and rename included.
In both, what is old is removed outside the measured time. The ratio is that of the least times, since
whatever else the machine does can only add; the medians are in the JSON. The target is at most 1.1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workload" / "src"))

from ebbtide_workload.checkpoint import Checkpoints

TARGET = 1.1


def write_files(folder: Path, block: memoryview, files: int, *, sync: bool) -> None:
    for number in range(files):
        with open(folder / f"shard-{number}.bin", "wb", buffering=0) as file:
            left = block
            while left:
                left = left[file.write(left) :]
            if sync:
                os.fsync(file.fileno())
    if sync:
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def timed(work: Callable[[], object]) -> float:
    os.sync()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(root: Path, total: int, files: int, rounds: int) -> dict[str, object]:
    """Least seconds of both ways and their ratio; the first round warms up and is not counted."""
    block = memoryview(os.urandom(total // files))
    checkpoints = Checkpoints(root / "guarded", keep=1)
    plain: list[float] = []
    guarded: list[float] = []
    for number in range(rounds + 1):
        folder = root / f"plain-{number}"
        folder.mkdir()
        plain.append(timed(partial(write_files, folder, block, files, sync=True)))
        shutil.rmtree(folder)
        writer = partial(write_files, block=block, files=files, sync=False)
        guarded.append(timed(partial(checkpoints.save, number, writer)))
    checkpoints.release()
    plain_s, guarded_s = min(plain[1:]), min(guarded[1:])
    return {
        "bytes": total,
        "files": files,
        "rounds": rounds,
        "plain_s": round(plain_s, 4),
        "guarded_s": round(guarded_s, 4),
        "plain_median_s": round(statistics.median(plain[1:]), 4),
        "guarded_median_s": round(statistics.median(guarded[1:]), 4),
        "ratio": round(guarded_s / plain_s, 3),
        "target": TARGET,
        "met": guarded_s / plain_s <= TARGET,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the results here")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ebbtide-bench-", dir=args.folder))
    try:
        results = [
            measure(root / str(mb), mb * 1_000_000, args.files, args.rounds)
            for mb in _made(root, args.megabytes)
        ]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{'size':>8} {'files':>5} {'plain':>9} {'guarded':>9} {'ratio':>6}  target <= {TARGET}")
    for r in results:
        mb = int(str(r["bytes"])) // 1_000_000
        verdict = "met" if r["met"] else "MISSED"
        print(
            f"{mb:>5} MB {r['files']:>5} {r['plain_s']:>7} s {r['guarded_s']:>7} s {r['ratio']:>6}  {verdict}"
        )
    report = {"benchmark": "checkpoint", "python": platform.python_version(), "results": results}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0 if all(r["met"] for r in results) else 1


def _made(root: Path, sizes: list[int]) -> list[int]:
    for mb in sizes:
        (root / str(mb)).mkdir()
    return sizes


if __name__ == "__main__":
    sys.exit(main())
