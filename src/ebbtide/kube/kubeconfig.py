"""Kubeconfig files: what kubectl and every other client reads."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from ebbtide.kube.certificates import Pair, write_private


@dataclass(frozen=True, slots=True)
class Access:
    """A way into a cluster.

    name: what the cluster and the context are called. authority: a PEM file
    pair: the client's certificate and key. user: what the file calls their owner; without it, `name`
    """

    name: str
    url: str
    authority: Path
    pair: Pair
    user: str | None = None

    def kubeconfig(self) -> str:
        """The file's text, certificates and key within it, so that it works wherever it is copied to."""
        cluster = {"server": self.url, "certificate-authority-data": _base64(self.authority)}
        user = {
            "client-certificate-data": _base64(self.pair.certificate),
            "client-key-data": _base64(self.pair.key),
        }
        called = self.user or self.name
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "users": [{"name": called, "user": user}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": called}}],
            "current-context": self.name,
        }
        return json.dumps(content, indent=2) + "\n"  # JSON is YAML, too

    def write(self, path: Path) -> Path:
        """Write the kubeconfig, whole or not at all, readable by its owner alone."""
        write_private(path, self.kubeconfig().encode())
        return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
