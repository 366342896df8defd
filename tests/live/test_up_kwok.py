"""`ebbtide up --provider kwok` as people start it, killed in the middle of a drain and started again."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ebbtide.client import Client
from ebbtide.clock import monotonic
from tests.cli.test_up import Process, start
from tests.live.kubectl import Kubectl
from tests.live.test_kwok_planes import answers, processes

T = TypeVar("T")
Json = dict[str, Any]

FLEET = """\
regions: {here: {}}
pools:
  small: {region: here, gpu_type: H100_SXM, price_per_gpu_hour: 2, boot_s: 1, turn_over_s: 1, hosts: [a, b]}
"""
WINDOW_S = 30
_PLACES = ("HOME", "XDG_CACHE_HOME", "EBBTIDE_KUBE_DIR", "KUBEBUILDER_ASSETS")


def up(folder: Path) -> Process:
    """Started, and ready."""
    environment = {name: os.environ[name] for name in _PLACES if name in os.environ}
    options = ("--provider", "kwok", "--fleet", "fleet.yaml", "--port", "0")
    process = start(folder, "up", *options, "--drain-window", str(WINDOW_S), **environment)
    process.read_until("Ctrl-C stops it.")
    return process


def eventually(look: Callable[[], T | None], what: str, limit_s: float = 90) -> T:
    late = monotonic() + limit_s
    while not (found := look()):
        assert monotonic() < late, f"{what}: not within {limit_s:g} s"
        threading.Event().wait(0.3)
    return found


@pytest.fixture
def server(tmp_path: Path, programs: object, kwok_program: object) -> Iterator[Process]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    process = up(tmp_path)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


def order(client: Client) -> str:
    body = {
        "cluster_name": "reef",
        "billing_type": "ON_DEMAND",
        "region": "here",
        "gpu_type": "H100_SXM",
        "num_gpus": 8,
        "num_preemptible_gpus": 8,
        "project_id": client.whoami()["project"]["id"],
        "nvidia_version_id": client.regions()[0]["driver_versions"][0]["id"],
    }
    cluster_id: str = client.create_cluster(body)["cluster_id"]
    eventually(lambda: client.cluster(cluster_id)["allocated_preemptible_gpus"] == 8, "a preemptible node")
    return cluster_id


def tenant(client: Client, cluster_id: str, program: Path, path: Path) -> Kubectl:
    """kubectl with the kubeconfig that the API hands out now."""
    path.write_bytes(base64.b64decode(client.cluster(cluster_id)["kube_config"]))
    return Kubectl(program, path)


def deaf_pod(kubectl: Kubectl) -> str:
    """A pod on the preemptible node that neither SIGTERM nor SIGKILL ends; the node's name."""
    notes = {"ebbtide/obeys": "false", "ebbtide/killed-late-s": "600"}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "deaf", "namespace": "default", "annotations": notes},
            "spec": {
                "terminationGracePeriodSeconds": 300,
                "nodeSelector": {"together.ai/compute-class": "preemptible"},
                "containers": [{"name": "main", "image": "none"}],
            },
        }
    )
    running = "{.status.phase} {.spec.nodeName}"
    seen = eventually(
        lambda: (
            text
            if (text := kubectl("get", "pod", "deaf", f"--output=jsonpath={running}")).startswith("Running ")
            else None
        ),
        "the pod runs",
    )
    return seen.split()[1]


def draining(client: Client) -> list[Json]:
    return [node for node in client.nodes() if node["phase"] == "DRAINING"]


def test_killed_amid_a_drain_it_keeps_the_deadline_and_deleted_it_leaves_nothing(
    server: Process, kubectl_program: Path, tmp_path: Path
) -> None:
    config = tmp_path / "reef.kubeconfig"
    with server.client() as client:
        cluster_id = order(client)
        kubectl = tenant(client, cluster_id, kubectl_program, config)
        node = deaf_pod(kubectl)
        client.reclaim("small", 1, "test")
        eventually(lambda: "deletionTimestamp" in kubectl.one("pod", "deaf")["metadata"], "SIGTERM")
        (before,) = draining(client)
    ends_by = kubectl.one("pod", "deaf")["metadata"]["deletionTimestamp"]
    assert before["name"] == node
    kwok = server.data / "kwok"
    server.popen.kill()
    server.popen.communicate()
    eventually(lambda: processes(kwok) == [], "no server outlives its process", 30)
    # Its old port is taken meanwhile.
    port = int((kwok / "clusters" / cluster_id / "port").read_text())
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", port))
        taker.listen()
        again = up(tmp_path)
    try:
        with again.client() as client:
            deadline = datetime.fromisoformat(before["deadline"])
            gone_at = goes_on(client, kubectl_program, config, cluster_id, node, ends_by, deadline)
            assert timedelta(seconds=-1) <= gone_at - deadline <= timedelta(seconds=30)
            client.delete_cluster(cluster_id)
            eventually(lambda: not client.clusters(), "the cluster goes")
            assert processes(kwok) == []
            assert list((kwok / "clusters").iterdir()) == []
            eventually(lambda: not list((kwok / "machines").iterdir()), "the machines go")
        assert again.stop()[0] == 0
    finally:
        again.popen.kill()
        again.popen.communicate()


def goes_on(
    client: Client,
    program: Path,
    config: Path,
    cluster_id: str,
    node: str,
    ends_by: str,
    deadline: datetime,
) -> datetime:
    """The drain after the restart: same deadline, no second SIGTERM, a new port; when the node left."""
    old = config.read_bytes()
    if datetime.now(UTC) < deadline:
        (after,) = draining(client)
        assert (after["name"], datetime.fromisoformat(after["deadline"])) == (node, deadline)
    eventually(
        lambda: base64.b64decode(client.cluster(cluster_id)["kube_config"]) != old, "a new kubeconfig", 60
    )
    kubectl = tenant(client, cluster_id, program, config)
    eventually(lambda: answers(kubectl, node) or datetime.now(UTC) > deadline, "the API server answers")
    if datetime.now(UTC) < deadline - timedelta(seconds=2):
        assert kubectl.one("pod", "deaf")["metadata"]["deletionTimestamp"] == ends_by
    gone = eventually(
        lambda: [
            each
            for each in client.cluster(cluster_id).get("deleted_gpu_worker_nodes", [])
            if each["node_id"] == node and each.get("deleted_at")
        ],
        "the node goes",
    )
    eventually(lambda: not kubectl("get", "pod", "deaf", "--ignore-not-found"), "its pod goes")
    eventually(lambda: not kubectl("get", "node", node, "--ignore-not-found"), "its Node goes")
    lease = ("get", "lease", node, "--namespace=kube-node-lease", "--ignore-not-found")
    eventually(lambda: not kubectl(*lease), "its lease goes")
    return datetime.fromisoformat(gone[0]["deleted_at"])
