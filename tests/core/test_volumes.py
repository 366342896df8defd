"""Volumes: the table of their states, and how one stands in a cluster."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from ebbtide.core.volumes import (
    ATTACHABLE,
    DEFAULT_TEMPLATE,
    MOVES,
    IllegalVolumeMove,
    VolumeFacts,
    VolumeStatus,
    check_growth,
    check_move,
    check_name,
    check_size,
    check_template,
    outlives_cluster,
    provisioned_status,
    render,
)
from ebbtide.errors import BadInput

FACTS = VolumeFacts("demo-data", "v-1", "vol/17", 3, "eu-1", "proj-1", "c-1")
NFS = {
    "metadata": {"labels": {"team": "storage"}, "name": "another"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "mountOptions": ["nconnect=8"],
        "nfs": {"server": "nfs.{region}.invalid", "path": "/exports/{project_id}/{handle}"},
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Delete",
    },
}


@pytest.mark.parametrize(("before", "after"), list(product(VolumeStatus, VolumeStatus)))
def test_only_the_moves_of_the_table_are_made(before: VolumeStatus, after: VolumeStatus) -> None:
    if after in MOVES[before]:
        check_move(before, after)
    else:
        with pytest.raises(IllegalVolumeMove, match=f"from {before} to {after}"):
            check_move(before, after)


def test_every_state_but_the_last_can_be_deleted() -> None:
    assert {state for state in VolumeStatus if VolumeStatus.DELETING in MOVES[state]} == {*VolumeStatus} - {
        VolumeStatus.DELETING
    }
    assert MOVES[VolumeStatus.DELETING] == frozenset()
    assert VolumeStatus.BOUND not in ATTACHABLE


def test_bound_is_what_a_cluster_has() -> None:
    assert provisioned_status(attached=True) is VolumeStatus.BOUND
    assert provisioned_status(attached=False) is VolumeStatus.AVAILABLE


@pytest.mark.parametrize(
    ("inline", "independent", "stays"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
def test_only_what_was_made_with_a_cluster_goes_with_it(inline: bool, independent: bool, stays: bool) -> None:
    assert outlives_cluster(made_with_cluster=inline, is_lifecycle_independent=independent) is stays


@pytest.mark.parametrize("name", ["a", "demo-data", "7", "x" * 63])
def test_names_that_kubernetes_takes(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "-a", "a-", "x" * 64, "a\0b", "ü", "a.b", "a\n", "a b"])
def test_names_that_it_does_not(name: str) -> None:
    with pytest.raises(BadInput, match="lower-case"):
        check_name(name)


def test_sizes() -> None:
    check_size(1, 5)
    check_size(5, 5)
    for size in (0, -1, 6, 10**40):
        with pytest.raises(BadInput, match="1 to 5 TiB"):
            check_size(size, 5)
    check_growth(2, 2)
    check_growth(2, 3)
    with pytest.raises(BadInput, match="only grows"):
        check_growth(2, 1)


def test_nfs_from_the_operators_template() -> None:
    manifest = render(check_template(NFS), FACTS)
    assert manifest["kind"] == "PersistentVolume"
    assert manifest["metadata"] == {
        "name": "demo-data",
        "labels": {"team": "storage", "ebbtide.dev/volume-id": "v-1"},
    }
    spec = manifest["spec"]
    assert spec["nfs"] == {"server": "nfs.eu-1.invalid", "path": "/exports/proj-1/vol/17"}
    assert (spec["accessModes"], spec["mountOptions"]) == (["ReadWriteOnce"], ["nconnect=8"])
    assert spec["capacity"] == {"storage": "3Ti"}
    assert spec["persistentVolumeReclaimPolicy"] == "Retain"


def test_the_usual_template_is_one() -> None:
    spec = render(check_template(DEFAULT_TEMPLATE), FACTS)["spec"]
    assert spec["csi"]["volumeHandle"] == "vol/17"
    assert (spec["accessModes"], spec["storageClassName"]) == (["ReadWriteMany"], "")


def test_rendering_leaves_the_template_alone() -> None:
    before = repr(NFS)
    render(NFS, FACTS)
    assert repr(NFS) == before


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "with a `spec`"),
        ({"spec": []}, "with a `spec`"),
        ({"spec": {}}, "names none"),
        ({"spec": {"nfs": {}, "csi": {}}}, "csi"),
        ({"kind": "PersistentVolumeClaim", "spec": {"nfs": {}}}, "PersistentVolumeClaim"),
        ({"spec": {"nfs": {"path": "/{secret}"}}}, "spec.nfs.path names {secret}"),
    ],
)
def test_what_is_no_template(template: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_template(template)
    assert said in refused.value.message
