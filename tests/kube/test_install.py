"""Installing: from where, in which order, and what is left when it is interrupted."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ebbtide.clock import monotonic
from ebbtide.kube.gobuild import BuildFailed
from ebbtide.kube.install import install
from ebbtide.kube.places import MissingPrograms, Places
from ebbtide.kube.programs import PROGRAMS
from ebbtide.kube.releases import ChecksumMismatch
from tests.kube.conftest import Heard, start, write_program

LIMIT_S = 20.0
SERVERS = ("kube-apiserver", "kube-scheduler")
PathWith = Callable[[str | None], Path]

# Understands `go list` and `go build` as far as we use them, and notes its calls beside itself.
GO = """
import os, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
packages = [each for each in sys.argv if each.count("/") > 1 and not each.startswith(("/", "-"))]
if sys.argv[1] == "list":
    print("\\n".join(["some/inner/package", *packages]))
    sys.exit()
with (here / "calls").open("a") as calls:
    print(os.getcwd(), os.environ["CGO_ENABLED"], *packages, file=calls)
print("some/inner/package", *packages, sep="\\n", file=sys.stderr)
{then}
output = sys.argv[sys.argv.index("-o") + 1]
for package in packages:
    path = pathlib.Path(output) / package.rsplit("/", 1)[1] if output.endswith("/") else pathlib.Path(output)
    path.write_text("built")
    path.chmod(0o755)
"""
FAILS = 'print("x.go:1:1: it does not compile", file=sys.stderr); sys.exit(1)'
TAKES_LONG = '(here / "begun").write_text(""); import time; time.sleep(60)'


def offline() -> httpx.AsyncClient:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no network")

    return httpx.AsyncClient(transport=httpx.MockTransport(refuse))


def online(content: bytes, checksum_of: bytes | None = None) -> Callable[[], httpx.AsyncClient]:
    """Every file is this content; its checksum is that of `checksum_of`."""
    digest = hashlib.sha256(content if checksum_of is None else checksum_of).hexdigest()

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=digest if request.url.path.endswith(".sha256") else content)

    return lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer))


def never() -> httpx.AsyncClient:
    raise AssertionError("nothing has to be loaded")


def in_cache(where: Places) -> list[str]:
    return sorted(path.name for path in where.cache.rglob("*") if path.is_file() and path.name != "lock")


async def test_what_is_there_is_only_found(where: Places, heard: Heard, path_with: PathWith) -> None:
    path_with(None)
    write_program(where.folders[0][1] / "kube-apiserver", "")
    write_program(where.cached(PROGRAMS["etcd"]), "")
    found = await install(("kube-apiserver", "etcd"), where, heard, clients=never)
    assert [(each.program.name, each.source) for each in found] == [
        ("kube-apiserver", "EBBTIDE_KUBE_DIR"),
        ("etcd", "cache"),
    ]
    assert heard.sentences == []


async def test_release_files_come_before_go(where: Places, heard: Heard, path_with: PathWith) -> None:
    go = path_with(GO.format(then=""))
    found = await install(SERVERS, where, heard, clients=online(b"released"))
    assert [each.path.read_bytes() for each in found] == [b"released", b"released"]
    assert [each.path for each in found] == [where.cached(PROGRAMS[name]) for name in SERVERS]
    assert not (go / "calls").exists()
    await install(SERVERS, where, heard, clients=never)


async def test_without_network_go_builds_each_project_once(
    where: Places, heard: Heard, path_with: PathWith
) -> None:
    go = path_with(GO.format(then=""))
    found = await install(("etcd", *SERVERS, "kwok"), where, heard, clients=offline)
    assert {each.path.read_text() for each in found} == {"built"}
    calls = (go / "calls").read_text().splitlines()
    assert [Path(call.split()[0]).name for call in calls] == ["etcd", "kubernetes", "kwok"]
    assert all(call.split()[1] == "0" for call in calls)
    assert calls[1].split()[2:] == [PROGRAMS[name].package for name in SERVERS]
    assert in_cache(where) == ["etcd", "kube-apiserver", "kube-scheduler", "kwok"]
    assert sum("no network" in sentence for sentence in heard.sentences) == 2  # not once per program


async def test_progress_counts_packages(where: Places, heard: Heard, path_with: PathWith) -> None:
    path_with(GO.format(then="import time; time.sleep(1.5)"))
    await install(("kwok",), where, heard, clients=offline)
    assert ("compiling kwok", 2, 2, "packages") in heard.advances


async def test_without_network_and_go_the_ways_out_are_told(
    where: Places, heard: Heard, path_with: PathWith
) -> None:
    path_with(None)
    with pytest.raises(MissingPrograms) as error:
        await install(("etcd",), where, heard, clients=offline)
    for words in ("no network", "there is no `go` on PATH", "EBBTIDE_KUBE_DIR", "release files", "Go 1.26"):
        assert words in error.value.message
    assert in_cache(where) == []


async def test_a_file_that_was_tampered_with_ends_it(
    where: Places, heard: Heard, path_with: PathWith
) -> None:
    """Building instead would hide that somebody changed a file."""
    go = path_with(GO.format(then=""))
    with pytest.raises(ChecksumMismatch):
        await install(SERVERS, where, heard, clients=online(b"evil", checksum_of=b"good"))
    assert in_cache(where) == []
    assert not (go / "calls").exists()


async def test_a_failed_build_says_what_go_said_and_leaves_nothing(
    where: Places, heard: Heard, path_with: PathWith
) -> None:
    path_with(GO.format(then=FAILS))
    with pytest.raises(BuildFailed, match="it does not compile"):
        await install(SERVERS, where, heard, clients=offline)
    assert in_cache(where) == []
    assert list(where.cache.glob(".staging-*")) == []


async def until(condition: Callable[[], bool]) -> None:
    late = monotonic() + LIMIT_S
    while not condition():
        assert monotonic() < late
        await asyncio.sleep(0.02)


async def test_a_cancelled_build_ends_go_and_leaves_nothing(
    where: Places, heard: Heard, path_with: PathWith
) -> None:
    go = path_with(GO.format(then=TAKES_LONG))
    task = asyncio.create_task(install(("kwok",), where, heard, clients=offline))
    await until((go / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_cache(where) == []
    assert list(where.cache.glob(".staging-*")) == []


async def test_a_killed_installer_leaves_nothing_that_counts(
    where: Places, heard: Heard, path_with: PathWith, tmp_path: Path
) -> None:
    go = path_with(GO.format(then=TAKES_LONG))
    script = (
        "import asyncio; from ebbtide.kube import install, places\n"
        "asyncio.run(install.install(('kwok',), places.places(), install.Progress()))"
    )
    environment = {
        "PATH": f"{go}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": ":".join(sys.path),
    }
    killed = start([sys.executable, "-c", script], environment)
    cache = tmp_path / "ebbtide" / "kube"
    try:
        await until((go / "begun").exists)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    here = Places((), cache, where.platform)
    assert list(cache.glob(".staging-*")) != []  # it had begun
    assert here.find(PROGRAMS["kwok"]) is None
    write_program(go / "go", GO.format(then=""))
    (found,) = await install(("kwok",), here, heard, clients=offline)
    assert found.path.read_text() == "built"
    assert list(cache.glob(".staging-*")) == []


async def test_two_at_once_build_once(where: Places, path_with: PathWith) -> None:
    go = path_with(GO.format(then="import time; time.sleep(0.5)"))
    first, second = Heard(), Heard()
    await asyncio.gather(
        install(("kwok",), where, first, clients=offline), install(("kwok",), where, second, clients=offline)
    )
    assert len((go / "calls").read_text().splitlines()) == 1
    assert second.sentences == ["another process is installing; waiting for it"]
