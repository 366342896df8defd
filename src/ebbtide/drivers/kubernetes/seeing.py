"""A look at a whole cluster: our nodes and the work on them."""

from __future__ import annotations

from contextlib import aclosing

from ebbtide.core import marks
from ebbtide.drivers.base import NodeSeen
from ebbtide.drivers.kubernetes import nodes, objects, pods
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import Expired

_NOT_FINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


async def observe(client: KubeClient) -> list[NodeSeen]:
    """Every node of ours. Raises KubeError."""
    listed = await client.list(nodes.ALL, labelSelector=marks.LABEL_NODE_UID)
    names = {objects.name(node) for node in listed.items}
    return nodes.seen(listed.items, await _pods_on(client, names) if names else ())


async def _pods_on(client: KubeClient, names: set[str]) -> list[Json]:
    """Pods on these nodes that have not finished; once more from the start if the version expired meanwhile.

    Page by page: an imported cluster may have a hundred thousand others.
    """
    try:
        return await _once(client, names)
    except Expired:
        return await _once(client, names)


async def _once(client: KubeClient, names: set[str]) -> list[Json]:
    found: list[Json] = []
    async with aclosing(client.pages(pods.ALL, fieldSelector=_NOT_FINISHED)) as pages:
        async for page in pages:
            found += [pod for pod in page.items if objects.text(pod, "spec", "nodeName") in names]
    return found
