"""docs/your-own-fleet.md, word for word: its commands in their order, on a real control plane."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_BLOCK = re.compile(r"^```sh ?(?P<where>\w*)\n(?P<lines>.*?)^```$", re.DOTALL | re.MULTILINE)
_SHORTER = {"sleep 15": "sleep 10", "sleep 150": "sleep 15"}  # the rest of hosts is shorter here, too


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Path:
    """A folder with what the page uses of a checkout."""
    shutil.copytree(repository / "examples" / "your-own-fleet", tmp_path / "examples" / "your-own-fleet")
    return tmp_path


@contextmanager
def terminal(folder: Path, commands: str, says: str) -> Iterator[None]:
    """Commands that go on in a terminal of their own, once they said this; Ctrl-C at the end."""
    log = folder / f"terminal-{says.split()[0]}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-ec", f"{commands}"],
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            for _ in range(600):
                if says in log.read_text() or process.poll() is not None:
                    break
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            assert says in log.read_text(), log.read_text()
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


def environment() -> dict[str, str]:
    places = ("HOME", "XDG_CACHE_HOME", "EBBTIDE_KUBE_DIR", "KUBEBUILDER_ASSETS", "TMPDIR")
    kept = {name: os.environ[name] for name in places if name in os.environ}
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "NO_COLOR": "1", "EBBTIDE_COOLDOWN_S": "3"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.usefixtures("programs", "kwok_program", "kubectl_program")
def test_the_page_can_be_followed_word_for_word(checkout: Path, repository: Path) -> None:
    page = (repository / "docs" / "your-own-fleet.md").read_text(encoding="utf-8")
    found = [(match["where"], match["lines"]) for match in _BLOCK.finditer(page)]
    there = {where: lines for where, lines in found if where}
    assert set(there) == {"setup", "every", "cluster", "server"}
    # The server is started between the blocks before it and those after it.
    at = [where for where, _ in found].index("server")
    before = "".join(lines for where, lines in found[:at] if not where)
    after = "".join(lines for where, lines in found[at:] if not where)
    for said, instead in _SHORTER.items():
        after = after.replace(f"{said}\n", f"{instead}\n")
    server = there["server"].replace("ebbtide up", f"ebbtide up --port {free_port()}")
    with terminal(checkout, there["cluster"], "export KUBECONFIG="):
        said = follow(checkout, before)
        assert '{"gone": true, "wiped_by": "a line in wiped.log"}' in said
        with terminal(checkout, server, "Ctrl-C stops it."):
            said = follow(checkout, 'export KUBECONFIG="$PWD/my-cluster/kubeconfig"\n' + after)
    assert re.search(r"gpu-preemptible-dp-\S+ +Ready", said)
    assert "pod/training condition met" in said
    assert "TogetherPreempted" in said
    wiped = (checkout / "my-cluster" / "wiped.log").read_text().splitlines()
    assert [line.split()[1] for line in wiped] == ["after", "after", "before", "before", "after", "after"]
    assert "reef is detached" in said
    last = said[said.index("reef is detached") :]
    assert "gpu-a" in last
    assert "gpu-preemptible" not in last


def follow(folder: Path, commands: str) -> str:
    """All that the commands print; each must go well."""
    run = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout
