"""What an imported cluster's own nodes are, and whether we have our rights there."""

from __future__ import annotations

import re

from ebbtide.core import marks
from ebbtide.drivers.base import StandardNode
from ebbtide.drivers.kubernetes import objects
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient
from ebbtide.kube.rights import missing

_NODES = "/api/v1/nodes"
_LONGEST = 24
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|[kKMGTPE]i?)?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3} | {
    name: float(base**power)
    for power, letter in enumerate("KMGTPE", start=1)
    for name, base in ((letter, 1000), (f"{letter}i", 1024))
}


async def missing_rights(client: KubeClient) -> list[str]:
    """See `drivers.base.Driver.missing_rights`. Raises KubeError."""
    return [str(each) for each in await missing(client)]


async def standard(client: KubeClient, selector: str) -> list[StandardNode]:
    """See `drivers.base.Driver.standard`. Raises KubeError."""
    found = await client.list(_NODES, labelSelector=selector)
    ours = marks.LABEL_NODE_UID
    nodes = [_node(each) for each in found.items if ours not in objects.labels(each)]
    return sorted(nodes, key=lambda node: node.name)


def _node(thing: Json) -> StandardNode:
    allocatable = objects.part(thing, "status", "allocatable")
    addresses = [
        objects.text(each, "address")
        for each in objects.items(thing, "status", "addresses")
        if each.get("type") == "InternalIP"
    ]
    return StandardNode(
        name=objects.name(thing),
        ready=objects.condition(thing, "Ready").get("status") == "True",
        gpus=int(_amount(allocatable.get(marks.GPU))),
        memory_gib=int(_amount(allocatable.get("memory")) / 2**30),
        cpu_cores=int(_amount(allocatable.get("cpu"))),
        address=objects.plain(addresses[0]) if addresses else "",
    )


def _amount(quantity: object) -> float:
    """A Kubernetes quantity as a number; what is none, or absurd, counts as 0."""
    written = str(quantity or 0)
    found = _QUANTITY.fullmatch(written) if len(written) < _LONGEST else None
    return float(found[1]) * _UNITS.get(found[2] or "", 0.0) if found else 0.0
