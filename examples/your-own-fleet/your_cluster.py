"""A cluster that stands for yours: `python your_cluster.py FOLDER`, until Ctrl-C.

A real Kubernetes control plane on this machine, with two nodes of eight GPUs that have the label `pool=gpu`.
There are no machines behind them: kwok plays their kubelets. It plays any other node, too, as long as that
has the label `machine=on`; see `machine.py`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from machine import node

from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Conflict
from ebbtide.kube.keeper import Kept
from ebbtide.kube.places import places
from ebbtide.kube.servers import Options
from ebbtide.providers.kwok.player import STAGES


async def main(folder: Path) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    kwok = places().require(("kwok",))["kwok"]
    async with ControlPlane(folder, Options(name="yours", durable=False)) as plane:
        await standard_nodes(plane.kubeconfig.read_text())
        plays = [
            kwok,
            f"--kubeconfig={plane.kubeconfig}",
            "--manage-nodes-with-label-selector=machine=on",
            "--node-lease-duration-seconds=40",
            f"--config={STAGES}",
        ]
        with (folder / "logs" / "kwok.log").open("wb") as log:
            player = Kept("kwok", plays, output=log, folder=folder)
        try:
            print(f"export KUBECONFIG={plane.kubeconfig.resolve()}", flush=True)
            await ended.wait()
        finally:
            await player.stop()


async def standard_nodes(kubeconfig: str) -> None:
    """Two nodes of the cluster's own. There already: does nothing. Raises KubeError."""
    client = KubeClient(kubeconfig)
    try:
        for name in ("gpu-a", "gpu-b"):
            try:
                await client.create("/api/v1/nodes", node(name, {"pool": "gpu"}, []))
            except Conflict:
                continue
    finally:
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
