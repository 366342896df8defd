"""The manifests that we tell people to apply: an API server takes them, a scheduler places them well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.live.fleet import Fleet
from tests.live.kubectl import STRICTLY, Json, Kubectl, Refused, eventually
from tests.live.templates import Manifest, asks_for_preemptible

FOLDER = Path(__file__).parents[2] / "docs" / "workloads" / "manifests"
FILES = sorted(FOLDER.glob("*.yaml"))
every_manifest = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

Cleaned = Callable[[Path], None]


def test_there_are_manifests() -> None:
    assert len(FILES) >= 7


@every_manifest
@pytest.mark.usefixtures("crds")
def test_it_applies_strictly_as_it_stands(kubectl: Kubectl, cleaned: Cleaned, path: Path) -> None:
    cleaned(path)
    kubectl("apply", *STRICTLY, "--filename", path)
    found = kubectl("get", "--output=name", "--filename", path).split()
    assert len(found) == len(Manifest.read(path).objects)


@pytest.mark.parametrize(
    ("stem", "kind"),
    [
        ("job", "Job"),
        ("jobset", "JobSet"),
        ("raycluster", "RayCluster"),
        ("trainjob", "TrainJob"),
        ("trainjob", "ClusterTrainingRuntime"),
        ("kueue", "ClusterQueue"),
        ("kueue", "LocalQueue"),
        ("kueue", "ResourceFlavor"),
    ],
)
@pytest.mark.usefixtures("crds")
def test_a_misspelt_field_is_refused(kubectl: Kubectl, tmp_path: Path, stem: str, kind: str) -> None:
    """The test above would notice: each of these kinds is checked field by field."""
    spoilt = next(one for one in Manifest.read(FOLDER / f"{stem}.yaml").objects if one["kind"] == kind)
    spoilt["spec"]["graceSecond"] = 300
    path = tmp_path / "spoilt.yaml"
    path.write_text(yaml.safe_dump(spoilt))
    with pytest.raises(Refused, match="graceSecond"):
        kubectl("apply", *STRICTLY, "--dry-run=server", "--filename", path)


@pytest.mark.parametrize("placement", ["open", "explicit"])
@every_manifest
@pytest.mark.usefixtures("crds")
def test_its_pods_go_where_they_belong(
    kubectl: Kubectl, fleet: Fleet, cleaned: Cleaned, path: Path, placement: str
) -> None:
    """Preemptible work runs on preemptible nodes only; what others depend on stays on standard ones."""
    manifest = Manifest.read(path)
    fleet.place(placement)
    cleaned(path)
    kubectl("apply", *STRICTLY, "--filename", path)
    pods = manifest.other_pods()
    there = {claim["metadata"]["name"] for claim in kubectl.items("persistentvolumeclaims")}
    kubectl.apply(*(_claim(name) for name in sorted(manifest.claims() - there)), *pods)
    wanted = manifest.own_pods() + len(pods)
    assert wanted > 0
    eventually(lambda: _not_placed(kubectl, wanted))
    for pod in kubectl.items("pods"):
        expected = "preemptible" if asks_for_preemptible(pod) else "standard"
        assert fleet.class_of(pod["spec"]["nodeName"]) == expected, pod["metadata"]["name"]


def _not_placed(kubectl: Kubectl, wanted: int) -> str | None:
    """Supply volumes for claims that wait for one; then say which pods have no node yet."""
    claims = kubectl.items("persistentvolumeclaims")
    waiting = [claim for claim in claims if claim["status"].get("phase") != "Bound"]
    if waiting:
        kubectl.apply(*map(_volume, waiting))
    pods = kubectl.items("pods")
    if len(pods) != wanted:
        return f"{len(pods)} of {wanted} pods"
    without = [pod for pod in pods if "nodeName" not in pod["spec"]]
    return f"not placed: {[(pod['metadata']['name'], pod['status']) for pod in without]}" if without else None


def _claim(name: str) -> Json:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def _volume(claim: Json) -> Json:
    """A volume for this claim and no other."""
    name = claim["metadata"]["name"]
    spec = {
        "capacity": claim["spec"]["resources"]["requests"],
        "accessModes": claim["spec"]["accessModes"],
        "claimRef": {"namespace": "default", "name": name},
        "nfs": {"server": "storage.example.com", "path": f"/{name}"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"for-{name}"}, "spec": spec}
