"""The object store's way, on fsspec's own file system: files first, the manifest last, never a rename."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide_workload import checkpoint_objects
from ebbtide_workload.checkpoint_lock import AnotherWriter, Fenced
from ebbtide_workload.checkpoint_manifest import MANIFEST
from ebbtide_workload.checkpoint_objects import ObjectCheckpoints
from ebbtide_workload.store import open_store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_objects, "SETTLE_S", 0.05)


def writer(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_bytes(bytes([step]) * 1000)
        (folder / "step").write_text(str(step))

    return write


def stored(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".ebbtide")


@pytest.mark.parametrize("where", ["file", "memory"])
def test_save_and_fetch(tmp_path: Path, where: str) -> None:
    url = f"{where}://{tmp_path}/run"
    store = open_store(url)
    assert isinstance(store, ObjectCheckpoints)
    assert store.newest() is None
    store.save(1, writer(1))
    store.save(2, writer(2))
    store.release()
    other = ObjectCheckpoints(url, scratch=tmp_path)
    found = other.newest()
    assert found is not None
    assert (found.step, found.bytes) == (2, 1001)
    assert (found.path / "deep" / "weights").read_bytes() == b"\2" * 1000
    assert other.fetch(1).step == 1
    assert other.times.p95_s is not None
    other.release()
    assert list(tmp_path.glob("ebbtide-objects-*")) == [], "nothing is left on the local disk"


def test_without_its_manifest_there_is_no_checkpoint(tmp_path: Path) -> None:
    store = ObjectCheckpoints(f"file://{tmp_path}")
    store.save(1, writer(1))
    store.save(2, writer(2))
    newest = tmp_path / stored(tmp_path)[-1]
    (newest / MANIFEST).unlink()
    found = store.newest()
    assert found is not None
    assert found.step == 1
    store.release()


@pytest.mark.parametrize("harm", ["rot", "loss", "torn manifest"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = ObjectCheckpoints(f"file://{tmp_path}")
    store.save(1, writer(1))
    store.save(2, writer(2))
    newest = tmp_path / stored(tmp_path)[-1]
    if harm == "rot":
        (newest / "deep" / "weights").write_bytes(b"\2" * 999 + b"\3")
    elif harm == "loss":
        (newest / "step").unlink()
    else:
        (newest / MANIFEST).write_text('{"format": 1, "st')
    found = store.newest()
    assert found is not None
    assert found.step == 1
    assert "is not whole" in capsys.readouterr().err
    store.release()


def test_keep_stay_and_a_dead_writers_attempt_goes(tmp_path: Path) -> None:
    dead = tmp_path / "step-000000000003-abcdef"
    dead.mkdir(parents=True)
    (dead / "weights").write_bytes(b"half")
    store = ObjectCheckpoints(f"file://{tmp_path}", keep=2)
    for step in range(1, 6):
        store.save(step, writer(step))
    assert [one.step for one in store.all()] == [5, 4]
    assert len(stored(tmp_path)) == 2
    store.release()


def test_a_failing_writer_leaves_nothing_to_find(tmp_path: Path) -> None:
    store = ObjectCheckpoints(f"file://{tmp_path}")

    def fail(folder: Path) -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        store.save(1, fail)
    assert store.all() == []
    store.release()


def test_a_second_writer_waits_and_then_is_told_who_has_it(tmp_path: Path) -> None:
    first = ObjectCheckpoints(f"file://{tmp_path}", lease_s=2)
    first.save(1, writer(1))
    with pytest.raises(AnotherWriter, match="process"):
        ObjectCheckpoints(f"file://{tmp_path}", wait_s=1, lease_s=60).acquire()
    first.release()
    second = ObjectCheckpoints(f"file://{tmp_path}")
    second.acquire()
    second.release()


def test_a_silent_writer_is_replaced_and_cannot_publish_any_more(tmp_path: Path) -> None:
    first = ObjectCheckpoints(f"file://{tmp_path}", lease_s=1000)
    first.save(1, writer(1))  # beats every 200 s: silent as far as this test goes
    second = ObjectCheckpoints(f"file://{tmp_path}", lease_s=0.6)
    second.acquire()
    with pytest.raises(Fenced):
        first.save(2, writer(2))
    assert [one.step for one in second.all()] == [1]
    second.save(3, writer(3))
    second.release()
    assert json.loads((tmp_path / ".ebbtide/lock.json").read_text())["held"] is False
