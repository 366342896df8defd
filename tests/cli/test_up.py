"""`ebbtide up` as people start it: a process, its files, its signals, and the story from end to end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from ebbtide.cli import connection
from ebbtide.client import Client, Unreachable
from ebbtide.clock import monotonic
from tests.cli.conftest import Ran
from tests.cli.test_program import PROGRAM, program

SMALL_FLEET = """\
regions: {here: {}}
pools:
  small: {region: here, gpu_type: H100_SXM, price_per_gpu_hour: 2, boot_s: 1, turn_over_s: 1, hosts: [a, b]}
"""
_START_LIMIT_S = 90.0


@dataclass
class Process:
    """A running `ebbtide up`. `folder` is where it was started."""

    popen: subprocess.Popen[str]
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "ebbtide-data"

    def client(self) -> Client:
        found = connection.find(None, None, self.data, {})
        return Client(found.url, found.key)

    def read_until(self, text: str) -> list[str]:
        """The lines of standard output up to one that has the text."""
        assert self.popen.stdout is not None
        return self._lines_until(self.popen.stdout, text)

    def read_error_until(self, text: str) -> str:
        """The line of standard error that has the text."""
        assert self.popen.stderr is not None
        return self._lines_until(self.popen.stderr, text)[-1]

    def _lines_until(self, stream: IO[str], text: str) -> list[str]:
        lines: list[str] = []
        watchdog = threading.Timer(_START_LIMIT_S, self.popen.kill)
        watchdog.start()
        try:
            for line in stream:
                lines.append(line.rstrip("\n"))
                if text in line:
                    return lines
        finally:
            watchdog.cancel()
        raise AssertionError(f"it ended without saying {text!r}: {lines} {self.end()}")

    def stop(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """Send the signal; answers the exit code and how long it took."""
        begun = monotonic()
        self.popen.send_signal(number)
        self.popen.communicate(timeout=30)
        return self.popen.returncode, monotonic() - begun

    def end(self) -> str:
        return self.popen.communicate(timeout=30)[1]


def start(folder: Path, *words: str, **more: str) -> Process:
    paths = os.pathsep.join(each for each in sys.path if each)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "HOME": "/nonexistent", "NO_COLOR": "1"}
    environment |= more
    command = [sys.executable, "-u", "-c", PROGRAM, *words]
    popen = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return Process(popen, folder)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Process]:
    """An `ebbtide up` with a small fleet of one's own, ready."""
    (tmp_path / "fleet.yaml").write_text(SMALL_FLEET)
    process = start(tmp_path, "up", "--fleet", "fleet.yaml", "--port", "0")
    try:
        process.read_until("Ctrl-C stops it.")
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


class TestUp:
    def test_it_says_what_to_try_and_stops_at_once(self, up: Process) -> None:
        path = up.data / "connection.env"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(up.data.stat().st_mode) == 0o700
        with up.client() as client:
            assert [pool["name"] for pool in client.pools()] == ["small"]
            assert client.whoami()["project"]["slug"] == "default"
        code, took_s = up.stop()
        assert code == 0
        assert took_s < 10
        with up.client() as client, pytest.raises(Unreachable):
            client.pools()

    def test_it_goes_on_where_it_was_with_the_same_key(self, up: Process) -> None:
        with up.client() as client:
            region = client.regions()[0]
            made = client.create_cluster(
                {
                    "cluster_name": "stays",
                    "billing_type": "ON_DEMAND",
                    "region": "here",
                    "gpu_type": "H100_SXM",
                    "num_gpus": 8,
                    "nvidia_version_id": region["driver_versions"][0]["id"],
                }
            )
        before = connection.read(up.data / "connection.env")["EBBTIDE_API_KEY"]
        up.popen.kill()
        up.popen.communicate()
        # Without a fleet file this time: the fleet that the folder has stays.
        again = start(up.folder, "up", "--port", "0")
        try:
            again.read_until("Ctrl-C stops it.")
            assert connection.read(up.data / "connection.env")["EBBTIDE_API_KEY"] == before
            with again.client() as client:
                assert client.cluster(made["cluster_id"])["cluster_name"] == "stays"
                assert [pool["name"] for pool in client.pools()] == ["small"]
            assert again.stop(signal.SIGTERM)[0] == 0
        finally:
            again.popen.kill()
            again.popen.communicate()

    def test_sighup_reads_the_fleet_file_again(self, up: Process) -> None:
        (up.folder / "fleet.yaml").write_text(SMALL_FLEET.replace("[a, b]", "[a, b, c]"))
        up.popen.send_signal(signal.SIGHUP)
        assert "pool small: 1 hosts added" in up.read_error_until("hosts added")
        with up.client() as client:
            assert sorted(host["name"] for host in client.hosts()) == ["a", "b", "c"]
        (up.folder / "fleet.yaml").write_text("nonsense")
        up.popen.send_signal(signal.SIGHUP)
        assert up.read_error_until("fleet.yaml line 1: ")
        with up.client() as client:
            assert len(client.hosts()) == 3

    def test_one_folder_has_one_process(self, up: Process) -> None:
        second = start(up.folder, "up", "--port", "0")
        assert second.end()
        assert second.popen.returncode == 2
        with up.client() as client:
            assert client.pools()


class TestRefusals:
    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            ran = program("up", "--port", str(port), "--data", str(tmp_path / "d"))
        assert ran.returncode == 2
        assert f"port {port} on 127.0.0.1 is taken; give another --port, or 0 for any free one" in ran.stderr
        assert not (tmp_path / "d").exists()

    def test_an_address_that_is_not_ours(self, tmp_path: Path) -> None:
        ran = program("up", "--host", "192.0.2.1", "--data", str(tmp_path / "d"))
        assert ran.returncode == 2
        assert "cannot listen on 192.0.2.1" in ran.stderr

    def test_a_bad_fleet_file(self, tmp_path: Path) -> None:
        (tmp_path / "f.yaml").write_text("regions:\n\tr: {}\n")
        ran = program("up", "--fleet", str(tmp_path / "f.yaml"), "--data", str(tmp_path / "d"))
        assert ran.returncode == 1
        assert "f.yaml line 2: the line is indented with a tab" in ran.stderr
        assert not (tmp_path / "d").exists()

    def test_a_data_folder_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = program("up", "--port", "0", "--data", str(tmp_path / "file" / "d"))
        assert ran.returncode == 2
        assert "cannot be the data folder" in ran.stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("up --once", "give --demo too"),
            ("up --demo --fleet f.yaml", "leave --fleet out"),
            ("up --drain-window 0", "--drain-window"),
            ("up --demo --provider exec", "--demo plays on simulated or kwok"),
            ("serve", "no database is named"),
            ("worker", "no database is named"),
            ("keys first", "no database is named"),
        ],
    )
    def test_wrong_usage(self, run: Callable[..., Ran], words: str, message: str) -> None:
        ran = run(*words.split())
        assert ran.code == 2
        assert message in ran.err

    def test_a_provider_that_there_is_not(self, tmp_path: Path) -> None:
        ran = program("up", "--provider", "abacus", "--data", str(tmp_path / "d"))
        assert ran.returncode == 2
        assert "write one of exec, kwok, simulated" in ran.stderr
        assert not (tmp_path / "d").exists()

    def test_programs_that_are_missing(self, tmp_path: Path) -> None:
        words = ("up", "--provider", "kwok", "--data", str(tmp_path / "d"))
        ran = program(*words, XDG_CACHE_HOME=str(tmp_path))
        assert ran.returncode == 2
        assert "not found on this machine: etcd, kube-apiserver" in ran.stderr
        assert "ebbtide kube install" in ran.stderr
        assert not (tmp_path / "d").exists()

    def test_a_folder_of_another_provider(self, tmp_path: Path) -> None:
        data = tmp_path / "d"
        data.mkdir()
        (data / "provider").write_text("kwok\n")
        ran = program("up", "--port", "0", "--data", str(data))
        assert ran.returncode == 2
        assert "belongs to --provider kwok" in ran.stderr
        assert [path.name for path in data.iterdir()] == ["provider"]

    def test_another_database(self) -> None:
        ran = program("serve", "--database", "mysql://x", "--port", "0", EBBTIDE_SECRET_KEYS="A" * 43 + "=")
        assert ran.returncode == 2
        assert "error: Ebbtide needs PostgreSQL" in ran.stderr


STEPS = [
    "orders cluster reef",
    "raises the target to 3 nodes",
    "✓ reef is Ready: 8 standard GPUs, 24 of 24 preemptible GPUs",
    "orders cluster tide: 2 standard nodes. No host is free",
    "✓ promised inside the request",
    "got notice: TogetherPreempted",
    "got SIGTERM",
    "its trainer saved and exited",
    "deadline reached; removed",
    "✓ nobody was cut short",
    "has tide Ready on 2 standard nodes",
    "✓ reef stayed Ready",
    "scales tide down",
    "16 of 24 GPUs",
    "✓ $2.50 and $1.25 per GPU-hour",
    "every step checked against the API",
]


@pytest.mark.slow
def test_the_story_is_told_whole_also_after_one_that_was_killed(tmp_path: Path) -> None:
    """The first telling is killed in mid-drain; the second one clears away what it left."""
    words = ("up", "--demo", "--once", "--port", "0", "--drain-window", "12")
    killed = start(tmp_path, *words)
    try:
        killed.read_until("got SIGTERM")
    finally:
        killed.popen.kill()
        killed.popen.communicate()
    story = start(tmp_path, *words)
    try:
        out, err = story.popen.communicate(timeout=240)
    finally:
        story.popen.kill()
    assert story.popen.returncode == 0, (out, err)
    assert "was killed" in out
    at = -1
    for step in STEPS:
        assert out.find(step, at + 1) > at, (step, out)
        at = out.find(step, at + 1)


@pytest.mark.slow
def test_a_story_that_does_not_happen_ends_in_failure(tmp_path: Path) -> None:
    """Somebody's cluster stands on the stage: the story says so and `--once` ends with 1."""
    first = start(tmp_path, "up", "--port", "0")
    try:
        first.read_until("Ctrl-C stops it.")
        with first.client() as client:
            client.create_cluster(
                {
                    "cluster_name": "mine",
                    "billing_type": "ON_DEMAND",
                    "region": "story-1",
                    "gpu_type": "H100_SXM",
                    "num_gpus": 8,
                    "nvidia_version_id": "story-1-570-128",
                }
            )
        assert first.stop()[0] == 0
    finally:
        first.popen.kill()
    second = start(tmp_path, "up", "--demo", "--once", "--port", "0")
    out, err = second.popen.communicate(timeout=120)
    assert second.popen.returncode == 1, (out, err)
    assert "cluster mine (" in err
    assert "is in region story-1, where the story plays; delete it" in err
