"""Container images without a registry and without a build tool: OCI archives made of files of this machine.

    python images.py FOLDER [NAME-IN-IMAGE=FILE ...]

writes FOLDER/images.tar with two images: the Python that runs this, its standard library and the shared
libraries it needs, under the name PYTHON; the same with a program that only waits, under the name PAUSE.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PYTHON = "ebbtide.example/python:1"
PAUSE = "ebbtide.example/pause:1"

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NOT_NEEDED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "site-packages",
    "dist-packages",
}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

# A pod's first process holds its namespaces: it ends at once when told, and buries what is left to it.
_WAIT = """
import os, signal
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: os._exit(0))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""


def interpreter() -> str:
    """The path of Python in the images: the one it has here."""
    return str(Path(sys.executable).resolve())


def write_images(folder: Path, more: Mapping[str, Path] | None = None) -> Path:
    """Write both images into one archive and return its path.

    more: further files and folders of the image named PYTHON, by their absolute paths in it
    """
    folder.mkdir(parents=True, exist_ok=True)
    python, extra = folder / "python.layer", folder / "more.layer"
    _write_layer(python, [(path, path) for path in _python_files()])
    _write_layer(extra, [(path, Path(name)) for name, path in (more or {}).items()])
    environment = ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"]
    wait = {"Env": environment, "Entrypoint": [interpreter(), "-I", "-S", "-c", _WAIT]}
    work = {"Env": environment, "Entrypoint": [interpreter()]}
    with tarfile.open(folder / "images.tar", "w") as archive:
        for layer in (python, extra):
            archive.add(layer, f"blobs/sha256/{_digest(layer)}")
        entries = [_image(archive, PAUSE, wait, [python]), _image(archive, PYTHON, work, [python, extra])]
        _text(archive, "index.json", {"schemaVersion": 2, "manifests": entries})
        _text(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
    for layer in (python, extra):
        layer.unlink()
    return folder / "images.tar"


def _python_files() -> list[Path]:
    """The interpreter, its standard library, and every shared library that one of them asks for."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        path for path in sorted(library.rglob("*")) if path.is_file() and _needed(path.relative_to(library))
    ]
    binaries = [Path(interpreter()), *(path for path in files if path.suffix == ".so")]
    return [Path(interpreter()), *files, *_shared_libraries(binaries)]


def _needed(path: Path) -> bool:
    inside_config = path.parts[0].startswith("config-") and path.name != "Makefile"
    unused = path.suffix in (".a", ".o") or ".opt-" in path.name  # compiled for `python -O`
    return not (_NOT_NEEDED & set(path.parts) or unused or inside_config)


def _shared_libraries(binaries: Iterable[Path]) -> list[Path]:
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=60).stdout
    paths = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(paths)]


def _write_layer(path: Path, content: Iterable[tuple[Path, Path]]) -> None:
    """An uncompressed layer. content: pairs of what is there and where it goes. Links become their ends."""
    with tarfile.open(path, "w", dereference=True, format=tarfile.GNU_FORMAT) as layer:
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        layer.addfile(tmp)
        for source, place in content:
            layer.add(source, str(place).lstrip("/"), filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _image(archive: tarfile.TarFile, name: str, run: Mapping[str, Any], layers: list[Path]) -> dict[str, Any]:
    """Add an image's configuration and manifest; returns its entry for the index. Its layers are there."""
    digests = [f"sha256:{_digest(layer)}" for layer in layers]
    machine = platform.machine()
    config = {
        "architecture": _MACHINES.get(machine, machine),
        "os": "linux",
        "config": dict(run),
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(archive, config, _CONFIG),
        "layers": [
            {"mediaType": _LAYER, "digest": digest, "size": layer.stat().st_size}
            for layer, digest in zip(layers, digests, strict=True)
        ],
    }
    entry = _blob(archive, manifest, _MANIFEST)
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    return {**entry, "annotations": names}


def _blob(archive: tarfile.TarFile, content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    text = json.dumps(content).encode()
    digest = hashlib.sha256(text).hexdigest()
    _text(archive, f"blobs/sha256/{digest}", content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(text)}


def _text(archive: tarfile.TarFile, name: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    pairs = (argument.partition("=") for argument in sys.argv[2:])
    print(write_images(Path(sys.argv[1]), {name: Path(file) for name, _, file in pairs}))
