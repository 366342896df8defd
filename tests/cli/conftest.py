"""Fixtures of the command line's tests: a server with canned answers, and running a command against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ebbtide.cli import main, output
from tests.cli.stub import Stub, serving


@dataclass
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as server:
        yield server


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder to work in, and no connection in the environment."""
    for name in ("EBBTIDE_URL", "EBBTIDE_API_KEY", "EBBTIDE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(
    offline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run `ebbtide` with these words, as the console script does."""

    def ran(*words: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["ebbtide", *words])
        output.forget_consoles()
        with pytest.raises(SystemExit) as end:
            main.run()
        caught = capsys.readouterr()
        code = end.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, caught.out, caught.err)

    return ran


@pytest.fixture
def online(stub: Stub, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]) -> Callable[..., Ran]:
    """As `run`, with the environment naming the stub."""
    monkeypatch.setenv("EBBTIDE_URL", stub.url)
    monkeypatch.setenv("EBBTIDE_API_KEY", "ebb_test")
    return run
