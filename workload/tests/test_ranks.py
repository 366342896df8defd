"""All ranks together: the same step saved, one leaving for all, none left in a collective."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from jobs import Job, Jobs, eventually

from ebbtide_workload import clock, ranks_hub
from ebbtide_workload.checkpoint import Checkpoints
from ebbtide_workload.deadline import Attention, Heard, after
from ebbtide_workload.errors import RanksApart
from ebbtide_workload.ranks import Ranks, Release
from ebbtide_workload.ranks_hub import Hub
from ebbtide_workload.settings import Place

# `meet` is this test's collective: a lockstep over files, in which a rank alone hangs as in an all-reduce.
TRAIN = """
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
root, lockstep, total = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}

def meet(step):
    (lockstep / f"{rank}").write_text(str(step))
    while True:
        try:
            if all(int((lockstep / str(r)).read_text() or -1) >= step for r in range(world)):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.001)

def save(folder):
    print("save of", step, flush=True)
    (folder / ("step" if options.get("writes") != "all" else f"shard-{rank}")).write_text(str(step))

def load(folder):
    print("loaded", folder.name, flush=True)

guard = Guard(root, **options)
for step in range(guard.resume(load), total):
    meet(step)
    time.sleep(0.002 * (rank + 1))
    print("step", step, flush=True)
    guard.step(step, save)
print("finished", flush=True)
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Gang:
    """`world` processes of one job."""

    def __init__(
        self,
        jobs: Jobs,
        root: Path,
        world: int = 4,
        options: str = "{}",
        total: int = 100_000,
        body: str = TRAIN,
    ) -> None:
        port = str(free_port())
        self.lockstep = jobs.folder / f"lockstep-{port}"
        self.lockstep.mkdir()
        script = jobs.script(body)
        self.ranks: list[Job] = [
            jobs.start(
                *(sys.executable, script, root, self.lockstep, str(total), options),
                RANK=str(rank),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                EBBTIDE_PORT=port,
                EBBTIDE_KEY="k",
            )
            for rank in range(world)
        ]

    def steps(self, at_least: int) -> None:
        for job in self.ranks:
            job.until(f"step {at_least}\n")

    def ends(self) -> list[int]:
        return [job.end() for job in self.ranks]

    @property
    def out(self) -> str:
        return "\n".join(f"--- rank {n}\n{job.out}" for n, job in enumerate(self.ranks))

    def last_steps(self) -> set[int]:
        return {int(re.findall(r"^step (\d+)$", job.out, re.MULTILINE)[-1]) for job in self.ranks}


@pytest.mark.parametrize("noticed", [2, 0])
def test_one_rank_is_noticed_and_all_save_the_same_step_and_leave(
    tmp_path: Path, jobs: Jobs, noticed: int
) -> None:
    """J3 and I3."""
    gang = Gang(jobs, tmp_path / "ck")
    gang.steps(3)
    began = time.monotonic()
    gang.ranks[noticed].signal()
    for job in gang.ranks:
        job.until("notice from")
    assert time.monotonic() - began < 10, "the others hear within 10 s"
    assert gang.ends() == [85] * 4, gang.out
    assert len(gang.last_steps()) == 1, gang.out
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    assert {newest.step} == gang.last_steps()
    assert [job.out.count("save of") for job in gang.ranks] == [1, 0, 0, 0]


def test_all_noticed_at_once_is_one_leaving(tmp_path: Path, jobs: Jobs) -> None:
    gang = Gang(jobs, tmp_path / "ck")
    gang.steps(2)
    for job in gang.ranks:
        job.signal()
    assert gang.ends() == [85] * 4, gang.out
    assert len(gang.last_steps()) == 1, gang.out
    assert gang.ranks[0].out.count("save of") == 1


def test_shards_of_all_ranks_are_one_checkpoint_and_all_resume_from_it(tmp_path: Path, jobs: Jobs) -> None:
    options = '{"writes": "all"}'
    gang = Gang(jobs, tmp_path / "ck", options=options)
    gang.steps(2)
    gang.ranks[3].signal()
    assert gang.ends() == [85] * 4, gang.out
    newest = Checkpoints(tmp_path / "ck").newest()
    assert newest is not None
    files = sorted(path.name for path in newest.path.iterdir())
    assert files == ["ebbtide-manifest.json", "shard-0", "shard-1", "shard-2", "shard-3"]
    again = Gang(jobs, tmp_path / "ck", options=options, total=newest.step + 3)
    assert again.ends() == [0] * 4, again.out
    for job in again.ranks:
        assert f"loaded {newest.path.name}" in job.out
        assert f"step {newest.step}\n" not in job.out


@pytest.mark.parametrize(
    "options", ['{"every_s": 0.3}', '{"every_s": 0.3, "writes": "all"}', '{"every_steps": 7}']
)
def test_saves_without_a_notice_are_agreed_on_too(tmp_path: Path, jobs: Jobs, options: str) -> None:
    gang = Gang(jobs, tmp_path / "ck", world=3, options=options, total=150)
    gang.ranks[0].until("saved step", times=3)
    assert gang.ends() == [0] * 3, gang.out
    if "all" in options:
        saves = [re.findall(r"^save of (\d+)$", job.out, re.MULTILINE) for job in gang.ranks]
        assert saves[0] == saves[1] == saves[2]


def test_a_rank_that_cannot_save_spoils_it_for_all_and_nothing_is_published(
    tmp_path: Path, jobs: Jobs
) -> None:
    body = TRAIN.replace('print("save of"', 'assert rank != 1, "disk of rank 1"; print("save of"')
    gang = Gang(jobs, tmp_path / "ck", world=3, options='{"writes": "all"}', body=body)
    gang.steps(2)
    gang.ranks[2].signal()
    assert gang.ends() == [86] * 3, gang.out
    assert "disk of rank 1" in gang.ranks[1].out
    assert Checkpoints(tmp_path / "ck").all() == []
    assert [path.name for path in (tmp_path / "ck").iterdir() if path.name.startswith(".saving")] == []


def test_a_job_that_ends_by_itself_ends_on_all_ranks(tmp_path: Path, jobs: Jobs) -> None:
    gang = Gang(jobs, tmp_path / "ck", total=5)
    assert gang.ends() == [0] * 4, gang.out


def test_a_notice_while_waiting_for_the_others_to_start_ends_the_wait(tmp_path: Path, jobs: Jobs) -> None:
    gang = Gang(jobs, tmp_path / "ck", world=3)
    gang.ranks[2].stop()  # its pod was never started
    eventually(lambda: all(map(_handles_sigterm, gang.ranks[:2])), "their guards are up")
    gang.ranks[1].signal()
    assert [job.end() for job in gang.ranks[:2]] == [85, 85], gang.out
    assert "preempted before the start" in gang.out


def _handles_sigterm(job: Job) -> bool:
    status = Path(f"/proc/{job.process.pid}/status").read_text()
    return bool(int(re.findall(r"SigCgt:\s*(\w+)", status)[0], 16) & (1 << (signal.SIGTERM - 1)))


def test_a_noticed_rank_without_rank_0_does_not_wait_for_ever(tmp_path: Path, jobs: Jobs) -> None:
    gang = Gang(jobs, tmp_path / "ck", world=2)
    gang.steps(2)
    gang.ranks[1].signal(signal.SIGSTOP)
    gang.ranks[0].signal(signal.SIGKILL)
    gang.ranks[0].end()
    (gang.lockstep / "0").write_text("1000000")  # its collective returns, as an aborted one would
    gang.ranks[1].signal()
    gang.ranks[1].signal(signal.SIGCONT)
    assert gang.ranks[1].end() == 86, gang.out
    assert "apart" in gang.ranks[1].out


class Guest(Ranks):
    """A rank that opens no hub: the test has its own."""

    def _meet(self, place: Place) -> Place:
        return place


class Peer:
    """One rank in a thread of this test: its boundary is moved by hand."""

    def __init__(self, rank: int, world: int, port: int, boundary: int) -> None:
        self.at = boundary
        self.heard: list[Heard] = []
        self.attention = Attention()
        place = Place(rank, world, rank, "127.0.0.1", port, "k")
        self.ranks = Guest(place, self.attention, lambda: self.at, self.heard.append)


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub("127.0.0.1", 0, 3, "k")
    opened.start()
    yield opened
    opened.close()


def peers(hub: Hub, boundaries: list[int]) -> list[Peer]:
    made = [Peer(rank, 3, hub.port, boundary) for rank, boundary in enumerate(boundaries)]
    eventually(lambda: len(hub._ranks) == 3, "all connected")
    return made


def test_the_step_agreed_on_is_past_every_ranks_boundary(hub: Hub) -> None:
    three = peers(hub, [10, 12, 11])
    three[1].ranks.notice(Heard("SIGTERM", after(100), "why", clock.utc_now()))
    eventually(lambda: all(peer.attention.up for peer in three), "all are called")
    assert [peer.ranks.decision() for peer in three] == [13, 13, 13]
    assert [[one.source for one in peer.heard] for peer in three] == [["rank 1"], [], ["rank 1"]]
    for peer in three:
        peer.ranks.close()


def test_a_silent_rank_is_decided_without(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_hub, "GATHER_S", 0.5)
    mute = threading.Event()
    three = peers(hub, [10, 10, 10])
    three[2].ranks._boundary = lambda: int(mute.wait(20))
    three[0].ranks.propose()
    eventually(lambda: three[0].attention.up, "it is called")
    assert three[0].ranks.decision() == 11
    mute.set()
    for peer in three:
        peer.ranks.close()


def test_a_barrier_opens_when_the_last_is_there_and_tells_all_the_same(hub: Hub) -> None:
    three = peers(hub, [1, 1, 1])
    releases: list[Release | None] = [None] * 3

    def arrive(rank: int) -> None:
        releases[rank] = three[rank].ranks.meet("b", after(20), payload=f"from {rank}", ok=rank != 2)

    threads = [threading.Thread(target=arrive, args=(rank,)) for rank in range(3)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.3)
    assert releases == [None] * 3
    threads[2].start()
    for thread in threads:
        thread.join(20)
    assert releases[0] == releases[1] == releases[2]
    assert releases[0] == Release(ok=False, payload="from 0", lost=(), leave=False)
    for peer in three:
        peer.ranks.close()


def test_a_vanished_rank_opens_the_barrier_and_is_named(hub: Hub) -> None:
    three = peers(hub, [1, 1, 1])
    assert three[2].ranks._sock is not None
    three[2].ranks._sock.shutdown(socket.SHUT_RDWR)  # no good-bye
    eventually(lambda: len(hub._ranks) == 2, "its loss is seen")
    other = threading.Thread(target=three[1].ranks.meet, args=("b", after(20)))
    other.start()
    release = three[0].ranks.meet("b", after(20))
    other.join(20)
    assert release.lost == (2,)
    for peer in three:
        peer.ranks.close()


def test_a_barrier_that_does_not_open_in_time_is_an_error(hub: Hub) -> None:
    three = peers(hub, [1, 1, 1])
    with pytest.raises(RanksApart, match="not all ranks came"):
        three[0].ranks.meet("b", clock.utc_now() + timedelta(seconds=0.3))
    for peer in three:
        peer.ranks.close()


@pytest.mark.parametrize(
    "word",
    [
        b'{"word": "hello", "rank": 1, "world": 3, "key": "guessed"}\n',
        b'{"word": "hello", "rank": 7, "world": 3, "key": "k"}\n',
        b'{"word": "hello", "rank": 1, "world": 9, "key": "k"}\n',
        b'{"word": "notice", "rank": 1, "deadline": "2026-11-30T00:00:00Z", "reason": "x"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_strangers_are_turned_away(hub: Hub, word: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hub.port), timeout=20) as sock:
        try:
            sock.sendall(word)
            assert sock.recv(100) == b""
        except ConnectionError:
            pass
    assert hub._notice is None
    assert hub._ranks == {}


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="EBBTIDE_PORT"):
            Hub("127.0.0.1", taken.getsockname()[1], 2, "")
