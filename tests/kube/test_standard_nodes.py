"""An imported cluster's own nodes, as they are read."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.core import marks
from ebbtide.drivers.base import StandardNode
from ebbtide.drivers.kubernetes import standard
from ebbtide.kube.client import KubeList


class Listing:
    """Answers one list, and keeps what was asked."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = list(items)
        self.asked: list[tuple[str, object]] = []

    async def list(self, path: str, **params: object) -> KubeList:
        self.asked.append((path, params.get("labelSelector")))
        return KubeList(self.items, "1")


def a_node(name: str, labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": status}


async def test_what_is_read_of_them() -> None:
    full = a_node(
        "b",
        {"pool": "gpu"},
        allocatable={marks.GPU: "8", "memory": "1056256Mi", "cpu": "95500m"},
        conditions=[{"type": "Ready", "status": "True"}],
        addresses=[{"type": "Hostname", "address": "b"}, {"type": "InternalIP", "address": "10.0.0.2"}],
    )
    bare = {"metadata": {"name": "a"}}
    listing = Listing(full, bare)
    found = await standard.standard(listing, "pool=gpu")  # a client as far as it is used
    assert found == [
        StandardNode("a", ready=False, gpus=0),
        StandardNode("b", ready=True, gpus=8, memory_gib=1031, cpu_cores=95, address="10.0.0.2"),
    ]
    assert listing.asked == [("/api/v1/nodes", "pool=gpu")]


async def test_ours_are_not_among_them() -> None:
    """Whatever the selector says."""
    listing = Listing(a_node("x", {marks.LABEL_NODE_UID: "u"}), a_node("y", {"pool": "gpu"}))
    assert [node.name for node in await standard.standard(listing, "!nothing")] == ["y"]


@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_one_that_is_not_ready(status: str) -> None:
    listing = Listing(a_node("x", conditions=[{"type": "Ready", "status": status}]))
    assert not (await standard.standard(listing, "a"))[0].ready


@pytest.mark.parametrize(
    ("quantity", "gib"),
    [("1Ti", 1024), ("2Gi", 2), ("2147483648", 2), ("3000M", 2), ("4194304Ki", 4), ("", 0), ("much", 0)],
)
async def test_quantities(quantity: str, gib: int) -> None:
    listing = Listing(a_node("x", allocatable={"memory": quantity}))
    assert (await standard.standard(listing, "a"))[0].memory_gib == gib
