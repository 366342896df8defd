"""Volume attachments: what still ties volumes to a node."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json

ALL = "/apis/storage.k8s.io/v1/volumeattachments"


def of_node(listed: Sequence[Json], node_name: str) -> list[Json]:
    """Those that name the node. The API server cannot select by it."""
    return [one for one in listed if objects.text(one, "spec", "nodeName") == node_name]
