"""Counting what a job leaves in its checkpoint folder."""

from __future__ import annotations

from pathlib import Path


def measure(folder: Path) -> tuple[int, int]:
    """How many entries the folder holds (hidden ones and locks aside) and the bytes of all files in them."""
    if not folder.is_dir():
        return 0, 0
    entries = [
        e for e in folder.iterdir() if not e.name.startswith(".") and e.suffix not in (".lock", ".json")
    ]
    return len(entries), sum(_bytes(e) for e in entries)


def _bytes(entry: Path) -> int:
    files = [entry] if entry.is_file() else [p for p in entry.rglob("*") if p.is_file()]
    return sum(f.stat().st_size for f in files if f.exists())
