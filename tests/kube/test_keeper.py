"""Children end with their parent, whatever ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest

from ebbtide.clock import monotonic
from ebbtide.kube.keeper import Kept
from tests.kube.conftest import start

LIMIT_S = 20.0


async def until_written(path: Path) -> int:
    """The process id that a child writes when it is ready for signals."""
    late = monotonic() + LIMIT_S
    while (pid := _read(path)) is None:
        assert monotonic() < late, f"{path} was not written"
        await asyncio.sleep(0.02)
    return pid


def _read(path: Path) -> int | None:
    return int(path.read_text()) if path.exists() else None  # it appears whole, by a rename


async def until_gone(pid: int) -> None:
    late = monotonic() + LIMIT_S
    while _lives(pid):
        assert monotonic() < late, f"process {pid} is still there"
        await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    """A zombie has ended; whoever adopted it is slow."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def child(path: Path, on_term: str = "") -> list[str]:
    """A shell that writes its process id and waits; `on_term`: what it does then instead of ending."""
    trap = f"trap '{on_term}' TERM; " if on_term else ""
    return [
        "/bin/sh",
        "-c",
        f"{trap}echo $$ > {path}.new; mv {path}.new {path}; while :; do sleep 0.05; done",
    ]


def keep(command: list[str], output: Path, stop_limit_s: int = 10) -> Kept:
    with output.open("wb") as file:
        return Kept("child", command, output=file, stop_limit_s=stop_limit_s)


async def test_stop_ends_it_and_may_be_called_again(tmp_path: Path) -> None:
    kept = keep(child(tmp_path / "pid"), tmp_path / "log", stop_limit_s=60)
    pid = await until_written(tmp_path / "pid")
    assert _lives(pid)
    group = os.getpgid(pid)
    await kept.stop()
    assert not _lives(pid)
    late = monotonic() + 30  # half of the keeper's own limit
    while left := [each for each in psutil.pids() if _lives(each) and _group(each) == group]:
        assert monotonic() < late, f"{left} were left"
        await asyncio.sleep(0.05)
    assert kept.exit_code == 128 + signal.SIGTERM
    await kept.stop()


async def test_it_may_end_in_its_own_way(tmp_path: Path) -> None:
    kept = keep(child(tmp_path / "pid", "echo goodbye; exit 7"), tmp_path / "log")
    await until_written(tmp_path / "pid")
    await kept.stop()
    assert kept.exit_code == 7
    assert (tmp_path / "log").read_text() == "goodbye\n"


async def test_what_does_not_listen_is_killed(tmp_path: Path) -> None:
    kept = keep(child(tmp_path / "pid", ":"), tmp_path / "log", stop_limit_s=1)
    pid = await until_written(tmp_path / "pid")
    begun = monotonic()
    await kept.stop()
    assert not _lives(pid)
    assert 0.9 < monotonic() - begun < 5


async def test_its_own_end_is_noticed(tmp_path: Path) -> None:
    kept = keep(["/bin/sh", "-c", "exit 3"], tmp_path / "log")
    late = monotonic() + LIMIT_S
    while kept.exit_code is None:
        assert monotonic() < late
        await asyncio.sleep(0.02)
    assert kept.exit_code == 3
    await kept.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
async def test_it_ends_when_its_parent_does(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import sys, time, pathlib; from ebbtide.kube.keeper import Kept\n"
        "kept = Kept('child', sys.argv[1:], output=open('/dev/null', 'wb'))\n"
        "time.sleep(60)"
    )
    parent = start([sys.executable, "-c", script, *child(tmp_path / "pid")])
    try:
        pid = await until_written(tmp_path / "pid")
        os.kill(parent.pid, how)
        await until_gone(pid)
    finally:
        parent.kill()
        parent.communicate()


async def test_a_program_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    kept = keep([str(tmp_path / "nothing")], tmp_path / "log")
    late = monotonic() + LIMIT_S
    while kept.exit_code is None:
        assert monotonic() < late
        await asyncio.sleep(0.02)
    assert kept.exit_code == 127
    assert "nothing" in (tmp_path / "log").read_text()
    await kept.stop()
