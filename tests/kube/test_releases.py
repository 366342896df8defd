"""Release files, from a server of the test's own."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ebbtide.kube.programs import PROGRAMS, Platform
from ebbtide.kube.releases import ChecksumMismatch, NoRelease, download

HERE = Platform("linux", "amd64")
SERVER = PROGRAMS["kube-apiserver"]
ETCD = PROGRAMS["etcd"]
CONTENT = b"\x7fELF" + bytes(3_000_000)

Answers = dict[str, bytes]


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def archive(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for each, inside in (("etcd-v3/README.md", b"words"), (name, content)):
            member = tarfile.TarInfo(each)
            member.size = len(inside)
            file.addfile(member, io.BytesIO(inside))
    return packed.getvalue()


def serving(answers: Answers) -> httpx.AsyncClient:
    """A client whose server has these files, by the last part of their addresses."""

    def answer(request: httpx.Request) -> httpx.Response:
        content = answers.get(request.url.path.rsplit("/", 1)[1])
        return httpx.Response(404) if content is None else httpx.Response(200, content=content)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def deaf(url: str, done: int, total: int) -> None:
    pass


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_program_whose_checksum_fits_is_taken(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    answers = {"kube-apiserver": CONTENT, "kube-apiserver.sha256": sha256(CONTENT)}
    async with serving(answers) as client:
        path = await download(
            client, SERVER, HERE, tmp_path, lambda _, done, total: told.append((done, total))
        )
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o111
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert left_in(tmp_path) == ["kube-apiserver"]


async def test_out_of_an_archive_only_the_program_is_taken(tmp_path: Path) -> None:
    name = f"etcd-{ETCD.project.version}-linux-amd64.tar.gz"
    packed = archive("etcd-v3/etcd", CONTENT)
    sums = b"0" * 64 + b"  another.tar.gz\n" + sha256(packed) + b"  " + name.encode() + b"\n"
    async with serving({name: packed, "SHA256SUMS": sums}) as client:
        path = await download(client, ETCD, HERE, tmp_path, deaf)
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["etcd"]


@pytest.mark.parametrize(
    "spoil", [lambda content: content[:-1], lambda content: content + b"!", lambda content: b""]
)
async def test_a_file_that_is_not_what_was_published_is_not_kept(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    answers = {"kube-apiserver": spoil(CONTENT), "kube-apiserver.sha256": sha256(CONTENT)}
    async with serving(answers) as client:
        with pytest.raises(ChecksumMismatch, match="nothing was kept"):
            await download(client, SERVER, HERE, tmp_path, deaf)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"kube-apiserver": CONTENT},
        {"kube-apiserver.sha256": sha256(CONTENT)},
        {"kube-apiserver": CONTENT, "kube-apiserver.sha256": b"<html>come back later</html>"},
        {"kube-apiserver": CONTENT, "kube-apiserver.sha256": sha256(CONTENT) + b"  another-file\n"},
    ],
    ids=["nothing", "no checksum", "only the checksum", "no checksum in it", "another file's checksum"],
)
async def test_without_file_or_checksum_there_is_no_release(tmp_path: Path, answers: Answers) -> None:
    async with serving(answers) as client:
        with pytest.raises(NoRelease):
            await download(client, SERVER, HERE, tmp_path, deaf)
    assert not (tmp_path / "kube-apiserver").exists()


async def test_a_host_that_does_not_answer_is_named(tmp_path: Path) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no way there")

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(NoRelease, match=r"dl\.k8s\.io did not answer well: no way there"):
            await download(client, SERVER, HERE, tmp_path, deaf)


@pytest.mark.parametrize(("name", "where"), [("kwok", HERE), ("etcd", Platform("darwin", "arm64"))])
async def test_what_is_not_released_is_not_asked_for(tmp_path: Path, name: str, where: Platform) -> None:
    def asked(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"asked for {request.url}")

    async with httpx.AsyncClient(transport=httpx.MockTransport(asked)) as client:
        with pytest.raises(NoRelease):
            await download(client, PROGRAMS[name], where, tmp_path, deaf)


async def test_an_archive_without_the_program_is_no_release(tmp_path: Path) -> None:
    name = f"etcd-{ETCD.project.version}-linux-amd64.tar.gz"
    packed = archive("etcd-v3/etcdctl", CONTENT)
    async with serving({name: packed, "SHA256SUMS": sha256(packed) + b" *" + name.encode()}) as client:
        with pytest.raises(NoRelease, match="holds no file named etcd"):
            await download(client, ETCD, HERE, tmp_path, deaf)
