"""Taking a Node object out of its cluster, with all that hangs on it.

The order matters: while a machine may run, nothing is forced, else a replacement pod writes to the same
volume as the old one. Whatever a step finds done already is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes import attachments, nodes, objects, pods, tokens
from ebbtide.drivers.kubernetes.access import NodeAccess, all_of, is_another, is_refusal, log
from ebbtide.drivers.kubernetes.fresh import Fresh
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.errors import Conflict, KubeError, NotFound

_WHY = "the node's machine is off"


class Removal:
    """One try to remove one node.

    stopped: its machine is confirmed to be off
    patient: pods and attachments that others hold are waited for
    """

    def __init__(
        self,
        client: KubeClient,
        node: NodeRef,
        now: datetime,
        attached: Fresh[list[Json]],
        *,
        stopped: bool,
        patient: bool,
    ) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._attached = attached
        self._access = NodeAccess(client, node)
        self._stopped = stopped
        self._patient = patient

    async def run(self) -> bool:
        """Whether nothing is left, by a fresh read. Raises KubeError."""
        node = await self._access.read()
        if node is not None and not await self._emptied(node):
            return False
        if node is not None:
            await self._delete(node)
        await self._sweep()
        return await self._access.read() is None and not (self._patient and await self._bound())

    async def _emptied(self, node: Json) -> bool:
        """Whether nothing on it stands in the Node's way any more."""
        bound = await self._bound()
        work = [pod for pod in bound if pods.counts(pod)]
        occupied = bool(work or await self._held_by_volumes(bound))
        if not self._stopped and occupied:
            # It came after the node was seen empty. It is told, not forced; the machine's stop ends it.
            await self._access.change(nodes.cordon, node)
            await all_of(self._tell(pod) for pod in work)
            return False
        await self._cordon(node, occupied=occupied)
        await self._force(work, ended=True)
        if not occupied or not self._patient:
            return True
        # Those that came meanwhile never ran: the machine is off. They go with the Node.
        forced = {objects.uid(pod) for pod in work}
        bound = await self._bound()
        left = [pod for pod in bound if objects.uid(pod) in forced]
        return not left and not await self._held_by_volumes(bound)

    async def _held_by_volumes(self, bound: Sequence[Json]) -> int:
        return await attachments.waited_for(self._client, await self._attached(), self._node.name, bound)

    async def _cordon(self, node: Json, *, occupied: bool) -> None:
        try:
            await self._access.change(nodes.out_of_service if occupied else nodes.cordon, node)
        except KubeError as error:
            if self._patient or not is_refusal(error):
                raise
            log.warning("a node leaves without a cordon", node=self._node.name, why=error.message)

    async def _tell(self, pod: Json) -> None:
        if objects.text(pod, "metadata", "deletionTimestamp"):
            return
        await self._delete_pod(pod, pods.own_grace_s(pod))

    async def _force(self, listed: Sequence[Json], *, ended: bool) -> None:
        """Delete pods without their kubelet. One that the cluster's own rules keep is left when patience is
        over.
        """
        try:
            await all_of(self._force_one(pod, ended=ended) for pod in listed)
        except KubeError as error:
            if self._patient or not is_refusal(error):
                raise
            log.warning("pods of a node that left are kept", node=self._node.name, why=error.message)

    async def _force_one(self, pod: Json, *, ended: bool) -> None:
        if ended and objects.text(pod, "status", "phase") not in pods.FINISHED:
            try:
                await self._client.patch(
                    _path(pod, "status"),
                    pods.disrupted(objects.uid(pod), self._now, _WHY, ended=True),
                    kind=PatchKind.STRATEGIC,
                )
            except (NotFound, Conflict):
                return
            except KubeError as error:
                if is_another(error):
                    return
                if not is_refusal(error):
                    raise
        await self._delete_pod(pod, 0)

    async def _delete_pod(self, pod: Json, grace_s: int) -> None:
        try:
            await self._client.delete(_path(pod), uid=objects.uid(pod), grace_s=grace_s)
        except (NotFound, Conflict):
            return

    async def _delete(self, node: Json) -> None:
        """The object itself, then our hold on it: a crash between the two leaves what the next try ends."""
        try:
            left = await self._client.delete(nodes.path(self._node.name), uid=objects.uid(node))
        except (NotFound, Conflict):
            return
        if left.get("kind") == "Node":
            await self._access.change(nodes.letting_go, left)

    async def _sweep(self) -> None:
        """What is left once the Node is gone: daemons', static and finished pods, its lease, its token."""
        bound = await self._bound()
        await self._force([pod for pod in bound if self._stopped or not pods.counts(pod)], ended=False)
        await all_of([self._drop_lease(), tokens.drop(self._client, self._node)])

    async def _drop_lease(self) -> None:
        try:
            await self._client.delete(
                f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self._node.name}"
            )
        except NotFound:
            return

    async def _bound(self) -> list[Json]:
        listed = await self._client.list(pods.ALL, fieldSelector=pods.bound_to(self._node.name))
        return listed.items


def _path(pod: Json, subresource: str = "") -> str:
    return pods.path(objects.text(pod, "metadata", "namespace"), objects.name(pod), subresource)
