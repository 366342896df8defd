"""The way to one cluster's API server, and how its refusals are said to the rest of Ebbtide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from ebbtide.drivers.base import ClusterRef, DriverError, NodeRef
from ebbtide.drivers.kubernetes import nodes, objects
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.errors import BadInput
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.errors import Conflict, Invalid, KubeError, NotFound, Rejected, Unreachable

T = TypeVar("T")

log = structlog.get_logger()

_LONGEST_SENTENCE = 600
_TRIES = 5  # against others who write to the same node


@contextmanager
def translated(cluster: ClusterRef) -> Iterator[None]:
    """Say what went wrong with a cluster as DriverError, naming the cluster."""
    try:
        yield
    except (KubeError, BadInput) as error:
        refused = isinstance(error, KubeError) and is_refusal(error)
        said = objects.plain(error.message, _LONGEST_SENTENCE)
        message = f"cluster {cluster.name or cluster.cluster_id}: {said}"
        raise DriverError(message, refused=refused) from error


def is_refusal(error: KubeError) -> bool:
    """Whether it would be the same at the next try: a right that is missing, a rule or a webhook of the
    cluster's. A webhook that cannot be reached is told with a 500.
    """
    return isinstance(error, Rejected) or (isinstance(error, Unreachable) and "webhook" in error.detail)


def is_another(error: KubeError) -> bool:
    """Whether a patch that names a uid found another object under that name."""
    return isinstance(error, Invalid) and "metadata.uid" in error.detail


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Every call to its end, side by side; then the first error, if there was one."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Reads and changes of one Node object."""

    client: KubeClient
    ref: NodeRef

    async def read(self) -> Json | None:
        """The object as it is now; None where there is none, or another node has its name."""
        try:
            node = await self.client.get(nodes.path(self.ref.name))
        except NotFound:
            return None
        return node if nodes.is_ours(node, self.ref) else None

    async def change(self, change: Callable[[Json], Json | None], known: Json | None = None) -> Json | None:
        """Send what `change` makes of the object, anew where somebody else was faster. The object then; None
        where it is not there. known: as it was just read; it is read here if it is not given
        """
        for left in range(_TRIES - 1, -1, -1):
            node = known or await self.read()
            known = None
            body = change(node) if node else None
            if node is None or body is None:
                return node
            version = objects.text(node, "metadata", "resourceVersion")
            metadata = {**body.get("metadata", {}), "resourceVersion": version}
            try:
                return await self.client.patch(nodes.path(self.ref.name), {**body, "metadata": metadata})
            except NotFound:
                return None
            except Conflict:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def mark(self, body: Json) -> None:
        """Send a patch of the status."""
        try:
            await self.client.patch(nodes.path(self.ref.name, "status"), body, kind=PatchKind.STRATEGIC)
        except NotFound:
            return
