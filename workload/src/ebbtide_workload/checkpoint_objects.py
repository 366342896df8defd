"""Checkpoints in an object store, through fsspec: files first, the manifest last; without it there is no
checkpoint.

    URL/step-000000000041-ID/   the caller's files, then ebbtide-manifest.json as the mark of completeness
    URL/.ebbtide/               lock and save times

Object stores cannot rename, but writing one object is atomic. Each attempt has a name of its own, so two
writers never touch the same object. The lock is advisory (fsspec has no conditional writes): it makes a
second writer wait, and stops one that was away; what is complete stays complete in any case.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from . import clock
from .checkpoint import WAIT_S, Checkpoint
from .checkpoint_lock import BEATS_PER_LEASE, LEASE_S, AnotherWriter, Fenced, this_process
from .checkpoint_manifest import (
    MANIFEST,
    THREADS,
    Incomplete,
    Manifest,
    list_files,
    manifest_of,
    seal_files,
    verify,
)
from .checkpoint_times import SaveTimes
from .say import say

SETTLE_S = 1.0
_ATTEMPT = re.compile(r"step-(\d{12})-([0-9a-f]+)")


@dataclass(frozen=True)
class _Found:
    """A complete attempt in the store."""

    path: str
    manifest: Manifest

    @property
    def order(self) -> tuple[int, str, str]:
        return self.manifest.step, self.manifest.saved_at, self.path


class ObjectCheckpoints:
    """Like `Checkpoints`, below a URL such as `s3://bucket/run`; `options` go to fsspec. Needs fsspec and its
    driver.

    Saves are staged and fetched ones kept below `scratch` (default: a temporary folder).
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 2,
        checksums: bool = True,
        wait_s: float = WAIT_S,
        lease_s: float = LEASE_S,
        scratch: Path | None = None,
        **options: Any,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(
                f"checkpoints at {url} need fsspec: pip install 'ebbtide-workload[objects]'"
            ) from error
        self._fs, self._root = url_to_fs(url, **options)
        self.keep = keep
        self.checksums = checksums
        self._scratch_in = scratch
        self._scratch_made: Path | None = None
        self._lock = _ObjectLock(self, wait_s, lease_s)
        self._times: SaveTimes | None = None

    @property
    def timeline_path(self) -> Path | None:
        """Object stores cannot append: the timeline goes only where EBBTIDE_JOURNAL says."""
        return None

    @property
    def times(self) -> SaveTimes:
        """How long saves took, over all runs."""
        if self._times is None:
            local = self._scratch / "save-times.json"
            kept = self.read(".ebbtide/save-times.json")
            if kept is not None:
                local.write_bytes(kept)
            self._times = SaveTimes(local)
        return self._times

    @property
    def _scratch(self) -> Path:
        """A local folder of our own, made when first needed."""
        if self._scratch_made is None:
            self._scratch_made = Path(tempfile.mkdtemp(prefix="ebbtide-objects-", dir=self._scratch_in))
        return self._scratch_made

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Become the writer. Raises AnotherWriter."""
        self._lock.acquire(give_up)

    def release(self) -> None:
        """Let another writer in, and remove what was kept locally."""
        self._lock.release()
        if self._scratch_made is not None:
            shutil.rmtree(self._scratch_made, ignore_errors=True)
        self._scratch_made = self._times = None

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, newest first; their paths are those in the store."""
        return [self._described(found, Path(found.path)) for found in self._complete()]

    def newest(self) -> Checkpoint | None:
        """Fetch the newest checkpoint that is proven whole, naming those that are not."""
        for found in self._complete():
            try:
                return self._fetch(found)
            except Incomplete as error:
                say(f"checkpoint {found.path} is not whole ({error}); falling back to the one before")
        return None

    def fetch(self, step: int) -> Checkpoint:
        """Fetch the checkpoint of `step`. Raises Incomplete."""
        for found in self._complete():
            if found.manifest.step == step:
                return self._fetch(found)
        raise Incomplete(f"there is no checkpoint of step {step} at {self._root}")

    def save(self, step: int, writer: Callable[[Path], object]) -> Checkpoint:
        """Have `writer(folder)` write to a local folder, upload its files, then make them a checkpoint.

        Raises what the writer raises, Fenced, and what the store's driver raises (OSError by fsspec's
        custom).
        """
        self.acquire()
        begun = clock.monotonic()
        staging = Path(tempfile.mkdtemp(prefix=f"step-{step}-", dir=self._scratch))
        try:
            writer(staging)
            entries = seal_files(staging, list_files(staging), checksums=self.checksums, durable=False)
            target = f"step-{step:012d}-{self._lock.owner_id}{int(clock.monotonic() * 1000):x}"
            self._upload(staging, target, [entry.path for entry in entries])
            self._lock.check()
            manifest = manifest_of(step, clock.monotonic() - begun, self._lock.owner_id, entries)
            self.write(f"{target}/{MANIFEST}", manifest.to_json())
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self.times.add(clock.monotonic() - begun, manifest.total_bytes)
        self.write(".ebbtide/save-times.json", (self._scratch / "save-times.json").read_bytes())
        self._prune(step)
        return self._described(_Found(f"{self._root}/{target}", manifest), Path(self._root) / target)

    def read(self, name: str) -> bytes | None:
        """One object below the root, None when there is none."""
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write one object below the root."""
        self._make_parent(f"{self._root}/{name}")
        self._fs.pipe_file(f"{self._root}/{name}", data)

    def _upload(self, staging: Path, target: str, paths: list[str]) -> None:
        def put(path: str) -> None:
            remote = f"{self._root}/{target}/{path}"
            self._make_parent(remote)
            self._fs.put_file(str(staging / path), remote)

        _for_all(put, paths)

    def _fetch(self, found: _Found) -> Checkpoint:
        local = self._scratch / PurePosixPath(found.path).name
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)

        def get(name: str) -> None:
            path = local / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fs.get_file(f"{found.path}/{name}", str(path))
            except FileNotFoundError as error:
                raise Incomplete(f"{name} is missing") from error

        _for_all(get, [entry.path for entry in found.manifest.files])
        verify(local, found.manifest, checksums=self.checksums)
        return self._described(found, local)

    def _attempts(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/") for path in paths if _ATTEMPT.fullmatch(PurePosixPath(path).name)]

    def _complete(self) -> list[_Found]:
        found = []
        for path in self._attempts():
            data = self.read(f"{PurePosixPath(path).name}/{MANIFEST}")
            if data is None:
                continue
            try:
                found.append(_Found(path, Manifest.from_json(data)))
            except Incomplete as error:
                say(f"checkpoint {path} is not whole ({error})")
        return sorted(found, key=lambda one: one.order, reverse=True)

    def _prune(self, newest: int) -> None:
        """Remove all but `keep` complete ones up to step `newest`, what is beyond it, and attempts left
        unfinished."""
        kept: dict[int, str] = {}
        for found in self._complete():
            if found.manifest.step <= newest and len(kept) < self.keep:
                kept.setdefault(found.manifest.step, found.path)
        for path in self._attempts():
            if path not in kept.values():
                self._fs.rm(path, recursive=True)

    def _make_parent(self, path: str) -> None:
        if "file" in self._fs.protocol or "local" in self._fs.protocol:
            self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)

    def _described(self, found: _Found, path: Path) -> Checkpoint:
        one = found.manifest
        return Checkpoint(one.step, path, one.total_bytes, one.saved_at, one.save_s)


def _for_all(work: Callable[[str], None], names: list[str]) -> None:
    """Do `work` for every name, several at once; raises the first error."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2 * THREADS, thread_name_prefix="ebbtide-objects") as pool:
        for result in [pool.submit(work, name) for name in names]:
            result.result()


class _ObjectLock:
    """One object that its owner rewrites every few seconds; silence for LEASE_S lets another in."""

    NAME = ".ebbtide/lock.json"

    def __init__(self, store: ObjectCheckpoints, wait_s: float, lease_s: float) -> None:
        self._store = store
        self._wait_s = wait_s
        self._lease_s = lease_s
        self._owner = this_process()
        self._beats = 0
        self._held = False
        self._stop = threading.Event()

    @property
    def owner_id(self) -> str:
        return self._owner.id

    def acquire(self, give_up: Callable[[], bool]) -> None:
        if self._held:
            return
        began = seen_at = clock.monotonic()
        seen = self._store.read(self.NAME)
        if _holder(seen):
            say(f"checkpoints are being written by {_holder(seen)}: waiting for it")
        while _holder(seen) and clock.monotonic() - seen_at < self._lease_s:
            if give_up() or clock.monotonic() - began > self._wait_s:
                raise AnotherWriter(f"checkpoints are being written by {_holder(seen)}")
            clock.sleep(0.5)
            now = self._store.read(self.NAME)
            if now != seen:
                seen, seen_at = now, clock.monotonic()
        self._write(held=True)
        clock.sleep(SETTLE_S)  # whoever wrote last within this time has the lock
        self._held = True
        self.check()
        threading.Thread(target=self._beat, name="ebbtide-lock", daemon=True).start()

    def check(self) -> None:
        """Raises Fenced unless the lock is still ours."""
        said = self._store.read(self.NAME)
        if not self._held or said is None or json.loads(said)["owner"]["id"] != self._owner.id:
            self._held = False
            raise Fenced("another writer took over these checkpoints")

    def release(self) -> None:
        self._stop.set()
        if self._held:
            self._held = False
            self._write(held=False)

    def _write(self, *, held: bool) -> None:
        said = {"held": held, "beats": self._beats, "owner": self._owner._asdict()}
        self._store.write(self.NAME, json.dumps(said).encode())

    def _beat(self) -> None:
        while not self._stop.wait(self._lease_s / BEATS_PER_LEASE):
            self._beats += 1
            try:
                self.check()
                self._write(held=True)
            except Fenced as error:
                say(str(error))
                return
            except OSError as error:
                say(f"cannot renew the lock on the checkpoints: {error}")


def _holder(said: bytes | None) -> str:
    """Who holds the lock, "" when it is free."""
    try:
        word = json.loads(said or b"{}")
    except ValueError:
        return "somebody whose lock is unreadable"
    owner = word.get("owner", {})
    return f"process {owner.get('pid')} on {owner.get('host')}" if word.get("held") else ""
