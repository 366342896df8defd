"""Resuming and saving with all ranks: the same checkpoint in, the same step out, published once or not at
all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from . import clock
from .checkpoint import Checkpoint, Checkpoints
from .checkpoint_manifest import (
    PART_PREFIX,
    FileEntry,
    list_files,
    parts_to_entries,
    seal_files,
    sync_file_system,
    write_durably,
)
from .deadline import Attention, Heard, after
from .errors import RanksApart
from .ranks import Ranks
from .ranks_hub import ROUND_END
from .say import say
from .settings import Place, running_under_torch
from .store import Store

RESUME_S = 1800.0

Save = Callable[[Path], object]


class Together:
    """The ranks of one job around one store. Rank 0 owns the checkpoints; `writes` says who calls the
    writer."""

    def __init__(self, ranks: Ranks, writes: str, store: Store) -> None:
        self._ranks = ranks
        self._all_write = writes == "all"
        self._store = store
        self.leaving = False
        if self._all_write and not isinstance(store, Checkpoints):
            raise ValueError("writes='all' needs a shared folder; an object store takes writes='rank0'")

    @classmethod
    def of(
        cls,
        place: Place,
        writes: str,
        store: Store,
        attention: Attention,
        boundary: Callable[[], int],
        tell: Callable[[Heard], object],
    ) -> Together | None:
        """None for a job of one process."""
        if place.world == 1 and not running_under_torch():
            return None
        ranks = Ranks(place, attention, boundary, tell)
        if ranks.world == 1:
            ranks.close()
            return None
        return cls(ranks, writes, store)

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def world(self) -> int:
        return self._ranks.world

    @property
    def apart(self) -> str:
        """Why the others cannot be reached any more, "" while they can."""
        return self._ranks.apart

    def agreed(self) -> int | None:
        """The step at which all save next, None when nothing is agreed. Raises RanksApart."""
        return self._ranks.decision()

    def propose(self) -> None:
        """Ask for a save by all."""
        self._ranks.propose()

    def notice(self, heard: Heard) -> None:
        """Pass a notice on to all."""
        self._ranks.notice(heard)

    def close(self) -> None:
        self._ranks.close()

    def resume(self, give_up: Callable[[], bool]) -> Checkpoint | None:
        """Rank 0 becomes the writer and picks; all get the same step.

        Raises RanksApart, also when `give_up()` before all ranks were there; AnotherWriter on rank 0.
        """
        found: Checkpoint | None = None
        if self.rank == 0:
            self._store.acquire(give_up)
            found = self._store.newest()
        step = None if found is None else found.step
        picked = self._ranks.meet("resume", after(RESUME_S), payload=step, give_up=give_up).payload
        if picked is None or self.rank == 0:
            return found
        return self._store.fetch(int(picked))

    def save(self, step: int, save: Save, until: datetime) -> Checkpoint | None:
        """Save `step` with all; the checkpoint on rank 0, None elsewhere. Returns on every rank only when
        published.

        Afterwards `leaving` says, the same on all ranks, whether to leave now. Raises what the writer raised
        here, or RanksApart when another rank failed, vanished or was not there at `until`.
        """
        done: Checkpoint | None = None
        failed: BaseException | None = None
        try:
            done = self._save_all(step, save, until) if self._all_write else self._save_first(step, save)
        except BaseException as error:  # noqa: BLE001 - raised again below, after the others know
            failed = error
        release = self._ranks.meet(f"{ROUND_END}{step}", until, ok=failed is None)
        self.leaving = release.leave
        if failed is not None:
            raise failed
        if not release.ok:
            raise RanksApart(f"step {step} was not published: another rank could not save")
        return done

    def _save_first(self, step: int, save: Save) -> Checkpoint | None:
        return self._store.save(step, save) if self.rank == 0 else None

    def _save_all(self, step: int, save: Save, until: datetime) -> Checkpoint | None:
        begun = clock.monotonic()
        store = self._store
        assert isinstance(store, Checkpoints)
        name = store.begin(step).name if self.rank == 0 else None
        folder = store.root / str(self._ranks.meet(f"begun:{step}", until, payload=name).payload)
        try:
            self._stage(f"written:{step}", until, lambda: _write(folder, save))
            self._stage(f"sealed:{step}", until, lambda: self._seal_share(store, folder))
            return store.publish(step, folder, self._merged(folder), begun) if self.rank == 0 else None
        except BaseException:
            if self.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _stage(self, name: str, until: datetime, work: Callable[[], object]) -> None:
        """Do one part and wait until all have done theirs."""
        failed: BaseException | None = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below, after the others know
            say(f"this rank could not do its part: {error!r}")  # at once: the others may not come for a while
            failed = error
        release = self._ranks.meet(name, until, ok=failed is None)
        if failed is not None:
            raise failed
        if not release.ok or release.lost:
            raise RanksApart(f"{name}: rank {release.lost or 'unknown'} failed or is gone")

    def _seal_share(self, store: Checkpoints, folder: Path) -> None:
        """Checksum every world-th file, so that the time does not grow with the number of ranks."""
        paths = list_files(folder)
        entries = seal_files(folder, paths[self.rank :: self.world], checksums=store.checksums)
        part = {"listed": len(paths), "files": [entry._asdict() for entry in entries]}
        write_durably(folder / f"{PART_PREFIX}{self.rank:05d}.json", json.dumps(part).encode())

    def _merged(self, folder: Path) -> tuple[FileEntry, ...]:
        """All ranks' shares as one table. Raises RanksApart when they did not see the same files."""
        parts = []
        for rank in range(self.world):
            path = folder / f"{PART_PREFIX}{rank:05d}.json"
            parts.append(json.loads(path.read_bytes()))
            path.unlink()
        listed = {part["listed"] for part in parts}
        entries = parts_to_entries(parts)
        if listed != {len(entries)}:
            raise RanksApart(f"the ranks see {sorted(listed)} files in the shared folder, not one number")
        return entries


def _write(folder: Path, save: Save) -> None:
    save(folder)
    sync_file_system(folder)
