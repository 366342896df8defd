"""Programs of this ring that run beside the tests, and what they wrote."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ebbtide.clock import monotonic
from ebbtide.kube.keeper import Kept

T = TypeVar("T")
Json = dict[str, Any]


def until(look: Callable[[], T | None], what: str, limit_s: float = 120) -> T:
    """What `look` answers once it is something. what: what is waited for, for the failure."""
    late = monotonic() + limit_s
    while (found := look()) is None:
        assert monotonic() < late, f"{what}: not within {limit_s:g} s"
        threading.Event().wait(0.1)
    return found


def run(command: Sequence[str | Path], *, limit_s: float = 120, stdin: str | None = None) -> str:
    """A program's output. Fails with what it said when it ends badly."""
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s)
    told = f"{' '.join(map(str, command))} ended with {ran.returncode}:\n{ran.stderr}{ran.stdout}"
    assert ran.returncode == 0, told
    return ran.stdout


class Beside:
    """A program that runs until `stop`, or until this process ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        output: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name, self.output = name, output
        with output.open("wb") as file:
            self._kept = Kept(name, command, output=file, environment=environment, folder=output.parent)

    @property
    def ended(self) -> bool:
        return self._kept.exit_code is not None

    def text(self) -> str:
        """What it has written so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        asyncio.run(self._kept.stop())


@dataclass(slots=True)
class Lines:
    """Lines of a program, each with the moment at which it was read."""

    command: Sequence[str | Path]
    seen: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    _process: subprocess.Popen[str] = field(init=False)
    _reader: threading.Thread = field(init=False)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen.append((time.time(), line.rstrip("\n")))

    def first(self, *words: str) -> float | None:
        """When the first line came that has all these words."""
        return next((at for at, line in self.seen if set(words) <= set(line.split())), None)

    def after(self, moment: float, *words: str) -> float | None:
        """When the first such line after a moment came."""
        lines = (at for at, line in self.seen if set(words) <= set(line.split()))
        return next((at for at in lines if at > moment), None)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        self._reader.join(timeout=10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def json_lines(file: Path) -> list[Json]:
    """Whole lines of a file that may still be written to."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
