"""The driver: each method of `drivers.base.Driver` as calls to one API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, proxy

from ebbtide.clock import Clock
from ebbtide.core.drain import PodOrder
from ebbtide.drivers.base import (
    ClusterRef,
    DriverError,
    NodeRef,
    NodeSeen,
    Notice,
    OrderResult,
    PodsSeen,
    StandardNode,
)
from ebbtide.drivers.kubernetes import attachments, budgets, joining, nodes, pods, seeing, standard, tokens
from ebbtide.drivers.kubernetes.access import NodeAccess, log, translated
from ebbtide.drivers.kubernetes.announcing import Announcing
from ebbtide.drivers.kubernetes.fresh import Fresh
from ebbtide.drivers.kubernetes.objects import Json
from ebbtide.drivers.kubernetes.removal import Removal
from ebbtide.drivers.kubernetes.telling import Telling
from ebbtide.kube.client import Clients, KubeClient, PatchKind
from ebbtide.kube.errors import KubeError, NotFound
from ebbtide.kube.rights import FIELD_MANAGER

_VOLUMES = "/api/v1/persistentvolumes"


@dataclass(frozen=True, slots=True)
class _Shared:
    """Reads of one cluster that many may ask for at once."""

    nodes: Fresh[list[NodeSeen]]
    attachments: Fresh[list[Json]]
    budgets: Fresh[list[Json]]


class KubernetesDriver:
    """A `Driver` for clusters with a Kubernetes API server.

    Nothing is remembered that a restart would miss: what was done is asked of the cluster.
    """

    def __init__(
        self, clients: Clients, clock: Clock, *, aliases: bool = True, pod_events: int = 0, joins: bool = True
    ) -> None:
        """
        aliases:    send events under the documentation's older names, too
        pod_events: how many pods of a node are sent an event of their own, in their namespaces
        joins:      whether machines join by a bootstrap token; without, `join_data` is empty
        """
        self._clients = clients
        self._clock = clock
        self._joins = joins
        self._announcing = Announcing(clock, aliases=aliases, pod_events=pod_events)
        self._shared: WeakKeyDictionary[KubeClient, _Shared] = WeakKeyDictionary()

    # -- seeing

    async def observe(self, cluster: ClusterRef) -> list[NodeSeen]:
        with translated(cluster):
            return list(await self._share(self._client(cluster)).nodes())

    async def pods(self, cluster: ClusterRef, node: NodeRef) -> PodsSeen:
        with translated(cluster):
            client = self._client(cluster)
            listed, attached = await asyncio.gather(
                client.list(pods.ALL, fieldSelector=pods.bound_to(node.name)),
                self._attached(client, node),
            )
            left = await self._left(client, node, attached, listed.items)
            difference = self._difference(client)
            return PodsSeen(pods.all_seen(listed.items, difference), left)

    async def _attached(self, client: KubeClient, node: NodeRef) -> list[Json] | None:
        """Every attachment of the cluster; None where that cannot be read."""
        try:
            return await self._share(client).attachments()
        except KubeError as error:
            log.info("attachments are not known", node=node.name, why=error.message)
            return None

    async def _left(
        self, client: KubeClient, node: NodeRef, attached: list[Json] | None, bound: Sequence[Json]
    ) -> int:
        """How many attachments are waited for. What cannot be read counts as one: it keeps no pod from its
        SIGTERM, and a node is not empty as long as it may have one.
        """
        if attached is None:
            return 1
        try:
            return await attachments.waited_for(client, attached, node.name, bound)
        except KubeError as error:
            log.info("attachments are not known", node=node.name, why=error.message)
            return 1

    async def standard(self, cluster: ClusterRef, selector: str) -> list[StandardNode]:
        with translated(cluster):
            return await standard.standard(self._client(cluster), selector)

    async def missing_rights(self, cluster: ClusterRef) -> list[str]:
        with translated(cluster):
            return await standard.missing_rights(self._client(cluster))

    # -- joining

    async def join_data(self, cluster: ClusterRef, node: NodeRef) -> Mapping[str, str]:
        """`server` (a URL), `ca` (PEM) and `token` (kubeadm's form)."""
        if not self._joins:
            return {}
        with translated(cluster):
            client = self._client(cluster)
            return await joining.join_data(client, cluster.kubeconfig or "", node, self._server_now(client))

    async def admit(self, cluster: ClusterRef, node: NodeRef) -> None:
        with translated(cluster):
            client = self._client(cluster)
            admitted = await NodeAccess(client, node).change(nodes.admission)
            if admitted is None:
                return
            # Work may come from here on, so the node must be known to run: what else fails is only told.
            try:
                await self._announcing.joined(client, node, admitted)
            except KubeError as error:
                log.warning("a node joined without an event", node=node.name, why=error.message)
            if self._joins:
                await self._drop_token(client, node)

    async def _drop_token(self, client: KubeClient, node: NodeRef) -> None:
        """It has joined: its token is of no use any more, to nobody. Removing the node does it again."""
        try:
            await tokens.drop(client, node)
        except KubeError as error:
            log.warning("a bootstrap token is kept", node=node.name, why=error.message)

    # -- leaving

    async def notify(self, cluster: ClusterRef, node: NodeRef, notice: Notice) -> None:
        with translated(cluster):
            await self._announcing.notify(self._client(cluster), node, notice)

    async def take_back(self, cluster: ClusterRef, node: NodeRef, reason: str) -> None:
        with translated(cluster):
            await self._announcing.take_back(self._client(cluster), node, reason)

    async def conclude(self, cluster: ClusterRef, node: NodeRef, reason: str, message: str) -> None:
        with translated(cluster):
            await self._announcing.conclude(self._client(cluster), node, reason, message)

    async def signal(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        with translated(cluster):
            client = self._client(cluster)
            results = await self._telling(client, node).signal(orders)
            await self._announcing.to_pods(client, node, orders)
            return results

    async def evict(
        self, cluster: ClusterRef, node: NodeRef, orders: Sequence[PodOrder]
    ) -> list[OrderResult]:
        with translated(cluster):
            return await self._telling(self._client(cluster), node).evict(orders)

    async def remove(
        self, cluster: ClusterRef, node: NodeRef, *, stopped: bool = True, patient: bool = True
    ) -> bool:
        with translated(cluster):
            client = self._client(cluster)
            attached = self._share(client).attachments
            removal = Removal(client, node, self._clock.now(), attached, stopped=stopped, patient=patient)
            return await removal.run()

    # -- volumes

    async def put_volume(self, cluster: ClusterRef, manifest: Mapping[str, Any]) -> None:
        with translated(cluster):
            await self._client(cluster).patch(
                f"{_VOLUMES}/{manifest['metadata']['name']}",
                dict(manifest),
                kind=PatchKind.APPLY,
                fieldManager=FIELD_MANAGER,
                force=True,
            )

    async def drop_volume(self, cluster: ClusterRef, name: str) -> bool:
        with translated(cluster):
            client = self._client(cluster)
            try:
                await client.delete(f"{_VOLUMES}/{name}")
                await client.get(f"{_VOLUMES}/{name}")  # a claim that still has it keeps it for now
            except NotFound:
                return True
            return False

    # -- parts

    def _client(self, cluster: ClusterRef) -> KubeClient:
        if not cluster.kubeconfig:
            raise DriverError(f"cluster {cluster.name or cluster.cluster_id} has no kubeconfig yet")
        return self._clients.of(cluster.cluster_id, cluster.kubeconfig)

    def _share(self, client: KubeClient) -> _Shared:
        shared = self._shared.get(client)
        if shared is None:
            weak: KubeClient = proxy(client)  # else it would be kept for ever
            shared = self._shared[client] = _Shared(
                Fresh(partial(seeing.observe, weak)),
                Fresh(partial(_read, weak, attachments.ALL)),
                Fresh(partial(_read, weak, budgets.ALL)),
            )
        return shared

    def _telling(self, client: KubeClient, node: NodeRef) -> Telling:
        now, difference = self._clock.now(), self._difference(client)
        return Telling(client, node, now, difference, self._share(client).budgets)

    def _difference(self, client: KubeClient) -> timedelta:
        """What makes the API server's instants ours."""
        return client.server_time.difference(self._clock.now())

    def _server_now(self, client: KubeClient) -> datetime:
        return self._clock.now() - self._difference(client)


async def _read(client: KubeClient, path: str) -> list[Json]:
    return (await client.list(path)).items
