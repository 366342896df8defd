"""Getting the programs that are missing into our cache: release files first, then Go.

Whatever happens on the way, the cache holds only whole programs: each is made in a folder of its own and
moved in at the end. Several installers may run at once; one works, the others wait and find its work done.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from ebbtide.kube.gobuild import NoGo, build
from ebbtide.kube.places import Found, MissingPrograms, Places
from ebbtide.kube.programs import Program, Project, named
from ebbtide.kube.releases import NoRelease, download, http_client

_STAGING_PREFIX = ".staging-"
_LOCK_EVERY_S = 0.2
_MEGABYTE = 1_000_000


class Progress:
    """Hears how the work goes. This one is deaf."""

    def say(self, sentence: str) -> None:
        """Something has begun or ended."""

    def advance(self, what: str, done: int, total: int, unit: str) -> None:
        """`what` is at `done` of `total` (0: not known) `unit`. Called often."""


async def install(
    names: tuple[str, ...],
    where: Places,
    progress: Progress,
    *,
    clients: Callable[[], httpx.AsyncClient] = http_client,
) -> tuple[Found, ...]:
    """Find these programs, getting what is nowhere; returns them all, in the order of `names`.

    All there already: only looks. Raises MissingPrograms when they cannot be had here, BuildFailed when Go
    fails, and ChecksumMismatch when a release file is not what its project published. Cancelled or killed:
    what is whole stays, the rest goes, the next call continues.
    """
    programs = named(names)
    missing = _missing(programs, where)
    if missing:
        where.cache.mkdir(parents=True, exist_ok=True)
        async with _alone(where.cache, progress):
            _clear_staging(where.cache)
            missing = _missing(programs, where)  # again: another installer may just have ended
            left, reasons = await _download_all(missing, where, progress, clients)
            await _build_all(left, where, progress, reasons)
    found = tuple(where.find(program) for program in programs)
    return tuple(each for each in found if each is not None)


def _missing(programs: Sequence[Program], where: Places) -> tuple[Program, ...]:
    return tuple(program for program in programs if where.find(program) is None)


async def _download_all(
    programs: Sequence[Program], where: Places, progress: Progress, clients: Callable[[], httpx.AsyncClient]
) -> tuple[list[Program], list[str]]:
    """Take what release files give. Returns what is left, and why. What failed once is not asked again."""
    left: list[Program] = []
    failed: dict[str, str] = {}
    async with clients() as client:
        for program in programs:
            if program.project.name not in failed:
                staging = _staging(where.cache)
                try:
                    path = await download(client, program, where.platform, staging, _bytes(progress))
                    _move_in(path, program, where)
                    progress.say(f"{program.name} {program.project.version}: taken from its release files")
                    continue
                except NoRelease as error:
                    failed[program.project.name] = error.message
                    progress.say(f"no release file for {program.project.name}: {error.message}")
                finally:
                    shutil.rmtree(staging, ignore_errors=True)
            left.append(program)
    return left, list(failed.values())


def _bytes(progress: Progress) -> Callable[[str, int, int], None]:
    return lambda url, done, total: progress.advance(
        f"loading {url}", done // _MEGABYTE, total // _MEGABYTE, "MB"
    )


async def _build_all(
    programs: Sequence[Program], where: Places, progress: Progress, reasons: Sequence[str]
) -> None:
    def by_project(program: Program) -> str:
        return program.project.name

    for _, group in itertools.groupby(sorted(programs, key=by_project), key=by_project):
        members = tuple(group)
        try:
            await _build(members[0].project, members, where, progress)
        except NoGo as error:
            told = "; ".join(dict.fromkeys((*reasons, error.message)))
            raise MissingPrograms(tuple(program.name for program in programs), f"({told})") from error


async def _build(project: Project, members: tuple[Program, ...], where: Places, progress: Progress) -> None:
    names = ", ".join(program.name for program in members)
    staging = _staging(where.cache)
    try:
        progress.say(f"building {names} {project.version} with Go")
        await build(
            project,
            members,
            staging,
            lambda done, total: progress.advance(f"compiling {project.name}", done, total, "packages"),
        )
        for program in members:
            _move_in(staging / program.name, program, where)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress.say(f"{names} {project.version}: built")


def _move_in(path: Path, program: Program, where: Places) -> None:
    final = where.cached(program)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, final)


def _staging(cache: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=cache))


def _clear_staging(cache: Path) -> None:
    """What killed installers left. Only called under the lock: nobody works in any of these."""
    for left in cache.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


@asynccontextmanager
async def _alone(cache: Path, progress: Progress) -> AsyncIterator[None]:
    """Wait until no other installer works in this cache. The lock goes with the process."""
    with (cache / "lock").open("a") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress.say("another process is installing; waiting for it")
                    told = True
                await asyncio.sleep(_LOCK_EVERY_S)
        yield
