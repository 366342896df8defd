"""Whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Jobs

from ebbtide_workload import checkpoint_manifest
from ebbtide_workload.checkpoint import Checkpoints, Fenced, Incomplete
from ebbtide_workload.checkpoint_manifest import MANIFEST, read_manifest


def writer(step: int, size: int = 1000) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "weights").write_bytes(bytes([step % 256]) * size)
        (folder / "step").write_text(str(step))

    return write


def names(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if name != ".ebbtide")


def test_a_checkpoint_appears_whole_under_its_step(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    def write(folder: Path) -> None:
        writer(7)(folder)
        assert names(tmp_path) == [folder.name]
        assert folder.name.startswith(".saving-")

    saved = checkpoints.save(7, write)
    assert names(tmp_path) == ["step-000000000007"]
    assert saved.path == tmp_path / "step-000000000007"
    assert (saved.step, saved.bytes) == (7, 1001)
    manifest = read_manifest(saved.path)
    assert [entry.path for entry in manifest.files] == ["deep/er/weights", "step"]
    assert checkpoints.newest() == saved
    checkpoints.release()


def test_nothing_to_resume_from_is_none_and_creates_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "not" / "yet")
    assert checkpoints.newest() is None
    assert checkpoints.all() == []
    assert not (tmp_path / "not").exists()


def test_a_writer_that_fails_leaves_no_trace_and_its_error_is_passed_on(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, writer(1))

    def fail(folder: Path) -> None:
        writer(2)(folder)
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        checkpoints.save(2, fail)
    assert names(tmp_path) == ["step-000000000001"]
    checkpoints.release()


def rot(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: rot(folder / "deep/er/weights"), "corrupted near byte"),
        (lambda folder: os.truncate(folder / "deep/er/weights", 10), "torn: 10 bytes of 1000"),
        (lambda folder: (folder / "step").unlink(), "step is missing"),
        (lambda folder: os.truncate(folder / MANIFEST, 40), "manifest is torn"),
        (lambda folder: (folder / MANIFEST).unlink(), "no readable manifest"),
    ],
)
def test_the_one_before_is_used_when_the_newest_is_not_whole_and_this_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], said: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, writer(1))
    harm(checkpoints.save(2, writer(2)).path)
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 1
    told = capsys.readouterr().err
    assert "step-000000000002 is not whole" in told
    assert said in told
    checkpoints.release()


def test_corruption_beyond_the_first_chunk_is_found_and_located(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_manifest, "CHUNK_BYTES", 4096)
    checkpoints = Checkpoints(tmp_path)
    saved = checkpoints.save(1, writer(1, size=20_000))
    manifest = json.loads((saved.path / MANIFEST).read_text())
    assert len(manifest["files"][0]["crc32"]) == 5
    rot(saved.path / "deep/er/weights")
    with pytest.raises(Incomplete, match="near byte 8192"):
        checkpoints.prove(1)
    checkpoints.release()


def test_without_checksums_only_sizes_are_compared(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, checksums=False)
    saved = checkpoints.save(1, writer(1))
    rot(saved.path / "deep/er/weights")
    assert checkpoints.newest() == saved
    os.truncate(saved.path / "step", 0)
    assert checkpoints.newest() is None
    checkpoints.release()


def test_twenty_preemptions_leave_keep_checkpoints(tmp_path: Path) -> None:
    """J6: every preemption left another full checkpoint, until the disk was full."""
    for number in range(20):
        checkpoints = Checkpoints(tmp_path, keep=2)
        checkpoints.save(number, writer(number))
        seen = [name for name in names(tmp_path) if not name.startswith(".old-")]
        assert len(seen) <= 3
        checkpoints.release()
    assert names(tmp_path) == ["step-000000000018", "step-000000000019"]


def test_keep_must_leave_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Checkpoints("anywhere", keep=0)


@pytest.mark.parametrize("course", ["corrupt", "renamed"])
def test_a_corrupt_newest_never_costs_the_good_ones(tmp_path: Path, course: str) -> None:
    """After a fall-back the run saves earlier steps again; with keep=1 the corrupt later one must not
    count."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(10, writer(10))
    shutil.copytree(tmp_path / "step-000000000010", tmp_path / "step-000000000090")
    rot(tmp_path / "step-000000000090/deep/er/weights")
    manifest = tmp_path / "step-000000000090" / MANIFEST
    if course == "corrupt":
        manifest.write_text(manifest.read_text().replace('"step": 10', '"step": 90'))
    assert checkpoints.newest() is not None
    checkpoints.save(20, writer(20))
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 20
    checkpoints.release()
    assert names(tmp_path) == ["step-000000000020"]


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    rot(checkpoints.save(5, writer(5)).path / "step")
    checkpoints.save(5, writer(5))
    assert checkpoints.newest() is not None
    checkpoints.release()
    assert names(tmp_path) == ["step-000000000005"]


def test_room_is_made_before_a_save_that_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, writer(step))
    monkeypatch.setattr("ebbtide_workload.checkpoint._free_bytes", lambda _: 500)

    def write(folder: Path) -> None:
        assert names(tmp_path) == [folder.name, "step-000000000003"], (
            "older ones went before, the newest stays"
        )
        writer(4)(folder)

    checkpoints.save(4, write)
    checkpoints.release()


def test_trouble_after_the_rename_does_not_unsave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(tmp_path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.times, "add", full)
    assert checkpoints.save(1, writer(1)).step == 1
    assert "is saved, but" in capsys.readouterr().err
    assert checkpoints.newest() is not None
    checkpoints.release()


KILLED_AT = {
    "in the writer": "os.kill(os.getpid(), signal.SIGKILL)",
    "before the manifest": "checkpoint.write_durably = die",
    "before the folders are durable": "checkpoint.sync_folders = die",
    "before the rename": "Path.rename = die",
    "after the rename": "checkpoint.sync_folder = die",
    "while pruning": "Checkpoints._prune = die",
}


@pytest.mark.parametrize("where", KILLED_AT)
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, jobs: Jobs, where: str) -> None:
    root = tmp_path / "checkpoints"
    job = jobs.python(
        f"""
        from ebbtide_workload import checkpoint
        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        def write(step):
            return lambda folder: (folder / "step").write_text(str(step))
        checkpoints = Checkpoints(sys.argv[1])
        checkpoints.save(1, write(1))
        def torn(folder):
            (folder / "step").write_text("tor")
            {KILLED_AT[where]}
            (folder / "step").write_text("2")
        checkpoints.save(2, torn)
        """,
        root,
    )
    assert job.end() == -9, job.out
    survivor = Checkpoints(root)
    survivor.acquire()
    found = survivor.newest()
    assert found is not None
    late = where in ("after the rename", "while pruning")
    assert found.step == (2 if late else 1)
    assert (found.path / "step").read_text() == str(found.step)
    assert not [name for name in names(root) if name.startswith(".saving-")], (
        "the dead writer's leftovers are gone"
    )
    survivor.release()


def test_who_was_fenced_off_while_saving_cannot_publish(tmp_path: Path) -> None:
    """I2: an old pod that wakes up after its replacement took over."""
    old = Checkpoints(tmp_path)
    old.save(1, writer(1))

    def slow(folder: Path) -> None:
        writer(2)(folder)
        lock = next(path for path in (tmp_path / ".ebbtide/locks").iterdir() if path.suffix == "")
        shutil.copy(lock, lock.with_name("lock-00000099"))  # a replacement that waited out the lease
        folder.rename(tmp_path / ".old-other-1")

    with pytest.raises((Fenced, FileNotFoundError)):
        old.save(2, slow)
    with pytest.raises(Fenced):
        old.save(3, writer(3))
    assert [one.step for one in Checkpoints(tmp_path).all()] == [1]
