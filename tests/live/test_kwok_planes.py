"""Control planes of provider `kwok`: they outlive the process, come back when killed, leave no trace."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest

from ebbtide.providers.base import Transient
from tests.live.kubectl import Kubectl
from tests.live.kwok import KwokRig

KEPT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": "default"}}


@pytest.fixture
async def rig(tmp_path: Path, programs: object, kwok_program: object) -> AsyncIterator[KwokRig]:
    one = KwokRig(tmp_path / "kwok", most=1)
    await one.kwok.begin()
    yield one
    await one.kwok.close()


def processes(folder: Path) -> list[str]:
    """Names of the processes that work in this folder or below."""
    found = psutil.process_iter(["cwd", "name"])
    return sorted(each.info["name"] for each in found if (each.info["cwd"] or "").startswith(str(folder)))


async def test_started_again_it_has_all_it_had_and_deleted_it_leaves_nothing(
    rig: KwokRig, kubectl_program: Path, tmp_path: Path
) -> None:
    """On a new port if the old one is taken."""
    cluster_id = await rig.cluster()
    assert rig.told == [cluster_id]
    kubectl = await rig.kubectl(kubectl_program, cluster_id, tmp_path / "config")
    kubectl.apply(KEPT)
    node = await rig.node(cluster_id, "h1")
    before = await rig.provider.control_plane(cluster_id)
    await rig.kwok.close()
    assert processes(rig.folder) == []
    port = int((rig.folder / "clusters" / cluster_id / "port").read_text())
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", port))
        taker.listen()
        again = KwokRig(rig.folder, most=1)
        await again.kwok.begin()
        try:
            found = await again.provider.control_plane(cluster_id)
            assert found is not None
            assert not found.ready
            assert found.why
            await again.until_ready(cluster_id)
            after = await again.provider.control_plane(cluster_id)
            assert before is not None
            assert after is not None
            assert after.kubeconfig != before.kubeconfig
            kubectl = await again.kubectl(kubectl_program, cluster_id, tmp_path / "config")
            assert kubectl.one("configmap", "kept")
            assert kubectl.one("node", node.node_name)
            assert [one.node_uid for one in await again.provider.list(node.pool)] == [node.node_uid]
            await leaves_nothing(again, cluster_id)
        finally:
            await again.kwok.close()


async def test_servers_that_were_killed_are_started_again(
    rig: KwokRig, kubectl_program: Path, tmp_path: Path
) -> None:
    cluster_id = await rig.cluster()
    node = await rig.node(cluster_id, "h1")
    for name in ("kube-apiserver", "etcd", "kwok"):
        kill(rig.folder, name)
        for _ in range(300):
            await asyncio.sleep(0.2)
            await rig.until_ready(cluster_id)  # it may have had to take another port
            kubectl = await rig.kubectl(kubectl_program, cluster_id, tmp_path / "config")
            if name in processes(rig.folder) and answers(kubectl, node.node_name):
                break
        else:
            raise AssertionError(f"{name} did not come back: {processes(rig.folder)}")


def kill(folder: Path, name: str) -> None:
    victims = [
        each
        for each in psutil.process_iter(["cwd", "name"])
        if (each.info["cwd"] or "").startswith(str(folder)) and each.info["name"] == name[:15]
    ]
    assert victims
    for each in victims:
        os.kill(each.pid, signal.SIGKILL)


def answers(kubectl: Kubectl, node: str) -> bool:
    try:
        return bool(kubectl.one("node", node))
    except AssertionError:
        return False


async def leaves_nothing(rig: KwokRig, cluster_id: str) -> None:
    with pytest.raises(Transient, match="1 control planes at most"):
        await rig.provider.create_control_plane(rig.new_id(), "one-too-many")
    assert not await rig.provider.delete_control_plane(cluster_id)
    assert await rig.provider.list_control_planes() == [cluster_id]
    for _ in range(150):
        if await rig.provider.delete_control_plane(cluster_id):
            break
        await asyncio.sleep(0.1)
    assert await rig.provider.control_plane(cluster_id) is None
    assert await rig.provider.list_control_planes() == []
    assert list((rig.folder / "clusters").iterdir()) == []
    assert processes(rig.folder) == []


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    rig = KwokRig(tmp_path / "kwok")
    folder = rig.folder / "clusters" / rig.new_id()
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text('{"cluster_id": "...", "name": "half-gone"}')
    (folder / "deleted").touch()
    await rig.kwok.begin()
    try:
        for _ in range(50):
            if not folder.exists():
                break
            await asyncio.sleep(0.1)
        assert await rig.provider.list_control_planes() == []
    finally:
        await rig.kwok.close()
