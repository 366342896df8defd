"""What is pinned here and what is pinned for Go are the same."""

from __future__ import annotations

import re

import pytest

from ebbtide.kube.programs import (
    CONTROL_PLANE,
    PROGRAMS,
    Platform,
    Program,
    Project,
    this_platform,
    wanted_here,
)

PROJECTS = sorted({program.project for program in PROGRAMS.values()}, key=lambda project: project.name)
by_name = pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)


@by_name
def test_the_go_module_asks_for_the_pinned_version(project: Project) -> None:
    text = (project.folder / "go.mod").read_text()
    assert re.search(
        rf"^\t{re.escape(project.module)} {re.escape(project.version)}( // indirect)?$", text, re.MULTILINE
    )
    assert f"\n{project.module} {project.version} h1:" in (project.folder / "go.sum").read_text()


@by_name
def test_the_go_module_names_every_program_as_a_tool(project: Project) -> None:
    text = (project.folder / "go.mod").read_text()
    missing = [
        program.package
        for program in PROGRAMS.values()
        if program.project is project
        and not re.search(rf"^(tool|\t)\s*{re.escape(program.package)}$", text, re.MULTILINE)
    ]
    assert missing == []


@by_name
def test_programs_say_the_version_that_is_pinned(project: Project) -> None:
    stamped = re.findall(r"=(v[\d.]+)", project.ld_flags)
    assert set(stamped) <= {project.version}


def test_every_part_of_kubernetes_is_of_one_release() -> None:
    """Its modules of v1.N.M are published as v0.N.M, and each has to be replaced by just that."""
    project = PROGRAMS["kube-apiserver"].project
    text = (project.folder / "go.mod").read_text()
    replaced = re.findall(r"^\t(\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert len(replaced) > 30
    assert {(before == after, version) for before, after, version in replaced} == {
        (True, project.version.replace("v1.", "v0.", 1))
    }


def test_no_kubelet_but_on_linux() -> None:
    assert "kubelet" in wanted_here(Platform("linux", "arm64"))
    assert "kubelet" not in wanted_here(Platform("darwin", "arm64"))
    assert set(CONTROL_PLANE) <= set(wanted_here(Platform("darwin", "arm64")))


@pytest.mark.parametrize(("told", "meant"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("arm64", "arm64")])
def test_processors_are_named_as_go_names_them(
    monkeypatch: pytest.MonkeyPatch, told: str, meant: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: told)
    assert this_platform().machine == meant


def test_a_project_without_checksums_has_no_release_files() -> None:
    program: Program = PROGRAMS["kwok"]
    assert program.project.release is None
