"""The programs that a Kubernetes control plane is made of: their pinned versions, and where each comes from.

`gomod/<project>/` holds the Go module (go.mod, go.sum) that pins everything a build takes in. A new version
means new numbers here and a new go.mod there; a test compares the two.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_STAMP = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Release:
    """A project's release file. `{version}`, `{name}`, `{system}` and `{machine}` stand for what is wanted.

    url:       the program itself, or a .tar.gz with it
    checksums: a file with its SHA-256: alone, or as `sum  file name` among others
    systems:   the operating systems the project releases it for
    """

    url: str
    checksums: str
    systems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """What is released, and built, as one.

    name:      also the folder of its Go module in `gomod/`
    module:    the Go module whose version is `version`
    ld_flags:  what the linker is told, so that the programs say their version
    release:   None: we know of no checksum to hold a file against, so it is built
    """

    name: str
    version: str
    module: str
    ld_flags: str
    release: Release | None

    @property
    def folder(self) -> Path:
        """The folder of its go.mod."""
        return Path(__file__).parent / "gomod" / self.name


@dataclass(frozen=True, slots=True)
class Program:
    """One program. package: the Go package of its main function. systems: where it can run at all."""

    name: str
    project: Project
    package: str
    systems: tuple[str, ...] = ("linux", "darwin")


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a kind of processor, as Go names them: linux and amd64."""

    system: str
    machine: str

    def __str__(self) -> str:
        return f"{self.system}-{self.machine}"


def this_platform() -> Platform:
    """Where this process runs."""
    machine = platform.machine().lower()
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    return Platform(platform.system().lower(), names.get(machine, machine))


ETCD = Project(
    name="etcd",
    version="v3.7.3",
    module="go.etcd.io/etcd/server/v3",
    ld_flags="-s -w",
    release=Release(
        url="https://github.com/etcd-io/etcd/releases/download/{version}/etcd-{version}-{system}-{machine}.tar.gz",
        checksums="https://github.com/etcd-io/etcd/releases/download/{version}/SHA256SUMS",
        systems=("linux",),
    ),
)
KUBERNETES = Project(
    name="kubernetes",
    version="v1.37.2",
    module="k8s.io/kubernetes",
    ld_flags=f"-s -w -X {_STAMP}.gitVersion=v1.37.2 -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor=37"
    f" -X {_STAMP}.gitTreeState=clean",
    release=Release(
        url="https://dl.k8s.io/{version}/bin/{system}/{machine}/{name}",
        checksums="https://dl.k8s.io/{version}/bin/{system}/{machine}/{name}.sha256",
        systems=("linux",),
    ),
)
KWOK = Project(
    name="kwok",
    version="v0.7.0",
    module="sigs.k8s.io/kwok",
    ld_flags="-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v0.7.0",
    release=None,
)

PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", ETCD, "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kube-scheduler", KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
        Program("kube-controller-manager", KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwok"),
        Program("kubelet", KUBERNETES, "k8s.io/kubernetes/cmd/kubelet", systems=("linux",)),
    )
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")


def named(names: tuple[str, ...]) -> tuple[Program, ...]:
    """The programs of these names, each once. Raises KeyError for a name that is none of them."""
    return tuple(PROGRAMS[name] for name in dict.fromkeys(names))


def wanted_here(where: Platform) -> tuple[str, ...]:
    """The names of all programs that can run on this platform."""
    return tuple(name for name, program in PROGRAMS.items() if where.system in program.systems)
