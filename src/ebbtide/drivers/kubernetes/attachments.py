"""Volume attachments: what still ties volumes to a node."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.drivers.kubernetes import objects, pods
from ebbtide.drivers.kubernetes.access import all_of
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import NotFound

ALL = "/apis/storage.k8s.io/v1/volumeattachments"
_VOLUMES = "/api/v1/persistentvolumes"


async def waited_for(
    client: KubeClient, listed: Sequence[Json], node_name: str, bound: Sequence[Json]
) -> int:
    """How many of the listed attachments a drain of the node waits for. Raises KubeError.

    bound: the pods on it. A volume that only its daemons or static pods use stays attached as long as
    they run, which is until the node goes.
    """
    here = [one for one in listed if objects.text(one, "spec", "nodeName") == node_name]
    staying = {claim for pod in bound if not pods.counts(pod) for claim in _claims(pod)}
    if not here or not staying or any(pods.counts(pod) for pod in bound):
        return len(here)
    claims = await all_of(_claim_of(client, one) for one in here)
    return len([claim for claim in claims if claim not in staying])


def _claims(pod: Json) -> list[str]:
    """The claims whose volumes a pod uses, as NAMESPACE/NAME, unless it has ended."""
    if objects.text(pod, "status", "phase") in pods.FINISHED:
        return []
    namespace = objects.text(pod, "metadata", "namespace")
    names = [
        objects.text(volume, "persistentVolumeClaim", "claimName")
        for volume in objects.items(pod, "spec", "volumes")
    ]
    return [f"{namespace}/{name}" for name in names if name]


async def _claim_of(client: KubeClient, attachment: Json) -> str | None:
    """The claim that has an attachment's volume; None where nothing says."""
    name = objects.text(attachment, "spec", "source", "persistentVolumeName")
    if not name:
        return None
    try:
        volume = await client.get(f"{_VOLUMES}/{name}")
    except NotFound:
        return None
    claim = objects.part(volume, "spec", "claimRef")
    return f"{objects.text(claim, 'namespace')}/{objects.text(claim, 'name')}"
