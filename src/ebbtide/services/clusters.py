"""What a tenant's request about clusters means: one transaction each, standard capacity decided inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ebbtide.core.claims import ClaimKind
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.ids import Ids, is_uuid4
from ebbtide.services import echoes, imported, quotas, replays
from ebbtide.services import volumes as volume_services
from ebbtide.services.audit import record
from ebbtide.services.capacity import Demand, Planner
from ebbtide.services.details import (
    Caller,
    ClusterChange,
    ClusterDetails,
    ClusterOrder,
    DriverVersion,
    EventDetails,
    RegionDetails,
    Replay,
)
from ebbtide.services.views import cluster_details, event_details
from ebbtide.settings import Settings
from ebbtide.store import access, claims, clusters, events, fleet, nodes, pools, visits, volumes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move
from ebbtide.store.pools import PoolRow
from ebbtide.store.visits import Loop

MOST_GPUS = 1_000_000


class ClusterService:
    def __init__(self, db: Database, ids: Ids, settings: Settings, planner: Planner) -> None:
        self._db = db
        self._ids = ids
        self._settings = settings
        self._planner = planner

    # -- reading

    async def regions(self) -> tuple[RegionDetails, ...]:
        """Regions in the operator's order, each with the GPU models of its pools."""
        async with self._db.read() as tx:
            rows, pool_rows = await fleet.all_regions(tx), await pools.all_(tx)
        return tuple(
            RegionDetails(
                row.name,
                tuple(sorted({pool.gpu_type for pool in pool_rows if pool.region == row.name})),
                tuple(DriverVersion(**version) for version in row.driver_versions),
            )
            for row in rows
        )

    async def list(self, caller: Caller, project_id: str | None = None) -> tuple[ClusterDetails, ...]:
        """Clusters that the caller may see, oldest first; of another's project none, and no error."""
        if project_id is not None and not caller.is_operator and project_id != caller.project_id:
            return ()
        async with self._db.read() as tx:
            rows = await clusters.live(tx, project_id=project_id if caller.is_operator else caller.project_id)
            return await cluster_details(
                tx, rows, window_s=self._settings.event_window_s, with_kubeconfig=False
            )

    async def retrieve(self, caller: Caller, cluster_id: str) -> ClusterDetails:
        """One cluster. Raises NotFound, for another tenant's as for none."""
        async with self._db.read() as tx:
            return await self._read(tx, caller, cluster_id)

    async def events(
        self, caller: Caller, cluster_id: str, after: int = 0, limit: int = 500
    ) -> tuple[EventDetails, ...]:
        """Lifecycle events behind number `after`, in order.

        Numbers have no gaps: read on from the last one.
        """
        async with self._db.read() as tx:
            await _visible(tx, caller, cluster_id)
            return tuple(event_details(row) for row in await events.after(tx, cluster_id, after, limit))

    async def _read(self, tx: Tx, caller: Caller, cluster_id: str) -> ClusterDetails:
        row = await _visible(tx, caller, cluster_id)
        found = await cluster_details(tx, [row], window_s=self._settings.event_window_s, with_kubeconfig=True)
        return found[0]

    # -- creating

    async def create(self, caller: Caller, order: ClusterOrder, replay: Replay) -> ClusterDetails:
        """A new cluster: its standard hosts are promised here, or nothing happens.

        Raises BadInput, Forbidden, Conflict (out of stock; a used token with another body).
        """

        async def work(tx: Tx) -> str:
            seen = await replays.seen(tx, caller, replay)
            return seen or await self._create(tx, caller, order, replay)

        cluster_id = await self._db.run(work)
        return await self.retrieve(caller, cluster_id)

    async def _create(self, tx: Tx, caller: Caller, order: ClusterOrder, replay: Replay) -> str:
        if not self._settings.makes_clusters:
            raise BadInput(
                "clusters are not made here, since this fleet's machines come from programs of its operator: "
                "bring one that exists with `ebbtide clusters import`",
                code="clusters_are_imported",
            )
        project_id = await _project(tx, caller, order.project_id)
        version = await _driver_version(tx, order)
        candidates = await _pools_for(tx, order)
        cluster_id = self._ids.uuid4()
        group = self._ids.name_part()
        pool = await self._choose_pool(tx, candidates, order)
        await quotas.check(
            tx, project_id, standard_gpus=order.num_gpus, preemptible_gpus=order.num_preemptible_gpus
        )
        await clusters.insert(
            tx,
            id=cluster_id,
            project_id=project_id,
            name=order.cluster_name,
            region=order.region,
            pool=pool.name,
            gpu_type=order.gpu_type,
            billing_type=order.billing_type,
            cluster_type=order.cluster_type,
            cuda_version=order.cuda_version or version.cuda_version,
            nvidia_driver_version=order.nvidia_driver_version or version.nvidia_driver_version,
            nvidia_version_id=version.id,
            echo=dict(order.echo),
            node_group=group,
            gpus_per_host=pool.gpus_per_host,
            standard_hosts=order.num_gpus // pool.gpus_per_host,
            target_hosts=order.num_preemptible_gpus // pool.gpus_per_host,
            phase=ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES,
            created_at=tx.now,
        )
        demand = Demand(
            ClaimKind.STANDARD,
            order.num_gpus // pool.gpus_per_host,
            _standard_demand(order.num_gpus),
            project_id,
            cluster_id,
            group,
        )
        await self._planner.promise(tx, pool, demand)
        await visits.hint(tx, Loop.CLUSTER, [cluster_id])
        await self._give_volume(tx, order, cluster_id, project_id)
        await replays.remember(tx, caller, replay, cluster_id)
        after = {
            "name": order.cluster_name,
            "num_gpus": order.num_gpus,
            "num_preemptible_gpus": order.num_preemptible_gpus,
        }
        await record(tx, caller, "cluster.create", cluster_id, after=after, of=project_id)
        return cluster_id

    async def _give_volume(self, tx: Tx, order: ClusterOrder, cluster_id: str, project_id: str) -> None:
        """The volume that the order brings along, or names."""
        if order.shared_volume is not None:
            volume_services.check_offered(self._settings)
            volume_services.check_inline(order.shared_volume, region=order.region, project_id=project_id)
            await volume_services.insert(
                tx,
                order.shared_volume,
                volume_id=self._ids.uuid4(),
                project_id=project_id,
                settings=self._settings,
                cluster_id=cluster_id,
            )
        if order.volume_id is not None:
            await volume_services.attach(
                tx,
                volume_id=order.volume_id,
                cluster_id=cluster_id,
                project_id=project_id,
                region=order.region,
            )

    async def _choose_pool(self, tx: Tx, candidates: Sequence[PoolRow], order: ClusterOrder) -> PoolRow:
        """The first pool, by name, that can supply the order; the last one if none can, whose refusal then is
        the answer.

        Pools are locked in the order of their names, so that two creates cannot wait for each other.
        """
        for candidate in candidates:
            check_counts(
                candidate.gpus_per_host,
                num_gpus=order.num_gpus,
                num_preemptible_gpus=order.num_preemptible_gpus,
            )
        for candidate in candidates[:-1]:
            pool = await pools.lock(tx, candidate.name)
            view = await pools.view(tx, pool)
            hosts = order.num_gpus // pool.gpus_per_host
            if (
                view.unpromised >= hosts
                or view.unpromised + await pools.count_reclaimable(tx, pool.name) >= hosts
            ):
                return pool
        return await pools.lock(tx, candidates[-1].name)

    # -- changing

    async def update(self, caller: Caller, cluster_id: str, change: ClusterChange) -> ClusterDetails:
        """Merge a change.

        What is None stays. Raises BadInput, NotFound, Conflict (out of stock, being deleted).
        """

        async def work(tx: Tx) -> None:
            seen = await _visible(tx, caller, cluster_id)
            pool = await pools.lock(tx, seen.pool)
            await nodes.lock_cluster(tx, cluster_id)
            row = await clusters.load(tx, cluster_id, for_update=True)
            assert row is not None
            _check_immutable(row, change.immutable)
            await _check_volumes(tx, row, change)
            await _configure(tx, caller, row, change.echo)
            await self._resize(tx, caller, pool, row, change)

        await self._db.run(work)
        return await self.retrieve(caller, cluster_id)

    async def _resize(
        self, tx: Tx, caller: Caller, pool: PoolRow, row: ClusterRow, change: ClusterChange
    ) -> None:
        standard, target = _wishes(row, change)
        if (standard, target) == (row.standard_hosts, row.target_hosts):
            return
        _check_staying(row, "size")
        await quotas.check(
            tx,
            row.project_id,
            standard_gpus=max(0, standard - row.standard_hosts) * row.gpus_per_host,
            preemptible_gpus=max(0, target - row.target_hosts) * row.gpus_per_host,
        )
        await clusters.set_fields(tx, row.id, standard_hosts=standard, target_hosts=target)
        if target != row.target_hosts:
            await clusters.set_fill(tx, {row.id: None}, None)  # it was about the target before
        await record(
            tx,
            caller,
            "cluster.update",
            row.id,
            before=_sizes(row.standard_hosts, row.target_hosts, row.gpus_per_host),
            after=_sizes(standard, target, row.gpus_per_host),
            of=row.project_id,
        )
        if standard > row.standard_hosts:
            more = standard - row.standard_hosts
            demand = Demand(
                ClaimKind.STANDARD,
                more,
                _standard_demand(more * row.gpus_per_host),
                row.project_id,
                row.id,
                row.node_group,
            )
            await self._planner.promise(tx, pool, demand)
        elif standard < row.standard_hosts:
            await self._planner.lower_standard(tx, pool, row.id, standard)
        if target < row.target_hosts:
            await self._planner.lower_target(tx, pool, row.id, target)
        await visits.hint(tx, Loop.CLUSTER, [row.id])
        await visits.hint(tx, Loop.FULFILLMENT, [pool.name])

    async def delete(self, caller: Caller, cluster_id: str) -> None:
        """Begin to take a cluster down; repeated while it goes it changes nothing. Raises NotFound."""

        async def work(tx: Tx) -> None:
            seen = await _visible(tx, caller, cluster_id)
            pool = await pools.lock(tx, seen.pool)
            await nodes.lock_cluster(tx, cluster_id)
            row = await clusters.load(tx, cluster_id, for_update=True)
            assert row is not None
            if row.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):
                return
            await clusters.move_phase(tx, row.id, row.phase, ClusterPhase.DELETING, deleting_at=tx.now)
            sizes = _sizes(row.standard_hosts, row.target_hosts, row.gpus_per_host)
            before = {"name": row.name, **sizes}
            await record(tx, caller, "cluster.delete", row.id, before=before, of=row.project_id)
            if row.imported:  # it goes on without us: what runs on our nodes is asked to leave
                await self._planner.lower_target(tx, pool, row.id, 0)
            else:
                left = [
                    each for each in await nodes.of_cluster(tx, row.id) if each.phase is not Phase.REMOVING
                ]
                await nodes.move(tx, [_end(node) for node in left])
            await claims.end_of_cluster(tx, row.id)
            await visits.hint(tx, Loop.CLUSTER, [row.id])
            await visits.hint(tx, Loop.FULFILLMENT, [pool.name])

        await self._db.run(work)


def _sizes(standard_hosts: int, target_hosts: int, gpus_per_host: int) -> dict[str, int]:
    standard = {"num_gpus": standard_hosts * gpus_per_host} if standard_hosts else {}  # none: imported
    return {**standard, "num_preemptible_gpus": target_hosts * gpus_per_host}


def _end(node: nodes.NodeRow) -> Move:
    if node.phase is Phase.PENDING:
        return Move(node.uid, node.phase, Phase.REMOVED, end_reason=EndReason.CANCELLED)
    # A node that was noticed before keeps the reason that it was given then.
    return Move(node.uid, node.phase, Phase.REMOVING, end_reason=node.end_reason or EndReason.CLUSTER_DELETED)


async def _visible(tx: Tx, caller: Caller, cluster_id: str) -> ClusterRow:
    row = await clusters.load(tx, cluster_id) if is_uuid4(cluster_id) else None
    if (
        row is None
        or row.phase is ClusterPhase.DELETED
        or not (caller.is_operator or row.project_id == caller.project_id)
    ):
        raise NotFound(f"there is no cluster {cluster_id[:80]!r}", code="cluster_not_found")
    return row


async def _project(tx: Tx, caller: Caller, project_id: str | None) -> str:
    if project_id is None or project_id == caller.project_id:
        return caller.project_id
    if caller.is_operator and await access.project(tx, id_=project_id):
        return project_id
    raise Forbidden("this key may not use that project", param="project_id", code="wrong_project")


async def _driver_version(tx: Tx, order: ClusterOrder) -> DriverVersion:
    """The catalogue entry that the order names, by id or by the legacy pair."""
    rows = {row.name: row for row in await fleet.all_regions(tx)}
    region = rows.get(order.region)
    if region is None:
        raise BadInput(f"there is no region {order.region!r}; there are: {_list(rows)}", param="region")
    versions = [DriverVersion(**version) for version in region.driver_versions]
    if order.nvidia_version_id is not None:
        named = [version for version in versions if version.id == order.nvidia_version_id]
        if not named:
            raise BadInput(
                f"region {order.region} has no driver version {order.nvidia_version_id!r}; "
                f"it has: {_list(version.id for version in versions)}",
                param="nvidia_version_id",
            )
    else:
        named = versions
    for version in named:
        if _matches(version, order):
            return version
    known = _list(f"{version.cuda_version} with {version.nvidia_driver_version}" for version in versions)
    raise BadInput(
        f"region {order.region} does not offer CUDA {order.cuda_version} with NVIDIA driver "
        f"{order.nvidia_driver_version}"
        f"{' under that version id' if order.nvidia_version_id else ''}; it offers: {known}",
        param="cuda_version",
    )


def _matches(version: DriverVersion, order: ClusterOrder) -> bool:
    cuda = (None, version.cuda_version, f"{version.cuda_version}-{version.os}")
    return order.cuda_version in cuda and order.nvidia_driver_version in (None, version.nvidia_driver_version)


async def _pools_for(tx: Tx, order: ClusterOrder) -> Sequence[PoolRow]:
    found = await pools.find(tx, order.region, order.gpu_type)
    if not found:
        offered = {pool.gpu_type for pool in await pools.all_(tx) if pool.region == order.region}
        raise BadInput(
            f"region {order.region} has no {order.gpu_type!r}; it has: {_list(sorted(offered))}",
            param="gpu_type",
        )
    return found


def check_counts(gpus_per_host: int, *, num_gpus: int, num_preemptible_gpus: int) -> None:
    """Raise BadInput unless both counts make whole hosts, and at least one standard node is left."""
    if num_gpus < gpus_per_host:
        raise BadInput(
            f"num_gpus must be at least {gpus_per_host}, got {num_gpus}: every cluster keeps one "
            f"standard node",
            param="num_gpus",
        )
    for param, gpus in (("num_gpus", num_gpus), ("num_preemptible_gpus", num_preemptible_gpus)):
        if gpus < 0 or gpus % gpus_per_host:
            raise BadInput(f"{param} must be a multiple of {gpus_per_host}, got {gpus}", param=param)
        if gpus > MOST_GPUS:
            raise BadInput(f"{param} is {MOST_GPUS:,} at most, got {gpus}", param=param)


def _wishes(row: ClusterRow, change: ClusterChange) -> tuple[int, int]:
    """Standard and preemptible hosts wanted after the change."""
    size = row.gpus_per_host
    if row.imported:
        imported.check_standard(row, change.num_gpus)
        change = replace(change, num_gpus=size)  # any that is right by itself
    num_gpus = row.standard_hosts * size if change.num_gpus is None else change.num_gpus
    target = row.target_hosts * size if change.num_preemptible_gpus is None else change.num_preemptible_gpus
    check_counts(size, num_gpus=num_gpus, num_preemptible_gpus=target)
    return 0 if row.imported else num_gpus // size, target // size


async def _check_volumes(tx: Tx, row: ClusterRow, change: ClusterChange) -> None:
    """A cluster's volumes are chosen at its creation; naming the ones that it has changes nothing."""
    if change.volume_id is None and change.shared_volume_name is None:
        return
    has = await volumes.of_clusters(tx, [row.id])
    for param, sent, known in (
        ("volume_id", change.volume_id, {volume.id for volume in has}),
        ("shared_volume", change.shared_volume_name, {volume.name for volume in has}),
    ):
        if sent is not None and sent not in known:
            raise BadInput(f"{param} is set when a cluster is created; leave it as it is", param=param)
    sizes = {volume.name: volume.size_tib for volume in has}
    present = sizes.get(change.shared_volume_name or "")
    if present is not None and (change.shared_volume_size_tib or 0) > present:
        raise BadInput(
            f"the volume has {present} TiB; it grows by PUT /v1/compute/clusters/storage/volumes, "
            f"not by its cluster",
            param="shared_volume.size_tib",
        )


async def _configure(tx: Tx, caller: Caller, row: ClusterRow, sent: Mapping[str, object]) -> None:
    """Merge add-ons and configuration. Writes nothing, also no audit entry, when nothing differs."""
    after = echoes.merged(row.echo, sent)
    changed = [name for name in after if after[name] != row.echo.get(name)]
    if not changed:
        return
    _check_staying(row, "configuration")
    await clusters.set_fields(tx, row.id, echo=after)
    await record(
        tx,
        caller,
        "cluster.update",
        row.id,
        before={name: row.echo.get(name) for name in changed},
        after={name: after[name] for name in changed},
        of=row.project_id,
    )


def _check_staying(row: ClusterRow, what: str) -> None:
    if row.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):  # it may have gone since it was looked up
        raise Conflict(
            f"the cluster is being deleted; its {what} cannot change any more", code="cluster_deleting"
        )


def _check_immutable(row: ClusterRow, sent: Mapping[str, object]) -> None:
    """Refuse an immutable field only when its value differs: Terraform sends the whole object back."""
    present = {
        "cluster_name": row.name,
        "region": row.region,
        "gpu_type": row.gpu_type,
        "billing_type": row.billing_type,
        "cluster_type": row.cluster_type,
        "cuda_version": row.cuda_version,
        "nvidia_driver_version": row.nvidia_driver_version,
        "nvidia_version_id": row.nvidia_version_id,
        "project_id": row.project_id,
    }
    for name, value in sent.items():
        if value is not None and name in present and value != present[name]:
            raise BadInput(
                f"{name} cannot be changed: it is {present[name]!r}, the request says {value!r}. Make "
                f"a new cluster.",
                param=name,
            )


def _standard_demand(gpus: int) -> str:
    return f"a standard order of {gpus} GPUs"


def _list(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
