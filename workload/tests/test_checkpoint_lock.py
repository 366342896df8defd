"""I2: never two writers."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from jobs import Jobs, eventually

from ebbtide_workload.checkpoint import Checkpoints
from ebbtide_workload.checkpoint_lock import AnotherWriter, Fenced, WriterLock

HOLD = """
checkpoints = Checkpoints(sys.argv[1], lease_s=float(sys.argv[2]))
checkpoints.acquire()
print("mine", flush=True)
def slow(folder):
    (folder / "step").write_text("5")
    print("saving", flush=True)
    while not Path(sys.argv[1] + ".go").exists():
        time.sleep(0.02)
checkpoints.save(5, slow)
print("saved", flush=True)
checkpoints.release()
"""


def writer(folder: Path) -> None:
    (folder / "step").write_text("9")


def test_a_replacement_waits_for_the_old_pods_save_and_resumes_from_it(tmp_path: Path, jobs: Jobs) -> None:
    root = tmp_path / "ck"
    old = jobs.python(HOLD, root, "20")
    old.until("saving")
    replacement = Checkpoints(root)
    done = threading.Event()
    found: list[int] = []

    def start() -> None:
        replacement.acquire()
        newest = replacement.newest()
        found.append(newest.step if newest else -1)
        done.set()

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    assert not done.wait(1.0), "the old writer is alive: wait for it"
    Path(f"{root}.go").touch()
    assert done.wait(30)
    assert old.end() == 0, old.out
    assert found == [5]
    replacement.release()


def test_a_dead_writer_on_this_machine_is_not_waited_for(tmp_path: Path, jobs: Jobs) -> None:
    root = tmp_path / "ck"
    old = jobs.python(HOLD, root, "1000")
    old.until("saving")
    old.signal(signal.SIGKILL)
    old.end()
    began = time.monotonic()
    replacement = Checkpoints(root, lease_s=1000)
    replacement.acquire()
    assert time.monotonic() - began < 20
    assert [name for name in os.listdir(root) if name.startswith(".saving-")] == []
    replacement.release()


def test_a_silent_writer_is_fenced_off_and_cannot_publish_when_it_wakes(tmp_path: Path, jobs: Jobs) -> None:
    """A pod that is paused, or cut off from the file system, and comes back."""
    root = tmp_path / "ck"
    old = jobs.python(HOLD, root, "1.5")
    old.until("saving")
    old.signal(signal.SIGSTOP)
    replacement = Checkpoints(root, lease_s=1.5)
    replacement.acquire()
    replacement.save(9, writer)
    Path(f"{root}.go").touch()
    old.signal(signal.SIGCONT)
    assert old.end() == 1, old.out
    assert "Fenced" in old.out or "FileNotFoundError" in old.out
    assert "saved" not in old.out.split()
    assert [one.step for one in replacement.all()] == [9]
    replacement.save(10, writer)
    replacement.release()


def test_a_writer_that_stays_alive_is_named_when_the_wait_is_over(tmp_path: Path, jobs: Jobs) -> None:
    root = tmp_path / "ck"
    old = jobs.python(HOLD, root, "1")
    old.until("saving")
    with pytest.raises(AnotherWriter, match=f"process {old.process.pid} on {os.uname().nodename}"):
        Checkpoints(root, wait_s=3, lease_s=1).acquire()
    Path(f"{root}.go").touch()
    assert old.end() == 0, old.out


def test_waiting_ends_when_there_is_a_reason_to_give_up(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path)
    first.acquire()
    with pytest.raises(AnotherWriter):
        Checkpoints(tmp_path).acquire(give_up=lambda: True)
    first.release()


def test_of_many_contenders_one_gets_the_lock(tmp_path: Path) -> None:
    dead = WriterLock(tmp_path)
    dead.acquire(1, lambda: False, lambda: None)
    dead._stop.set()  # silent from here on: as if its machine had vanished
    path = next(tmp_path.glob("lock-*"))
    path.write_bytes(path.read_bytes().replace(os.uname().nodename.encode(), b"elsewhere"))
    holding: list[WriterLock] = []
    most = 0
    guard = threading.Lock()

    def contend() -> None:
        nonlocal most
        lock = WriterLock(tmp_path, lease_s=0.5)
        lock.acquire(60, lambda: False, lambda: None)
        with guard:
            holding.append(lock)
            most = max(most, len(holding))
        time.sleep(0.05)
        lock.check()
        with guard:
            holding.remove(lock)
        lock.release()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1
    with pytest.raises(Fenced):
        dead.check()


def test_the_owner_notices_that_it_was_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = WriterLock(tmp_path, lease_s=0.2)
    lock.acquire(1, lambda: False, lambda: None)
    assert lock.held
    (tmp_path / "lock-00000007").write_bytes(b"")
    eventually(lambda: not lock.held, "the beat sees the higher number")
    with pytest.raises(Fenced):
        lock.check()


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **kwargs: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    lock = WriterLock(tmp_path)
    lock.acquire(1, lambda: False, lambda: None)
    lock.check()
    with pytest.raises(AnotherWriter):
        WriterLock(tmp_path).acquire(0.5, lambda: False, lambda: None)
    lock.release()
