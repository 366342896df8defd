"""Where programs are looked for, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.kube.places import MissingPrograms, Places, places
from ebbtide.kube.programs import PROGRAMS, Platform
from tests.kube.conftest import write_program

ETCD = PROGRAMS["etcd"]
HERE = Platform("linux", "amd64")


def test_named_folders_come_in_the_order_of_the_setting_then_the_tools(tmp_path: Path) -> None:
    found = places({"KUBEBUILDER_ASSETS": str(tmp_path / "b"), "EBBTIDE_KUBE_DIR": str(tmp_path / "a")})
    assert [folder for _, folder in found.folders] == [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"HOME": "/home/you"}, "/home/you/.cache/ebbtide/kube"),
        ({"HOME": "/home/you", "XDG_CACHE_HOME": "/var/c"}, "/var/c/ebbtide/kube"),
        ({"HOME": "/home/you", "XDG_CACHE_HOME": "relative"}, "/home/you/.cache/ebbtide/kube"),
    ],
)
def test_the_cache_is_where_the_convention_says(environment: dict[str, str], cache: str) -> None:
    assert places(environment).cache == Path(cache)


def test_a_version_has_a_folder_of_its_own(where: Places) -> None:
    assert where.cached(ETCD) == where.cache / "linux-amd64" / f"etcd-{ETCD.project.version}" / "etcd"


def test_a_named_folder_comes_before_the_cache(where: Places) -> None:
    write_program(where.cached(ETCD), "")
    cached = where.find(ETCD)
    assert cached is not None
    assert cached.source == "cache"
    write_program(where.folders[0][1] / "etcd", "")
    named = where.find(ETCD)
    assert named is not None
    assert (named.source, named.path) == ("EBBTIDE_KUBE_DIR", where.folders[0][1] / "etcd")


def test_a_file_that_cannot_be_run_is_not_the_program(where: Places) -> None:
    (where.folders[0][1] / "etcd").write_text("")
    (where.folders[0][1] / "kwok").mkdir()
    assert where.find(ETCD) is None
    assert where.find(PROGRAMS["kwok"]) is None


def test_what_is_missing_is_named_with_the_ways_out(where: Places) -> None:
    write_program(where.cached(ETCD), "")
    with pytest.raises(MissingPrograms) as error:
        where.require(("etcd", "kubelet", "kwok"))
    assert error.value.names == ("kubelet", "kwok")
    for word in (
        "kubelet, kwok",
        "EBBTIDE_KUBE_DIR",
        "KUBEBUILDER_ASSETS",
        "ebbtide kube install",
        "Go 1.26",
    ):
        assert word in error.value.message
