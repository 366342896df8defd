"""Building the programs with Go, from the pinned modules in `gomod/`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.kube.keeper import Kept
from ebbtide.kube.programs import Program, Project

_LINES_SHOWN = 12
_LIST_LIMIT_S = 300
_LOOK_EVERY_S = 0.5

# Told how many packages are compiled, and all there are.
Progress = Callable[[int, int], None]


class NoGo(EbbtideError):
    """There is no `go` on PATH."""


class BuildFailed(EbbtideError):
    """`go` ended badly; the message has its last lines."""


def go() -> str:
    """The path of `go`. Raises NoGo."""
    found = shutil.which("go")
    if found is None:
        raise NoGo("there is no `go` on PATH")
    return found


def build_environment() -> dict[str, str]:
    """Ours, and what every build needs. The user's own GOFLAGS, GOPROXY and GOTOOLCHAIN hold."""
    return dict(os.environ) | {"CGO_ENABLED": "0", "GOWORK": "off"}


def command(project: Project, programs: Sequence[Program], folder: Path) -> list[str]:
    """`go build` for programs of one project, into `folder`."""
    # One program: a file of its name, whatever its package is called. Several: a folder, where Go names them.
    output = folder / programs[0].name if len(programs) == 1 else f"{folder}/"
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", project.ld_flags, "-v"]
    return [go(), "build", *flags, "-o", str(output), *(program.package for program in programs)]


async def build(project: Project, programs: Sequence[Program], folder: Path, progress: Progress) -> None:
    """Build programs of one project into `folder`. Cancelled: ends the build. Raises NoGo or BuildFailed."""
    log = folder / f"build-{project.name}.log"
    with log.open("wb") as output:
        kept = Kept(
            f"go build of {project.name}",
            command(project, programs, folder),
            output=output,
            folder=project.folder,
            environment=build_environment(),
            stop_limit_s=2,
        )
        try:
            total = await asyncio.to_thread(_packages, project, programs)
            while kept.exit_code is None:
                progress(_compiled(log), total)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            await kept.stop()
    if kept.exit_code != 0:
        lines = [line for line in _lines(log) if " " in line]  # those without blanks only name packages
        shown = "\n".join(lines[-_LINES_SHOWN:])
        raise BuildFailed(
            f"`go build` of {project.name} {project.version} ended with {kept.exit_code}:\n{shown}"
        )


def _packages(project: Project, programs: Sequence[Program]) -> int:
    """How many packages these programs are made of; 0 if Go does not say (the build says why)."""
    command = [go(), "list", "-mod=readonly", "-deps", *(program.package for program in programs)]
    try:
        listed = subprocess.run(
            command, cwd=project.folder, env=build_environment(), capture_output=True, timeout=_LIST_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return 0
    return len(listed.stdout.splitlines()) if listed.returncode == 0 else 0


def _compiled(log: Path) -> int:
    # `go build -v` writes each package's path as it comes to it; its other lines are sentences.
    return sum(1 for line in _lines(log) if " " not in line)


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()
