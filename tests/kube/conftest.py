"""Places in a folder of the test's own, and programs that only look real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.kube.install import Progress
from ebbtide.kube.places import Places
from ebbtide.kube.programs import Platform

Write = Callable[[Path, str], Path]


class Heard(Progress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.advances: list[tuple[str, int, int, str]] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def advance(self, what: str, done: int, total: int, unit: str) -> None:
        self.advances.append((what, done, total, unit))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """One named folder and a cache, both empty, on Linux with an amd64 processor."""
    (tmp_path / "named").mkdir()
    return Places((("EBBTIDE_KUBE_DIR", tmp_path / "named"),), tmp_path / "cache", Platform("linux", "amd64"))


def write_program(path: Path, text: str) -> Path:
    """An executable file. A Python text gets this interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first = "" if text.startswith("#!") else f"#!{sys.executable}\n"
    path.write_text(first + text)
    path.chmod(0o755)
    return path


def start(command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process beside the test; the test ends it."""
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Path]:
    """Make PATH hold the system's tools and, if a text is given, a `go` of that text. Returns its folder."""

    def prepare(go: str | None) -> Path:
        folder = tmp_path / "path"
        folder.mkdir()
        if go is not None:
            write_program(folder / "go", go)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder

    return prepare
