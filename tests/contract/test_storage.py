"""What every storage must do, and how the operator's own programs are spoken to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.clock import ManualClock
from ebbtide.errors import StartupError
from ebbtide.playground.world import World
from ebbtide.providers.base import Permanent, Transient
from ebbtide.providers.program_storage import ProgramStorage
from ebbtide.providers.simulated_storage import SimulatedStorage
from ebbtide.providers.storage import Storage, VolumeOrder

ORDER = VolumeOrder("9a1c0c9e-55f1-4a0e-8a44-2f5a6c1b7e10", "demo-data", "proj-1", "eu-1", 2)
# A storage system of one folder: each volume is a file; what was asked last is remembered beside it.
BOTH = """
asked = json.load(sys.stdin)
(HOME / "asked.json").write_text(json.dumps(asked))
volume = HOME / asked["volume_id"]
if asked["verb"] == "delete":
    volume.unlink(missing_ok=True)
    print(json.dumps({"gone": True}))
else:
    size = max(int(volume.read_text()) if volume.exists() else 0, asked["size_tib"])
    volume.write_text(str(size))
    print(json.dumps({"ready": True, "handle": f"exports/{asked['name']}"}))
"""

Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """An executable file of those lines; HOME is the test's folder."""

    def write(lines: str) -> str:
        path = tmp_path / f"program-{len(list(tmp_path.iterdir()))}"
        head = (
            f"#!{sys.executable} -IS\nimport json, os, sys, pathlib\nHOME = pathlib.Path({str(tmp_path)!r})\n"
        )
        path.write_text(head + lines)
        path.chmod(0o755)
        return str(path)

    return write


class Rig:
    """A storage, and how its time passes and what it holds."""

    def __init__(self, storage: Storage, passes: Callable[[], object], held: Callable[[], list[int]]) -> None:
        self.storage = storage
        self.passes = passes
        self.held = held

    async def provisioned(self, order: VolumeOrder) -> str | None:
        for _ in range(20):
            answer = await self.storage.provision(order)
            if answer.ready:
                return answer.handle
            self.passes()
        raise AssertionError("it was never ready")

    async def gone(self, order: VolumeOrder) -> bool:
        for _ in range(20):
            if (await self.storage.delete(order)).gone:
                return True
            self.passes()
        return False


@pytest.fixture(params=["simulated", "program"])
def rig(request: pytest.FixtureRequest, program: Program, tmp_path: Path) -> Rig:
    if request.param == "simulated":
        clock = ManualClock()
        world = World(clock)
        return Rig(
            SimulatedStorage(world),
            lambda: clock.advance(1),
            lambda: [disk.size_tib for disk in world.disks()],
        )
    script = program(BOTH)
    return Rig(
        ProgramStorage(script, script, 20),
        lambda: None,
        lambda: [int(path.read_text()) for path in tmp_path.glob("*-*-*-*-*")],
    )


async def test_ordering_again_finds_the_same_volume(rig: Rig) -> None:
    handle = await rig.provisioned(ORDER)
    assert handle
    assert await rig.provisioned(replace(ORDER, handle=handle)) == handle
    assert rig.held() == [2]


async def test_it_grows_and_never_shrinks(rig: Rig) -> None:
    await rig.provisioned(ORDER)
    await rig.provisioned(replace(ORDER, size_tib=5))
    await rig.provisioned(ORDER)
    assert rig.held() == [5]


async def test_it_is_deleted_and_deleting_again_is_harmless(rig: Rig) -> None:
    await rig.provisioned(ORDER)
    assert await rig.gone(ORDER)
    assert await rig.gone(ORDER)
    assert rig.held() == []


async def test_deleting_what_never_was_is_done(rig: Rig) -> None:
    assert await rig.gone(ORDER)


async def test_a_simulated_volume_survives_its_process(tmp_path: Path) -> None:
    clock, journal = ManualClock(), tmp_path / "world.jsonl"
    world = World(clock, journal=journal)
    assert not (await SimulatedStorage(world).provision(ORDER)).ready
    clock.advance(10)
    again = World(clock, journal=journal)
    answer = await SimulatedStorage(again).provision(ORDER)
    assert (answer.ready, [disk.size_tib for disk in again.disks()]) == (True, [2])
    again.close()


async def test_what_a_program_is_told(program: Program, tmp_path: Path) -> None:
    script = program(BOTH)
    await ProgramStorage(script, script, 20).provision(replace(ORDER, handle="h"))
    assert json.loads((tmp_path / "asked.json").read_text()) == {
        "verb": "provision",
        "volume_id": ORDER.volume_id,
        "name": "demo-data",
        "project_id": "proj-1",
        "region": "eu-1",
        "size_tib": 2,
        "handle": "h",
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("sys.exit('no space\\nleft')", "ended with 1: no space left"),
        ("print('hello')", "did not answer with a JSON object"),
        ("print('[1]')", "did not answer with a JSON object"),
        ("print('{}')", "no true or false `ready`"),
        ('print(json.dumps({"ready": "yes"}))', "no true or false `ready`"),
        ('print(json.dumps({"ready": True, "handle": 7}))', "wrong `handle`"),
        ('print(json.dumps({"ready": True, "handle": "a\\0b"}))', "wrong `handle`"),
        ("print('x' * 100_000)", "answered more than is read"),
        ("os.kill(os.getpid(), 9)", "ended with -9"),
    ],
)
async def test_a_program_that_does_not_answer_is_asked_again_later(
    program: Program, lines: str, said: str
) -> None:
    script = program(lines)
    with pytest.raises(Transient) as refused:
        await ProgramStorage(script, script, 20).provision(ORDER)
    assert said in refused.value.message


async def test_exit_code_3_says_never(program: Program) -> None:
    script = program("sys.stderr.write('this region has no storage'); sys.exit(3)")
    with pytest.raises(Permanent, match="this region has no storage"):
        await ProgramStorage(script, script, 20).provision(ORDER)
    with pytest.raises(Permanent):
        await ProgramStorage(script, script, 20).delete(ORDER)


async def test_not_ready_yet_and_not_gone_yet(program: Program) -> None:
    slow = program('print(json.dumps({"ready": False, "gone": False, "why": "copying\\0\\n 3 of 9"}))')
    storage = ProgramStorage(slow, slow, 20)
    made = await storage.provision(replace(ORDER, handle="h"))
    assert (made.ready, made.handle, made.why) == (False, "h", "copying 3 of 9")
    deletion = await storage.delete(ORDER)
    assert (deletion.gone, deletion.why) == (False, "copying 3 of 9")


async def test_a_program_that_takes_too_long_is_killed_with_its_children(
    program: Program, tmp_path: Path
) -> None:
    lines = """
child = os.fork()
if child:
    (HOME / "child").write_text(str(child))
import time
time.sleep(60)
"""
    script = program(lines)
    with pytest.raises(Transient, match="longer than 1 s"):
        await ProgramStorage(script, script, 1).provision(ORDER)
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("its child still runs")


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_cancelled_visit_leaves_no_program_behind(program: Program, tmp_path: Path) -> None:
    script = program("import time\n(HOME / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)\n")
    task = asyncio.create_task(ProgramStorage(script, script, 60).provision(ORDER))
    for _ in range(500):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _runs(int((tmp_path / "pid").read_text()))


async def test_the_servers_secrets_are_not_handed_on(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_SECRET_KEYS", "secret")
    script = program(
        "(HOME / 'env').write_text(json.dumps(dict(os.environ)))\nprint(json.dumps({'ready': True}))"
    )
    await ProgramStorage(script, script, 20).provision(ORDER)
    seen = json.loads((tmp_path / "env").read_text())
    assert "EBBTIDE_SECRET_KEYS" not in seen
    assert seen["PATH"] == os.environ["PATH"]


async def test_programs_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="EBBTIDE_STORAGE_PROVISION_PROGRAM"):
        ProgramStorage("", "/bin/true", 1)
    with pytest.raises(StartupError, match="EBBTIDE_STORAGE_DELETE_PROGRAM"):
        ProgramStorage("/bin/true", "", 1)
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(Transient, match="cannot be run: No such file"):
        await ProgramStorage(nowhere, nowhere, 1).provision(ORDER)
