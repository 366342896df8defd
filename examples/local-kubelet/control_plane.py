"""A control plane that kubelets of this machine can join: `python control_plane.py FOLDER`, until Ctrl-C.

Ebbtide's local control planes are made for nodes without machines. This one besides takes bootstrap tokens,
gives kubelets certificates as kubeadm's clusters do, and reaches kubelets for logs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import yaml

from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Conflict
from ebbtide.kube.servers import Options

_JOINING = Path(__file__).resolve().parent / "joining.yaml"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def control_plane(folder: Path) -> ControlPlane:
    """The control plane in this folder, not started yet."""
    keys = folder.resolve() / "pki"
    server = (
        "--enable-bootstrap-token-auth=true",
        f"--kubelet-client-certificate={keys / 'admin.crt'}",
        f"--kubelet-client-key={keys / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
    )
    # Else a claim waits up to 15 s for a volume that is there.
    controllers = ("--pvclaimbinder-sync-period=1s",)
    arguments = {"kube-apiserver": server, "kube-controller-manager": controllers}
    return ControlPlane(folder, Options(name="local", durable=False, arguments=arguments))


async def allow_joining(kubeconfig: str) -> None:
    """Apply joining.yaml. Applied already: does nothing. Raises KubeError."""
    client = KubeClient(kubeconfig)
    try:
        for binding in yaml.safe_load_all(_JOINING.read_text()):
            try:
                await client.create(_BINDINGS, binding)
            except Conflict:
                continue
    finally:
        await client.close()


async def main(folder: Path) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with control_plane(folder) as plane:
        await allow_joining(plane.kubeconfig.read_text())
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
