"""`ebbtide fleet why`: a node's name is tried first, then a cluster's."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Ran
from tests.cli.stub import Stub

CLUSTER = {"cluster_id": "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01", "cluster_name": "reef"}
SENTENCES = {"sentences": ["The first.", "The second."]}


def test_why_a_node(stub: Stub, online: Callable[..., Ran]) -> None:
    stub.on("GET /v1/fleet/why/node/gpu-1", SENTENCES)
    ran = online("fleet", "why", "gpu-1")
    assert (ran.code, ran.lines) == (0, ["The first.", "The second."])
    assert online("fleet", "why", "gpu-1", "--json").json == SENTENCES


def test_why_a_target(stub: Stub, online: Callable[..., Ran]) -> None:
    stub.on("GET /v1/compute/clusters", {"clusters": [CLUSTER]})
    stub.on(f"GET /v1/compute/clusters/{CLUSTER['cluster_id']}", CLUSTER)
    stub.on(f"GET /v1/fleet/why/target/{CLUSTER['cluster_id']}", SENTENCES)
    ran = online("fleet", "why", "reef")
    assert (ran.code, ran.lines) == (0, ["The first.", "The second."])


def test_neither_is_told(stub: Stub, online: Callable[..., Ran]) -> None:
    stub.on("GET /v1/compute/clusters", {"clusters": []})
    ran = online("fleet", "why", "reef")
    assert ran.code != 0
    assert "there is no cluster 'reef'" in ran.err
