"""`ebbtide kube`, with programs that only look real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.kube.programs import CONTROL_PLANE
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that EBBTIDE_KUBE_DIR names; the cache is empty and there is no Go."""
    monkeypatch.setenv("EBBTIDE_KUBE_DIR", str(tmp_path / "named"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("ebbtide.kube.gobuild.shutil.which", lambda name: None)
    (tmp_path / "named").mkdir()
    return tmp_path / "named"


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nprint('Kubernetes v9.8.7')\n")
        path.chmod(0o755)


def test_status_says_what_is_missing_and_fails(folder: Path, run: Run) -> None:
    put(folder, "etcd")
    ran = run("kube", "status")
    assert ran.code == 1
    assert ran.lines[1].split() == ["etcd", "v9.8.7", "EBBTIDE_KUBE_DIR", str(folder / "etcd")]
    assert ran.lines[2].split() == ["kube-apiserver", "-", "missing", "-"]
    assert "ebbtide kube install" in ran.err


def test_install_is_content_with_what_is_there(folder: Path, run: Run) -> None:
    put(folder, *CONTROL_PLANE)
    ran = run("kube", "install", "--json", "--only", ",".join(CONTROL_PLANE))
    assert ran.code == 0
    assert ran.err == ""
    assert [(row["program"], row["source"]) for row in ran.json] == [
        (name, "EBBTIDE_KUBE_DIR") for name in CONTROL_PLANE
    ]


def test_install_says_what_helps_when_nothing_can_be_had(folder: Path, run: Run) -> None:
    """kwok has no release files, so nothing is loaded."""
    ran = run("kube", "install", "--only", "kwok")
    assert ran.code == 2
    assert ran.out == ""
    for words in ("not found on this machine: kwok", "there is no `go`", "EBBTIDE_KUBE_DIR", "Go 1.26"):
        assert words in ran.err


def test_a_program_that_does_not_run_is_told(folder: Path, run: Run) -> None:
    (folder / "etcd").write_text("#!/nonexistent\n")
    (folder / "etcd").chmod(0o755)
    ran = run("kube", "status", "--only", "etcd")
    assert "does not run: FileNotFoundError" in ran.out


@pytest.mark.parametrize("only", ["etcd,none", "", ","])
def test_unknown_names_are_refused_with_those_there_are(folder: Path, run: Run, only: str) -> None:
    ran = run("kube", "install", "--only", only)
    assert ran.code == 2
    assert "kube-controller-manager" in ran.err
