"""A real control plane: what it is, and that it survives being stopped and killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest

from ebbtide.clock import monotonic
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.programs import KUBERNETES
from ebbtide.kube.servers import Options
from tests.live.kubectl import Kubectl

OPTIONS = Options(name="own", durable=False)
SETTING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": "default"}}


def test_kubectl_is_at_home(kubectl: Kubectl, plane: ControlPlane) -> None:
    assert (
        json.loads(kubectl("version", "--output=json"))["serverVersion"]["gitVersion"] == KUBERNETES.version
    )
    assert kubectl("get", "nodes", "--output=json")
    assert kubectl("auth", "whoami", "--output=jsonpath={.status.userInfo.username}") == "ebbtide-admin"
    assert plane.ended == ()


def test_strangers_are_kept_out(plane: ControlPlane) -> None:
    context = plane.ssl_context()
    stranger = type(context)(context.protocol)
    stranger.load_verify_locations(str(plane.access.authority))
    with httpx.Client(verify=stranger, trust_env=False) as client:
        assert client.get(f"{plane.url}/api/v1/nodes").status_code in (401, 403)
    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.ConnectError, match="certificate"):
        client.get(f"{plane.url}/readyz")


def test_only_the_api_server_listens_and_only_here(plane: ControlPlane) -> None:
    """Everything else speaks through files that other users cannot reach."""
    sockets = (socket for each in _processes_in(plane.folder) for socket in each.net_connections("tcp"))
    listening = {f"{socket.laddr.ip}:{socket.laddr.port}" for socket in sockets if socket.status == "LISTEN"}
    assert listening == {plane.url.removeprefix("https://")}


def _processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder, but for kwok."""
    found = psutil.process_iter(["cwd", "name"])
    return [each for each in found if each.info["cwd"] == str(folder) and each.info["name"] != "kwok"]


def test_stopped_and_started_it_has_everything_it_had(
    tmp_path: Path, programs: object, kubectl_program: Path
) -> None:
    plane = ControlPlane(tmp_path / "plane", OPTIONS)
    begun = monotonic()
    url = asyncio.run(plane.start())
    try:
        first_s = monotonic() - begun
        kubectl = Kubectl(kubectl_program, plane.kubeconfig)
        kubectl.apply(SETTING)
        asyncio.run(plane.stop())
        assert _processes_in(plane.folder) == []
        begun = monotonic()
        assert asyncio.run(plane.start()) == url
        print(f"started in {first_s:.1f} s, again in {monotonic() - begun:.1f} s")
        assert kubectl.one("configmap", "kept")["metadata"]["name"] == "kept"
    finally:
        asyncio.run(plane.delete())


def test_killed_with_its_process_it_leaves_no_server_and_keeps_its_data(
    tmp_path: Path, programs: object, kubectl_program: Path
) -> None:
    folder = tmp_path / "plane"
    script = (
        "import asyncio, pathlib, sys, time; from ebbtide.kube import controlplane, servers\n"
        "plane = controlplane.ControlPlane(pathlib.Path(sys.argv[1]), servers.Options(durable=False))\n"
        "asyncio.run(plane.start()); print('up', flush=True); time.sleep(300)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    kubectl = Kubectl(kubectl_program, folder / "kubeconfig")
    kubectl.apply(SETTING)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    late = monotonic() + 30
    while _processes_in(folder):
        assert monotonic() < late, "servers outlived the process that started them"
    plane = ControlPlane(folder, OPTIONS)
    asyncio.run(plane.start())
    try:
        assert kubectl.one("configmap", "kept")["metadata"]["name"] == "kept"
    finally:
        asyncio.run(plane.delete())
