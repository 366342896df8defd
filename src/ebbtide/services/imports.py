"""Importing a cluster that exists, and renewing our way into it. For operators: an import decides whose
control plane the fleet's machines join, and which address our workers connect to.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.words import many
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.ids import Ids, is_uuid4
from ebbtide.services import quotas, replays
from ebbtide.services import volumes as volume_services
from ebbtide.services.access import require_operator
from ebbtide.services.audit import record
from ebbtide.services.clusters import ClusterService, check_counts
from ebbtide.services.details import (
    Caller,
    ClusterDetails,
    DriverVersion,
    ImportChange,
    ImportOrder,
    Replay,
)
from ebbtide.store import access, clusters, fleet, nodes, pools, visits
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

CheckKubeconfig = Callable[[str], str]  # answers the API server's address; raises BadInput

_KEY = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_TERM = rf"!?{_KEY}|{_KEY}\s*(=|==|!=)\s*{_VALUE}|{_KEY}\s+(in|notin)\s+\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)"
_SELECTOR = re.compile(rf"({_TERM})(\s*,\s*({_TERM}))*")
_LONGEST_SELECTOR = 500


def no_imports(_kubeconfig: str) -> str:
    """Refuses: for fleets whose machines can join no cluster that somebody else made. Raises BadInput."""
    raise BadInput(
        "this server's machines join only clusters that it made itself; a fleet with EBBTIDE_PROVIDER=exec "
        "can import others",
        code="no_imports",
    )


class ImportService:
    def __init__(self, db: Database, ids: Ids, own: ClusterService, check: CheckKubeconfig) -> None:
        self._db = db
        self._ids = ids
        self._own = own
        self._check = check

    async def create(self, caller: Caller, order: ImportOrder, replay: Replay) -> ClusterDetails:
        """Take in a cluster that exists. It is looked at afterwards: until that went well its status is
        WaitingForControlPlaneNodes, and what is wrong stands in its details.

        Raises BadInput, Forbidden (not an operator), NotFound (no such project) and Conflict.
        """
        require_operator(caller)
        server = self._check(order.kubeconfig)
        check_selector(order.standard_selector)

        async def work(tx: Tx) -> str:
            once = replays.of_kind("import", replay)
            return await replays.seen(tx, caller, once) or await self._create(tx, caller, order, server, once)

        cluster_id = await self._db.run(work)
        return await self._own.retrieve(caller, cluster_id)

    async def _create(self, tx: Tx, caller: Caller, order: ImportOrder, server: str, replay: Replay) -> str:
        project_id = order.project_id or caller.project_id
        if not await access.project(tx, id_=project_id):
            raise NotFound(f"there is no project {project_id[:80]!r}", param="project_id")
        version = await _driver_version(tx, order)
        pool = await _pool(tx, order)
        check_counts(
            pool.gpus_per_host,
            num_gpus=pool.gpus_per_host,
            num_preemptible_gpus=order.num_preemptible_gpus,
        )
        await pools.lock(tx, pool.name)
        await self._check_once(tx, pool.name, server)
        await quotas.check(tx, project_id, standard_gpus=0, preemptible_gpus=order.num_preemptible_gpus)
        cluster_id = self._ids.uuid4()
        await clusters.insert(
            tx,
            id=cluster_id,
            project_id=project_id,
            name=order.cluster_name,
            region=order.region,
            pool=pool.name,
            gpu_type=order.gpu_type,
            billing_type="ON_DEMAND",
            cluster_type="KUBERNETES",
            cuda_version=version.cuda_version,
            nvidia_driver_version=version.nvidia_driver_version,
            nvidia_version_id=version.id,
            echo={},
            node_group=self._ids.name_part(),
            gpus_per_host=pool.gpus_per_host,
            standard_hosts=0,
            target_hosts=order.num_preemptible_gpus // pool.gpus_per_host,
            phase=ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES,
            created_at=tx.now,
            imported=True,
            standard_selector=order.standard_selector,
            placement=order.placement,
            driver_kubeconfig=tx.sealer.seal(order.kubeconfig),
        )
        if order.volume_id is not None:
            await volume_services.attach(
                tx,
                volume_id=order.volume_id,
                cluster_id=cluster_id,
                project_id=project_id,
                region=order.region,
            )
        await visits.hint(tx, Loop.CLUSTER, [cluster_id])
        await replays.remember(tx, caller, replay, cluster_id)
        after = {
            "name": order.cluster_name,
            "server": server,
            "standard_selector": order.standard_selector,
            "num_preemptible_gpus": order.num_preemptible_gpus,
        }
        await record(tx, caller, "cluster.import", cluster_id, after=after, of=project_id)
        return cluster_id

    async def _check_once(self, tx: Tx, pool: str, server: str, but: str | None = None) -> None:
        """One cluster is imported once for each pool: two that fill it would not know of each other.

        The caller holds the pool's lock. but: the import that may have it.
        """
        for row in await clusters.live(tx):
            if not row.imported or row.pool != pool or row.id == but:
                continue
            if self._server_of(tx, row) == server:
                raise Conflict(
                    f"the cluster at {server} is imported already, as {row.name} ({row.id})",
                    code="imported_already",
                )

    def _server_of(self, tx: Tx, row: ClusterRow) -> str:
        return self._check(tx.sealer.open_optional(row.driver_kubeconfig) or "")

    async def renew(self, caller: Caller, cluster_id: str, change: ImportChange) -> ClusterDetails:
        """Another kubeconfig for the same cluster (its token ends, say), or another selector. It is looked at
        again at once.

        Raises BadInput, Forbidden, NotFound, and Conflict: it is being detached, or another import into its
        pool has that server, or nodes of ours are at the present one.
        """
        require_operator(caller)
        server = self._check(change.kubeconfig) if change.kubeconfig is not None else None
        if change.standard_selector is not None:
            check_selector(change.standard_selector)

        async def work(tx: Tx) -> None:
            row = await clusters.load(tx, cluster_id) if is_uuid4(cluster_id) else None
            if row is not None and server is not None:
                await pools.lock(tx, row.pool)  # before the cluster, as everybody does
            row = await clusters.load(tx, row.id, for_update=True) if row else None
            if row is None or not row.imported or row.phase is ClusterPhase.DELETED:
                raise NotFound(f"there is no imported cluster {cluster_id[:80]!r}", code="cluster_not_found")
            if row.phase is ClusterPhase.DELETING:
                raise Conflict("the cluster is being detached", code="cluster_deleting")
            await self._renew(tx, caller, row, change, server)

        await self._db.run(work)
        return await self._own.retrieve(caller, cluster_id)

    async def _renew(
        self, tx: Tx, caller: Caller, row: ClusterRow, change: ImportChange, server: str | None
    ) -> None:
        fields: dict[str, object] = {}
        before: dict[str, object] = {}
        after: dict[str, object] = {}
        if change.kubeconfig is not None:
            fields["driver_kubeconfig"] = tx.sealer.seal(change.kubeconfig)
            before["server"], after["server"] = self._server_of(tx, row), server
            if server is not None and server != before["server"]:
                await self._check_once(tx, row.pool, server, but=row.id)
                await _check_empty(tx, row, server, force=change.force)
        if change.standard_selector not in (None, row.standard_selector):
            fields["standard_selector"] = change.standard_selector
            before["standard_selector"] = row.standard_selector
            after["standard_selector"] = change.standard_selector
        if not fields:
            return
        await clusters.set_fields(tx, row.id, **fields)
        await record(tx, caller, "cluster.renew", row.id, before=before, after=after, of=row.project_id)
        await visits.hint(tx, Loop.CLUSTER, [row.id])
        if row.control_plane_ready:
            await visits.hint(tx, Loop.OBSERVATION, [row.id])


async def _check_empty(tx: Tx, row: ClusterRow, server: str, *, force: bool) -> None:
    """Raise Conflict while nodes are in the cluster: in another one, nobody would tell them to go."""
    held = len(await nodes.of_cluster(tx, row.id))
    if held and not force:
        raise Conflict(
            f"{many(held, 'node')} of ours would be left behind if {server} were another cluster; if it is "
            f"the same under another address, say so (`--force`), else set its target to 0 first",
            code="nodes_held",
        )


def check_selector(selector: str) -> None:
    """Raise BadInput unless this is a label selector."""
    if len(selector) > _LONGEST_SELECTOR or not _SELECTOR.fullmatch(selector.strip()):
        raise BadInput(
            "standard_selector is a Kubernetes label selector, such as node-role=gpu or "
            "'pool in (a,b),!spot'; it must not be empty",
            param="standard_selector",
        )


async def _pool(tx: Tx, order: ImportOrder) -> PoolRow:
    """The pool that the cluster's preemptible nodes come from: the first by name."""
    found = await pools.find(tx, order.region, order.gpu_type)
    if not found:
        offered = sorted({pool.gpu_type for pool in await pools.all_(tx) if pool.region == order.region})
        raise BadInput(
            f"region {order.region} has no {order.gpu_type!r}; it has: {', '.join(offered) or 'none'}",
            param="gpu_type",
        )
    return found[0]


async def _driver_version(tx: Tx, order: ImportOrder) -> DriverVersion:
    """The region's first: what the preemptible nodes come with, whatever the cluster's own have."""
    rows = {row.name: row for row in await fleet.all_regions(tx)}
    region = rows.get(order.region)
    if region is None:
        raise BadInput(
            f"there is no region {order.region!r}; there are: {', '.join(rows) or 'none'}", param="region"
        )
    return DriverVersion(**region.driver_versions[0])
