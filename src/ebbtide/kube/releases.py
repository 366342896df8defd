"""Release files of the projects themselves, taken only if their published checksum fits."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx

from ebbtide.errors import EbbtideError
from ebbtide.kube.programs import Platform, Program, Release

_CONNECT_LIMIT_S = 5.0
_READ_LIMIT_S = 30.0
_CHUNK_BYTES = 1 << 20

# Told the file's name, the bytes that have come, and all there are (0: not known).
Progress = Callable[[str, int, int], None]


class NoRelease(EbbtideError):
    """A release file cannot be had here: not reachable, or none for this platform. Building may work."""


class ChecksumMismatch(EbbtideError):
    """What came is not what the project published. Nothing of it is kept, and nothing else is tried."""


def http_client() -> httpx.AsyncClient:
    """A client with time limits, which obeys the usual proxy variables."""
    limits = httpx.Timeout(_READ_LIMIT_S, connect=_CONNECT_LIMIT_S)
    return httpx.AsyncClient(timeout=limits, follow_redirects=True)


async def download(
    client: httpx.AsyncClient, program: Program, where: Platform, folder: Path, progress: Progress
) -> Path:
    """Put the program into `folder` and return its path. Raises NoRelease or ChecksumMismatch."""
    release = program.project.release
    if release is None:
        raise NoRelease(f"no checksums are known for the release files of {program.project.name}")
    if where.system not in release.systems:
        raise NoRelease(f"{program.project.name} releases no {program.name} for {where}")
    url, checksums = _addresses(release, program, where)
    try:
        wanted = await _checksum(client, checksums, url.rsplit("/", 1)[1])
        packed = folder / f"{url.rsplit('/', 1)[1]}.part"
        got = await _fetch(client, url, packed, progress)
    except httpx.HTTPError as error:
        raise NoRelease(
            f"{httpx.URL(url).host} did not answer well: {str(error) or type(error).__name__}"
        ) from error
    if got != wanted:
        packed.unlink()
        raise ChecksumMismatch(
            f"{url} has the SHA-256 {got}, but {checksums} says {wanted}: something on the way changed it, "
            "or only part of it came; nothing was kept"
        )
    return _unpacked(packed, program, folder)


def _addresses(release: Release, program: Program, where: Platform) -> tuple[str, str]:
    facts = {
        "version": program.project.version,
        "name": program.name,
        "system": where.system,
        "machine": where.machine,
    }
    return release.url.format(**facts), release.checksums.format(**facts)


async def _checksum(client: httpx.AsyncClient, url: str, file_name: str) -> str:
    """The SHA-256 that a file of checksums gives: the only one in it, or the one beside the file's name."""
    answer = await client.get(url)
    answer.raise_for_status()
    for line in answer.text.splitlines():
        digest, _, name = line.strip().partition(" ")
        if len(digest) == 64 and name.strip().lstrip("*") in ("", file_name):
            return digest.lower()
    raise NoRelease(f"{url} has no checksum for {file_name}")


async def _fetch(client: httpx.AsyncClient, url: str, path: Path, progress: Progress) -> str:
    """Write what the address gives to `path`; returns its SHA-256."""
    digest = hashlib.sha256()
    with contextlib.closing(io.FileIO(path, "w")) as file:
        async with client.stream("GET", url) as answer:
            answer.raise_for_status()
            size = int(answer.headers.get("content-length", 0))
            async for chunk in answer.aiter_bytes(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                progress(url, file.tell(), size)
    return digest.hexdigest()


def _unpacked(packed: Path, program: Program, folder: Path) -> Path:
    """The program itself, executable; out of a .tar.gz only that one file is taken."""
    path = folder / program.name
    if packed.name.endswith(".tar.gz.part"):
        with tarfile.open(packed) as archive:
            members = (each for each in archive if each.isfile() and Path(each.name).name == program.name)
            member = next(members, None)
            source = None if member is None else archive.extractfile(member)
            if source is None:
                raise NoRelease(f"{packed.name.removesuffix('.part')} holds no file named {program.name}")
            with source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
        packed.unlink()
    else:
        packed.rename(path)
    path.chmod(0o755)
    return path
