"""Where the programs of a control plane are looked for: folders that are named, then our cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import StartupError
from ebbtide.kube.programs import Platform, Program, named, this_platform

FOLDER_VARIABLES = ("EBBTIDE_KUBE_DIR", "KUBEBUILDER_ASSETS")

THREE_WAYS = """\
Any of these helps:
  1. name a folder that holds them: EBBTIDE_KUBE_DIR (or KUBEBUILDER_ASSETS)
  2. go online and run `ebbtide kube install`: it takes the projects' own release files
  3. install Go 1.26 or newer and run `ebbtide kube install`: it builds them (10 minutes, 6 GB of disk)"""


class MissingPrograms(StartupError):
    """Programs that are needed are nowhere. names: which; the message says how to get them."""

    def __init__(self, names: tuple[str, ...], reason: str = "") -> None:
        told = f"not found on this machine: {', '.join(names)}.\n"
        super().__init__(told + (f"{reason}\n" if reason else "") + THREE_WAYS, code="kube_programs_missing")
        self.names = names


@dataclass(frozen=True, slots=True)
class Found:
    """A program that is there. source: the variable that names its folder, or "cache"."""

    program: Program
    path: Path
    source: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look on one machine.

    folders: pairs of what named a folder, and the folder; the first that has a program wins
    cache:   our own folder; programs lie in it by platform, project and version
    """

    folders: tuple[tuple[str, Path], ...]
    cache: Path
    platform: Platform

    def cached(self, program: Program) -> Path:
        """Where our cache has, or will have, this program in its pinned version."""
        project = program.project
        return self.cache / str(self.platform) / f"{project.name}-{project.version}" / program.name

    def find(self, program: Program) -> Found | None:
        """The first place that has it."""
        named_ones = ((source, folder / program.name) for source, folder in self.folders)
        for source, path in (*named_ones, ("cache", self.cached(program))):
            if path.is_file() and os.access(path, os.X_OK):
                return Found(program, path, source)
        return None

    def require(self, names: tuple[str, ...]) -> dict[str, Path]:
        """Paths by name. Raises MissingPrograms with all that are not there."""
        found = {program.name: self.find(program) for program in named(names)}
        missing = tuple(name for name, each in found.items() if each is None)
        if missing:
            raise MissingPrograms(missing)
        return {name: each.path for name, each in found.items() if each is not None}


def places(environment: Mapping[str, str] = os.environ) -> Places:
    """The places that this environment names: EBBTIDE_KUBE_DIR, KUBEBUILDER_ASSETS, XDG_CACHE_HOME."""
    folders = tuple(
        (variable, Path(environment[variable]).absolute())
        for variable in FOLDER_VARIABLES
        if environment.get(variable)
    )
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    # The convention asks to ignore a path that is not absolute.
    base = given if given.is_absolute() else Path(environment.get("HOME") or Path.home()) / ".cache"
    return Places(folders, base / "ebbtide" / "kube", this_platform())
