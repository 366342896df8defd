"""Definitions of the custom resources in our manifests, from the projects' own Go modules, pinned by hash.

They are loaded when the tests run (Go keeps them in its cache of modules); none is copied into here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.live.kubectl import Kubectl

_LIMIT_S = 180


class CrdsNotThere(Exception):
    """The definitions cannot be had on this machine; the message says how to change that."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """A Go module, the hash that Go has for its content, and the folder in it that holds the definitions."""

    module: str
    version: str
    content_hash: str
    folder: str


DEFINITIONS = (
    Definitions(
        "sigs.k8s.io/jobset",
        "v0.11.1",
        "h1:WgLEBnXTeX+4MxfVkIbfm4jIVgjvIY6Jfaei2okxKNk=",
        "config/components/crd/bases",
    ),
    Definitions(
        "sigs.k8s.io/kueue",
        "v0.17.0",
        "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
        "config/components/crd/bases",
    ),
    Definitions(
        "github.com/kubeflow/trainer/v2",
        "v2.0.0",
        "h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU=",
        "manifests/base/crds",
    ),
    Definitions(
        "github.com/ray-project/kuberay/ray-operator",
        "v1.5.0",
        "h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=",
        "config/crd/bases",
    ),
)


def load(definitions: Definitions, empty: Path) -> list[Path]:
    """The files of the definitions. empty: a folder without a go.mod, to call Go in. Raises CrdsNotThere."""
    if shutil.which("go") is None:
        raise CrdsNotThere(
            "no `go` on PATH: without it, there are no definitions of JobSet, Kueue, Trainer and KubeRay.\n"
            "Install Go 1.24 or newer."
        )
    name = f"{definitions.module}@{definitions.version}"
    environment = os.environ | {"GOWORK": "off", "GO111MODULE": "on"}
    command = ["go", "mod", "download", "-json", name]
    ran = subprocess.run(
        command, cwd=empty, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
    )
    told = json.loads(ran.stdout) if ran.stdout else {"Error": ran.stderr}
    if "Dir" not in told:
        raise CrdsNotThere(
            f"Go cannot load {name}: {told.get('Error')}\nGo online once; then they are in Go's cache."
        )
    assert told["Sum"] == definitions.content_hash, f"{name} is not what it was when it was pinned"
    files = sorted(
        path
        for path in (Path(told["Dir"]) / definitions.folder).glob("*.yaml")
        if path.name != "kustomization.yaml"
    )
    assert files, f"{name} has no definitions in {definitions.folder}"
    return files


def install_crds(kubectl: Kubectl, empty: Path) -> None:
    """Apply all of them, and wait until the API server knows them. Raises CrdsNotThere."""
    files = [path for definitions in DEFINITIONS for path in load(definitions, empty)]
    # Not with --validate=strict: others may write their definitions as they like.
    kubectl("apply", "--server-side", *(f"--filename={path}" for path in files))
    kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
