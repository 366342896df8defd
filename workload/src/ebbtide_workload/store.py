"""Where checkpoints are kept, as the guard sees it: one protocol, a folder or an object store behind it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from .checkpoint import Checkpoint, Checkpoints
from .checkpoint_times import SaveTimes


@runtime_checkable
class Store(Protocol):
    """What a guard needs of a place for checkpoints; `Checkpoints` says what each means."""

    @property
    def timeline_path(self) -> Path | None:
        """Where the journal goes, None when there is no such file."""

    @property
    def times(self) -> SaveTimes:
        """How long saves took."""

    def acquire(self, give_up: Callable[[], bool] = ...) -> None:
        """Become the writer."""

    def release(self) -> None:
        """Let another writer in."""

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, newest first."""

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, at a local path."""

    def fetch(self, step: int) -> Checkpoint:
        """The checkpoint of `step`, at a local path, as another rank found it whole."""

    def save(self, step: int, writer: Callable[[Path], object]) -> Checkpoint:
        """Write and publish."""


def open_store(where: str | os.PathLike[str] | Checkpoints | Store) -> Store:
    """A folder for a path, an object store for a URL, and what is a store already as it is."""
    if isinstance(where, (str, os.PathLike)):
        text = os.fspath(where)
        if "://" in text:
            from .checkpoint_objects import ObjectCheckpoints

            return ObjectCheckpoints(text)
        return Checkpoints(text)
    return where
