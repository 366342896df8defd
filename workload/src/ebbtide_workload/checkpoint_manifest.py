"""What a complete checkpoint consists of: every file with its size and checksums, proven on disk.

Checksums are CRC-32, one per chunk: they find torn and rotten files, cost less than the write, and can be
computed for several chunks at once. They are no protection against somebody who wants to deceive.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from . import clock

MANIFEST = "ebbtide-manifest.json"
PART_PREFIX = ".ebbtide-part-"
CHUNK_BYTES = 32 << 20
BUFFER_BYTES = 1 << 20
THREADS = 4


class Incomplete(Exception):
    """A checkpoint that must not be loaded; the message says what is missing, torn or altered."""


class FileEntry(NamedTuple):
    """One file: path relative to the checkpoint, bytes, and the CRC-32 of each chunk in hex."""

    path: str
    bytes: int
    crc32: tuple[str, ...]


class Manifest(NamedTuple):
    """The table of contents that makes a folder a checkpoint. `save_s` is how long the caller's writer
    took."""

    step: int
    saved_at: str
    save_s: float
    writer: str
    files: tuple[FileEntry, ...]
    chunk_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)

    def to_json(self) -> bytes:
        return (
            json.dumps({"format": 1, **self._asdict(), "files": [f._asdict() for f in self.files]}, indent=1)
            + "\n"
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Raises Incomplete when it is not a whole manifest of a format known here."""
        try:
            said = json.loads(data)
            if said["format"] != 1:
                raise Incomplete(f"manifest has format {said['format']}, this version reads 1")
            files = tuple(FileEntry(f["path"], int(f["bytes"]), tuple(f["crc32"])) for f in said["files"])
            return cls(
                step=int(said["step"]),
                saved_at=str(said["saved_at"]),
                save_s=float(said["save_s"]),
                writer=str(said["writer"]),
                files=files,
                chunk_bytes=int(said["chunk_bytes"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Incomplete(f"manifest is torn: {error}") from error


def manifest_of(step: int, save_s: float, writer: str, files: tuple[FileEntry, ...]) -> Manifest:
    """The manifest of files sealed just now."""
    saved_at = clock.utc_now().isoformat(timespec="microseconds")
    return Manifest(step, saved_at, round(save_s, 3), writer, files, CHUNK_BYTES)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises Incomplete when there is none or it is torn."""
    try:
        return Manifest.from_json((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise Incomplete(f"no readable manifest: {error}") from error


def list_files(folder: Path) -> list[str]:
    """Every file below `folder`, relative and sorted, without our own."""
    found = []
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(base, name), folder)
            if path != MANIFEST and not name.startswith(PART_PREFIX):
                found.append(path)
    return sorted(found)


def seal_files(
    folder: Path, paths: Sequence[str], *, checksums: bool = True, durable: bool = True
) -> tuple[FileEntry, ...]:
    """Checksum the files and make them durable, both at once: the disk works while the processor reads.

    The pages are still in memory, so reading them back costs no I/O. Raises OSError.
    """
    with _pool() as submit:
        syncs = [submit(_sync_file, folder / path) for path in paths] if durable else []
        entries = _digest(folder, paths, submit, CHUNK_BYTES) if checksums else None
        for sync in syncs:
            sync()
    if entries is None:
        return tuple(FileEntry(path, (folder / path).stat().st_size, ()) for path in paths)
    return entries


def verify(folder: Path, manifest: Manifest, *, checksums: bool = True) -> None:
    """Compare a checkpoint with its manifest; raises Incomplete with the first difference."""
    for entry in manifest.files:
        try:
            size = (folder / entry.path).stat().st_size
        except OSError as error:
            raise Incomplete(f"{entry.path} is missing: {error.strerror}") from error
        if size != entry.bytes:
            raise Incomplete(f"{entry.path} is torn: {size} bytes of {entry.bytes}")
    hashed = [entry for entry in manifest.files if entry.crc32 or not entry.bytes]
    if not checksums or not hashed:
        return
    try:
        with _pool() as submit:
            found = _digest(folder, [entry.path for entry in hashed], submit, manifest.chunk_bytes)
    except OSError as error:
        raise Incomplete(f"cannot be read: {error}") from error
    for entry, now in zip(hashed, found):
        if now.crc32 != entry.crc32:
            bad = next(i for i, (a, b) in enumerate(zip(now.crc32, entry.crc32)) if a != b)
            raise Incomplete(f"{entry.path} is corrupted near byte {bad * manifest.chunk_bytes}")


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file and have it on disk before returning."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folders(folder: Path, paths: Iterable[str]) -> None:
    """Make the names of the files durable: every folder that holds one of them, deepest first, and
    `folder`."""
    folders = {folder}
    for path in paths:
        folders.update(folder / parent for parent in Path(path).parents)
    for each in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        sync_folder(each)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(folder: Path) -> None:
    """Flush everything this machine still holds back for the file system of `folder`, whoever wrote it."""
    import ctypes  # costs 10 ms, needed only where ranks share a folder

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(fd)


Submit = Callable[..., Callable[[], Any]]


@contextmanager
def _pool() -> Iterator[Submit]:
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # imported late: a guard that never saves never pays for it

    with ThreadPoolExecutor(2 * THREADS, thread_name_prefix="ebbtide-seal") as pool:

        def submit(work: Callable[..., Any], *args: Any) -> Callable[[], Any]:
            return pool.submit(work, *args).result

        yield submit


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _digest(folder: Path, paths: Sequence[str], submit: Submit, chunk_bytes: int) -> tuple[FileEntry, ...]:
    sizes = [(folder / path).stat().st_size for path in paths]
    waiting: list[list[Callable[[], Any]]] = []
    for path, size in zip(paths, sizes):
        starts = range(0, size, chunk_bytes)
        waiting.append([submit(_crc_of_chunk, folder / path, start, chunk_bytes) for start in starts])
    return tuple(
        FileEntry(path, size, tuple(result() for result in results))
        for path, size, results in zip(paths, sizes, waiting)
    )


def _crc_of_chunk(path: Path, start: int, chunk_bytes: int) -> str:
    """CRC-32 of up to `chunk_bytes` from `start`. Reading and summing leave the interpreter free for
    others."""
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    crc, left = 0, chunk_bytes
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left > 0:
            count = file.readinto(view[: min(left, BUFFER_BYTES)])
            if not count:
                break
            crc = zlib.crc32(view[:count], crc)
            left -= count
    return f"{crc:08x}"


def parts_to_entries(parts: Iterable[Mapping[str, Any]]) -> tuple[FileEntry, ...]:
    """File entries that ranks wrote as JSON, in one sorted table."""
    entries = [
        FileEntry(e["path"], int(e["bytes"]), tuple(e["crc32"])) for part in parts for e in part["files"]
    ]
    return tuple(sorted(entries, key=lambda entry: entry.path))
