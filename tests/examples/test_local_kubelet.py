"""examples/local-kubelet, as far as it goes without root; `make e2e` runs the rest."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "local-kubelet"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.usefixtures("example")
def test_what_is_missing_is_said_with_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = module("hosts")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        hosts.shutil, "which", lambda program: None if program == "runc" else f"/bin/{program}"
    )
    monkeypatch.setattr(hosts, "CNI_PLACES", (tmp_path,))
    told = hosts.missing()
    assert told[0].startswith("root: ")
    assert "apt-get install --no-install-recommends containernetworking-plugins runc" in told[1]


@pytest.mark.usefixtures("example")
def test_an_image_is_whole(tmp_path: Path) -> None:
    """Every digest that the index leads to is the digest of what lies there, down to the layers' files."""
    (tmp_path / "job.py").write_text("print(1)")
    file = module("images").write_images(tmp_path / "images", {"/opt/job.py": tmp_path / "job.py"})
    with tarfile.open(file) as archive:
        content = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}
    blobs = {name.removeprefix("blobs/sha256/"): data for name, data in content.items() if "/" in name}
    assert all(hashlib.sha256(data).hexdigest() == digest for digest, data in blobs.items())

    def blob(entry: dict[str, str]) -> bytes:
        return blobs[entry["digest"].removeprefix("sha256:")]

    manifests = [json.loads(blob(entry)) for entry in json.loads(content["index.json"])["manifests"]]
    assert [len(manifest["layers"]) for manifest in manifests] == [1, 2]
    for manifest in manifests:
        config = json.loads(blob(manifest["config"]))
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        assert config["config"]["Entrypoint"][0] == module("images").interpreter()
    more = tmp_path / "more.tar"
    more.write_bytes(blob(manifests[1]["layers"][1]))
    with tarfile.open(more) as layer:
        assert "opt/job.py" in layer.getnames()


@pytest.mark.usefixtures("example")
def test_the_device_plugin_speaks_protocol_buffers() -> None:
    """Compared with what protoc's own encoder writes for these messages."""
    plugin = module("device_plugin")
    register = plugin.field(1, "v1beta1") + plugin.field(3, "nvidia.com/gpu")
    assert register == b"\x0a\x07v1beta1\x1a\x0envidia.com/gpu"
    long = plugin.field(1, "x" * 300)
    assert long[:3] == b"\x0a\xac\x02"
    assert plugin.fields(long, 1) == [b"x" * 300]
    asked = plugin.field(1, plugin.field(1, "gpu-0") + plugin.field(1, "gpu-1"))
    answer = plugin.allocate(asked)
    assert answer == b"\x0a\x27\x0a\x25\x0a\x16NVIDIA_VISIBLE_DEVICES\x12\x0bgpu-0,gpu-1"


@pytest.mark.usefixtures("example")
def test_taints_as_the_kubelet_wants_them() -> None:
    taint = module("machine").taint
    assert taint("ebbtide/initializing=:NoSchedule") == {
        "key": "ebbtide/initializing",
        "value": "",
        "effect": "NoSchedule",
    }
