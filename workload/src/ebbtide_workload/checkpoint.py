"""Checkpoints that are whole or not there.

A save goes through the caller's own writer into a hidden folder; checksums, fsync and a manifest follow; then
one rename makes it visible as `step-000000000041`. Whatever kills the process in between leaves the older
ones untouched.

    root/
      step-000000000041/        the caller's files and ebbtide-manifest.json
      .saving-ID-000000000042/  in progress, or left behind by a writer that died
      .ebbtide/                 locks, save times, timeline
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import clock
from .checkpoint_lock import LEASE_S, AnotherWriter, Fenced, WriterLock
from .checkpoint_manifest import (
    MANIFEST,
    FileEntry,
    Incomplete,
    Manifest,
    list_files,
    manifest_of,
    read_manifest,
    seal_files,
    sync_folder,
    sync_folders,
    verify,
    write_durably,
)
from .checkpoint_times import SaveTimes
from .say import duration, say, size

WAIT_S = 330.0
"""An old writer that was given notice is gone after the window; half a minute more for what surrounds it."""

REMOVAL_WAIT_S = 5.0

_STEP = re.compile(r"step-(\d{12})")
_LEFTOVER = (".saving-", ".old-")

Writer = Callable[[Path], object]


class Checkpoint(NamedTuple):
    """A published checkpoint. `step` is the last step it contains; `save_s` is how long its save took."""

    step: int
    path: Path
    bytes: int
    saved_at: str
    save_s: float


class Checkpoints:
    """The checkpoints below one folder, local or shared. Touches nothing until first used.

    `keep` complete ones stay. `checksums=False` compares sizes only, for checkpoints too big to be read
    twice. `wait_s` is how long a new writer waits for one that is alive, `lease_s` after how long a silence a
    writer counts as gone. One object writes; many may read.
    """

    def __init__(
        self,
        root: os.PathLike[str] | str,
        *,
        keep: int = 2,
        checksums: bool = True,
        wait_s: float = WAIT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay")
        self.root = Path(root)
        self.keep = keep
        self.checksums = checksums
        self._wait_s = wait_s
        self._own = self.root / ".ebbtide"
        self._lock = WriterLock(self._own / "locks", lease_s=lease_s)
        self._times: SaveTimes | None = None
        self._trusted: int | None = None
        self._discards = 0
        self._removal: threading.Thread | None = None

    @property
    def timeline_path(self) -> Path:
        """Where the journal of all runs on these checkpoints is."""
        return self._own / "timeline.jsonl"

    @property
    def times(self) -> SaveTimes:
        """How long saves took, over all runs."""
        if self._times is None:
            self._times = SaveTimes(self._own / "save-times.json")
        return self._times

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Become the writer and clear what dead writers left. Raises AnotherWriter. Harmless when already
        ours."""
        if not self._lock.held:
            self._lock.acquire(self._wait_s, give_up, self._clear_leftovers)

    def release(self) -> None:
        """Let another writer in."""
        self._finish_removal(REMOVAL_WAIT_S)
        self._lock.release()

    def all(self) -> list[Checkpoint]:
        """Published checkpoints, newest first, by their manifests alone; those without a whole one are left
        out."""
        found = []
        for step in self._steps():
            try:
                found.append(self.fetch(step))
            except Incomplete:
                continue
        return found

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is proven whole; each newer one that is not is named and passed over."""
        for step in self._steps():
            try:
                proven = self.prove(step)
                self._trusted = step
                return proven
            except Incomplete as error:
                name = self._path(step).name
                say(f"checkpoint {name} is not whole ({error}); falling back to the one before")
        return None

    def fetch(self, step: int) -> Checkpoint:
        """The checkpoint of `step` by its manifest alone, for a rank that was told it is whole. Raises
        Incomplete."""
        path = self._path(step)
        manifest = read_manifest(path)
        if manifest.step != step:
            raise Incomplete(f"its manifest is that of step {manifest.step}")
        return _described(manifest, path)

    def prove(self, step: int) -> Checkpoint:
        """Check the checkpoint of `step` against its manifest. Raises Incomplete."""
        found = self.fetch(step)
        verify(found.path, read_manifest(found.path), checksums=self.checksums)
        return found

    def save(self, step: int, writer: Writer) -> Checkpoint:
        """Have `writer(folder)` write its files and publish them as the checkpoint of `step`.

        Returns when all is durable. What `writer` raises is passed on and leaves no trace. Raises Fenced when
        another writer took over, OSError when the disk does.
        """
        begun = clock.monotonic()
        staging = self.begin(step)
        try:
            writer(staging)
            entries = seal_files(staging, list_files(staging), checksums=self.checksums)
            return self.publish(step, staging, entries, begun)
        except BaseException:
            remove_tree(staging)
            raise

    def begin(self, step: int) -> Path:
        """An empty hidden folder for `step`. Makes room first where the disk would not hold one more."""
        self.acquire()
        self._lock.check()
        self._finish_removal()
        self._make_room()
        staging = self.staging(step)
        remove_tree(staging)
        staging.mkdir(parents=True)
        return staging

    def staging(self, step: int) -> Path:
        """The name of the hidden folder of `step` while this owner writes it."""
        return self.root / f".saving-{self._lock.owner_id}-{step:012d}"

    def publish(self, step: int, staging: Path, entries: tuple[FileEntry, ...], begun: float) -> Checkpoint:
        """Make sealed files visible under their final name. `begun` is the monotonic time the save began."""
        save_s = clock.monotonic() - begun
        manifest = manifest_of(step, save_s, self._lock.owner_id, entries)
        write_durably(staging / MANIFEST, manifest.to_json())
        sync_folders(staging, [entry.path for entry in entries])
        self._lock.check()
        final = self._path(step)
        if final.exists():  # the same step again, after a fall-back to an earlier one
            final.replace(self._discarded(step))
        try:
            staging.rename(final)
        except FileNotFoundError:
            raise Fenced("another writer moved the unfinished checkpoint away") from None
        sync_folder(self.root)
        self._trusted = step
        self._tidy(step, clock.monotonic() - begun, manifest.total_bytes)
        return _described(manifest, final)

    def _tidy(self, step: int, seconds: float, count: int) -> None:
        """What follows a save; the checkpoint is safe by now, so trouble here is told and no more."""
        try:
            self.times.add(seconds, count)
            self._prune(step, self.keep)
        except OSError as error:
            say(f"step {step} is saved, but tidying up after it failed: {error}")

    def _discarded(self, number: int) -> Path:
        """A name, never used before, for something that is to be removed."""
        self._discards += 1
        return self.root / f".old-{self._lock.owner_id}-{number:012d}-{self._discards}"

    def _path(self, step: int) -> Path:
        return self.root / f"step-{step:012d}"

    def _steps(self) -> list[int]:
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        steps = [int(match[1]) for match in map(_STEP.fullmatch, names) if match]
        return sorted(steps, reverse=True)

    def _prune(self, newest: int, keep: int) -> None:
        """Remove all but `keep` complete ones up to step `newest`, and what is beyond it: a later step than
        the one just saved is corrupt or belongs to a course that was abandoned, and must not be resumed from.

        Renamed before removed: half removed must not look half written.
        """
        kept = [each.step for each in self.all() if each.step <= newest][:keep]
        for step in self._steps():
            if step not in kept:
                self._path(step).replace(self._discarded(step))
        self._removal = threading.Thread(target=self._remove_old, name="ebbtide-remove", daemon=True)
        self._removal.start()

    def _remove_old(self) -> None:
        """Unlinking a big checkpoint takes a third of the time of writing it: not on the training's time.
        What a leaving process does not finish, the next writer does."""
        for name in os.listdir(self.root):
            if name.startswith(".old-"):
                remove_tree(self.root / name)

    def _finish_removal(self, timeout_s: float | None = None) -> None:
        if self._removal is not None:
            self._removal.join(timeout_s)

    def _make_room(self) -> None:
        needed = int(1.05 * self.times.last_bytes)
        free = _free_bytes(self.root)
        if self._trusted is not None and needed and free < needed and len(self._steps()) > 1:
            say(f"only {size(free)} free for a checkpoint of {size(needed)}: keeping just the newest one")
            self._prune(self._trusted, keep=1)
            self._finish_removal()

    def _clear_leftovers(self) -> None:
        """Move away, then remove, what earlier writers left. The move is what fences them off."""
        moved: list[Path] = []
        for name in os.listdir(self.root):
            if name.startswith(_LEFTOVER) and self._lock.owner_id not in name:
                target = self._discarded(0)
                try:
                    (self.root / name).replace(target)
                except FileNotFoundError:
                    continue
                moved.append(target)
        for target in moved:
            remove_tree(target)


def _described(manifest: Manifest, path: Path) -> Checkpoint:
    return Checkpoint(manifest.step, path, manifest.total_bytes, manifest.saved_at, manifest.save_s)


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as it can be; what stays is tried again by the next writer."""
    import shutil  # with its archive formats it would double the time to import this package

    shutil.rmtree(folder, ignore_errors=True)


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def told(checkpoint: Checkpoint) -> str:
    """One line about a save: `saved step 41: 3.2 GB in 4.10 s`."""
    return f"saved step {checkpoint.step}: {size(checkpoint.bytes)} in {duration(checkpoint.save_s)}"


__all__ = ["AnotherWriter", "Checkpoint", "Checkpoints", "Fenced", "Incomplete", "told"]
