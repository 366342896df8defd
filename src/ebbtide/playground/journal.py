"""The acts done upon the world, one JSON line each, so that it survives its process being killed.

The first line is a snapshot; each further line is an act, written before it takes effect. Reading them back
and doing the acts again at their instants leads to the same world, because whatever is not an act follows
from acts and time. A last line that was torn by a crash stands for an act that nobody was told about; it is
dropped. Lines reach the operating system before an act returns, which outlives the process, not the machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from ebbtide.errors import StartupError
from ebbtide.playground.codec import decode, encode
from ebbtide.playground.state import State


@dataclass(frozen=True, slots=True)
class Act:
    """A call that changed the world: which, when, with what."""

    at: datetime
    verb: str
    said: dict[str, Any]


class Journal:
    """An append-only file. One process at a time; the data folder's own lock sees to that."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self.lines = 0

    def read(self) -> tuple[State | None, list[Act]]:
        """The snapshot and the acts after it. Raises StartupError if the file was damaged other than by a
        torn end.
        """
        if not self._path.exists():
            return None, []
        lines = self._path.read_text(encoding="utf-8").split("\n")
        # What follows the last newline was never acknowledged.
        records = [self._parse(number, line) for number, line in enumerate(lines[:-1], 1)]
        if not records:
            return None, []
        (first, *acts) = records
        if not isinstance(first, State) or any(isinstance(act, State) for act in acts):
            raise self._damaged(1, "a snapshot begins the file and only there")
        return first, [act for act in acts if isinstance(act, Act)]

    def _parse(self, number: int, line: str) -> State | Act:
        try:
            record = json.loads(line)
            if "snapshot" in record:
                state: State = decode(record["snapshot"])
                return state
            at, said = decode(record["at"]), decode(record["said"])
            if not isinstance(at, datetime) or not isinstance(said, dict):
                raise TypeError("not an act")
            return Act(at, record["verb"], said)
        except (ValueError, TypeError, KeyError) as fault:
            raise self._damaged(number, repr(fault)) from fault

    def _damaged(self, number: int, why: str) -> StartupError:
        return StartupError(
            f"line {number} of the playground's journal {self._path} is damaged ({why}); "
            "move the file away to begin with an empty playground"
        )

    def begin(self, state: State) -> None:
        """Replace the file by a snapshot of `state`: complete or not at all."""
        self.close()
        draft = self._path.with_name(self._path.name + ".new")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"snapshot": encode(state)}, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self.lines = 0

    def write(self, act: Act) -> None:
        if self._file is None:
            raise StartupError("the playground's journal is closed")
        record = {"at": encode(act.at), "verb": act.verb, "said": encode(act.said)}
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        self.lines += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
