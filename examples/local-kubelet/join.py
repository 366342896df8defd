"""Let a machine of a lab join a cluster by hand, as one of its own: nothing that Ebbtide lends or takes.

python join.py --lab DIR --kubeconfig FILE NAME [--gpus N] [--label KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from hosts import Busy, Lab, NotPossible

from ebbtide.clock import AnchoredClock
from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes.joining import join_data
from ebbtide.errors import EbbtideError
from ebbtide.kube.client import KubeClient


async def _join_data(kubeconfig: str, name: str) -> dict[str, str]:
    """What the machine needs, with a bootstrap token of its own, as `kubeadm token create` makes it."""
    client = KubeClient(kubeconfig)
    try:
        node = NodeRef(f"by-hand-{name}", name)
        return dict(await join_data(client, kubeconfig, node, AnchoredClock().now()))
    finally:
        await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="a machine that joins a cluster by hand")
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="the administrator's")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--host", help="the lab's host; the name if not given")
    parser.add_argument("name")
    options = parser.parse_args()
    lab = Lab(options.lab.resolve())
    order = {
        "node_uid": f"by-hand-{options.name}",
        "node_name": options.name,
        "host_name": options.host or options.name,
        "gpus": options.gpus,
        "labels": dict(text.partition("=")[::2] for text in options.label),
        "taints": [],
    }
    try:
        join = asyncio.run(_join_data(options.kubeconfig.read_text(), options.name))
        with lab.alone():
            lab.create({**order, "join": join})
    except (Busy, NotPossible, EbbtideError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
