"""What a machine needs to find its cluster: the API server's address, its authority, and a token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes import objects, tokens
from ebbtide.errors import BadInput
from ebbtide.kube import way_in
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Rejected

_CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


async def join_data(client: KubeClient, kubeconfig: str, node: NodeRef, now: datetime) -> Mapping[str, str]:
    """`server` (a URL), `ca` (PEM) and `token`.

    The address that a cluster announces to machines wins over the one by which we reach it. Raises KubeError
    and BadInput.
    """
    server, authority = await _announced(client) or way_in.address(kubeconfig)
    return {"server": server, "ca": authority or "", "token": await tokens.token(client, node, now)}


async def _announced(client: KubeClient) -> tuple[str, str | None] | None:
    """What kubeadm writes down for machines that join; None where there is nothing of the kind."""
    try:
        config = objects.text(await client.get(_CLUSTER_INFO), "data", "kubeconfig")
    except Rejected:  # not there, or not ours to read
        return None
    try:
        return way_in.address(config)
    except BadInput:
        return None
