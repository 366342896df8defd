"""How fast this file system really takes a checkpoint: several writers, data that does not compress,
fsync."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..clock import monotonic

BLOCK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Measured:
    """`bytes_written` in `took_s` by `writers` files at once, flushed to the device."""

    bytes_written: int
    took_s: float
    writers: int

    @property
    def bytes_per_s(self) -> int:
        return max(1, round(self.bytes_written / self.took_s))


def measure(folder: Path, total_bytes: int, writers: int) -> Measured:
    """Write and flush `total_bytes` into new files below `folder` and remove them again.

    Raises OSError when the folder cannot be written, or has no room for twice as much.
    """
    if shutil.disk_usage(folder).free < 2 * total_bytes:
        raise OSError(f"{folder} has too little room to write {total_bytes} bytes")
    block = os.urandom(min(BLOCK_BYTES, max(1, total_bytes // writers)))
    each = max(len(block), total_bytes // writers)
    with tempfile.TemporaryDirectory(prefix=".ebb-window-", dir=folder) as own:
        paths = [Path(own) / f"part-{number}" for number in range(writers)]
        began = monotonic()
        with ThreadPoolExecutor(writers) as pool:
            written = sum(pool.map(lambda path: _write(path, block, each), paths))
        took_s = max(monotonic() - began, 1e-6)
    return Measured(written, took_s, writers)


def _write(path: Path, block: bytes, count: int) -> int:
    """Write `count` bytes, block by block, and flush them."""
    written = 0
    with path.open("wb", buffering=0) as file:
        while written < count:
            part = block if count - written >= len(block) else block[: count - written]
            written += file.write(part)
        os.fsync(file.fileno())
    return written
