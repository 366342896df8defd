"""A cluster's next step.

Its control plane comes up, its phase follows its standard nodes, it goes away when told.
"""

from __future__ import annotations

from datetime import timedelta

from ebbtide.core.clusters import ClusterPhase, phase_of
from ebbtide.core.nodes import ALLOCATED, ComputeClass, EndReason, Phase
from ebbtide.drivers.base import Driver, DriverError
from ebbtide.providers.base import ControlPlane, Provider, ProviderError
from ebbtide.settings import Settings
from ebbtide.store import clusters, nodes, visits, volumes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers import imports
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.refs import ref_of
from ebbtide.workers.single import SingleVisits

DROP_LIMIT_S = 600  # a cluster that does not answer keeps its deletion waiting for so long, not for ever
_MOVING = (Phase.SCHEDULING, Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.DRAINING, Phase.REMOVING)
_ENDED_EARLY = (EndReason.LOST, EndReason.FAILED, EndReason.REMEDIATED)


class Clusters(SingleVisits):
    loop = Loop.CLUSTER

    def __init__(self, db: Database, settings: Settings, provider: Provider, driver: Driver) -> None:
        super().__init__(db, settings)
        self._provider = provider
        self._driver = driver

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.read() as tx:
            row = await clusters.load(tx, visit.key)
        if row is None or row.phase is ClusterPhase.DELETED:
            async with self._db.transaction() as tx:
                return await finish(tx, visit, Outcome("nothing to do"))
        if row.phase is ClusterPhase.DELETING:
            return await self._delete(visit, row)
        if row.imported:
            return await self._look(visit, row)
        if not row.control_plane_ready:
            return await self._start(visit, row)
        return await self._settle(visit, row)

    async def _settle(self, visit: Visit, row: ClusterRow) -> Outcome:
        """Follow the standard nodes; and take the way in as it is now, which may change when a provider is
        started again.
        """
        problem = None
        try:
            plane = await self._provider.control_plane(row.id)
        except ProviderError as error:  # the phase has its own reasons to be brought up to date
            plane, problem = None, error.message
        async with self._db.transaction() as tx:
            changed = plane is not None and await self._take_way_in(tx, row, plane)
            phase = await self._follow(tx, row.id)
            sentence = f"the cluster is {phase}{'; its kubeconfig has changed' if changed else ''}"
            if problem is None:
                return await finish(tx, visit, Outcome(sentence))
            again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
            return await finish(tx, visit, Outcome(f"{sentence}; {problem}", again, failed=True))

    async def _take_way_in(self, tx: Tx, row: ClusterRow, plane: ControlPlane) -> bool:
        """Whether it is another one than the ledger's; then whoever waits for the cluster tries again now."""
        known = tuple(map(tx.sealer.open_optional, (row.kubeconfig, row.driver_kubeconfig)))
        if not plane.ready or known == (plane.kubeconfig, plane.driver_kubeconfig):
            return False
        await clusters.set_fields(tx, row.id, **_sealed_ways_in(tx, plane))
        waiting = await nodes.of_clusters(tx, [row.id], _MOVING)
        keys = [node.uid for node in waiting]
        await visits.hint(tx, Loop.LIFECYCLE, keys, clusters=[row.id] * len(keys))
        await visits.hint(tx, Loop.OBSERVATION, [row.id])
        await volumes.wake(tx, row.id)
        return True

    async def _start(self, visit: Visit, row: ClusterRow) -> Outcome:
        plane = await self._provider.create_control_plane(row.id, row.name)
        async with self._db.transaction() as tx:
            if not plane.ready:
                again = tx.now + timedelta(seconds=self._settings.retry_s)
                return await finish(tx, visit, Outcome(plane.why or "the control plane is starting", again))
            await clusters.set_fields(
                tx,
                row.id,
                control_plane_ready=True,
                observed_until=tx.now,
                **_sealed_ways_in(tx, plane),
            )
            waiting = await nodes.of_clusters(tx, [row.id], [Phase.SCHEDULING])
            await visits.hint(
                tx, Loop.LIFECYCLE, [node.uid for node in waiting], clusters=[row.id] * len(waiting)
            )
            await visits.hint(tx, Loop.OBSERVATION, [row.id])
            await volumes.wake(tx, row.id)
            await visits.hint(tx, Loop.FULFILLMENT, [row.pool])
            phase = await self._follow(tx, row.id)
            return await finish(tx, visit, Outcome(f"the control plane is ready; the cluster is {phase}"))

    async def _look(self, visit: Visit, row: ClusterRow) -> Outcome:
        """An imported cluster has its control plane; it is ready once we have seen that we can work in it."""
        seen = await imports.look(self._db, self._driver, row)
        async with self._db.transaction() as tx:
            if seen.problem:
                await clusters.set_fields(tx, row.id, import_problem=seen.problem)
                again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
                return await finish(tx, visit, Outcome(seen.sentence, again, failed=True))
            await clusters.set_fields(tx, row.id, standard_seen=seen.told, import_problem=None)
            if not row.control_plane_ready:
                await clusters.set_fields(tx, row.id, control_plane_ready=True, observed_until=tx.now)
                await visits.hint(tx, Loop.OBSERVATION, [row.id])
                await volumes.wake(tx, row.id)
                await visits.hint(tx, Loop.FULFILLMENT, [row.pool])
            await self._follow(tx, row.id)
            again = tx.now + timedelta(seconds=imports.LOOK_S)
            return await finish(tx, visit, Outcome(seen.sentence, again))

    async def _follow(self, tx: Tx, cluster_id: str) -> ClusterPhase:
        """Bring the phase in line with the standard nodes."""
        row = await clusters.load(tx, cluster_id, for_update=True)
        assert row is not None
        if row.phase in (ClusterPhase.DELETING, ClusterPhase.DELETED):
            return row.phase
        standard = [
            node for node in await nodes.of_cluster(tx, row.id) if node.compute_class is ComputeClass.STANDARD
        ]
        running = sum(node.phase in ALLOCATED and node.end_reason is None for node in standard)
        after = phase_of(
            control_plane_ready=row.control_plane_ready,
            standard_wanted=row.standard_hosts,
            standard_running=running,
            lost_standard=row.phase is ClusterPhase.DEGRADED
            or any(node.end_reason in _ENDED_EARLY for node in standard),
            volumes_ready=row.first_ready_at is not None or await volumes.all_shown(tx, row.id),
        )
        if after is not row.phase:
            ready = (
                {"first_ready_at": tx.now}
                if after is ClusterPhase.READY and row.first_ready_at is None
                else {}
            )
            await clusters.move_phase(tx, row.id, row.phase, after, **ready)
        return after

    async def _delete(self, visit: Visit, row: ClusterRow) -> Outcome:
        async with self._db.read() as tx:
            empty = await clusters.idle_deleting(tx, row.id)
        if not empty:
            async with self._db.transaction() as tx:
                return await finish(
                    tx, visit, Outcome("waiting for its nodes to go")
                )  # each of their ends wakes this
        if waiting := await self._drop_volumes(row) or await self._detach(row):
            async with self._db.transaction() as tx:
                again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
                return await finish(tx, visit, Outcome(waiting, again, failed=True))
        gone = row.imported or await self._provider.delete_control_plane(row.id)
        async with self._db.transaction() as tx:
            if not gone:
                again = tx.now + timedelta(seconds=self._settings.retry_s)
                return await finish(tx, visit, Outcome("waiting for the control plane to go", again))
            await clusters.move_phase(
                tx,
                row.id,
                row.phase,
                ClusterPhase.DELETED,
                deleted_at=tx.now,
                kubeconfig=None,
                driver_kubeconfig=None,
                control_plane_ready=False,
            )
            await volumes.release(tx, row.id)
            await visits.drop(tx, Loop.OBSERVATION, [row.id])
            return await finish(tx, visit, Outcome("deleted"))

    async def _detach(self, row: ClusterRow) -> str | None:
        """Leave nothing of ours in an imported cluster while it can be told; answer what is waited for."""
        if not row.imported or not row.control_plane_ready:
            return None
        waiting = await imports.sweep(self._db, self._driver, row)
        waited_s = (self._db.clock.now() - row.deleting_at).total_seconds() if row.deleting_at else 0.0
        return waiting if waited_s < DROP_LIMIT_S else None

    async def _drop_volumes(self, row: ClusterRow) -> str | None:
        """Take the cluster's PersistentVolumes away while it can be told; answer what is waited for."""
        async with self._db.read() as tx:
            shown = [one for one in await volumes.of_clusters(tx, [row.id]) if one.shown_tib is not None]
            waited_s = (tx.now - row.deleting_at).total_seconds() if row.deleting_at else 0.0
        for volume in shown:
            try:
                if await self._driver.drop_volume(ref_of(self._db, row), volume.name):
                    continue
                why = f"waiting for volume {volume.name} to leave the cluster"
            except DriverError as error:
                why = error.message
            if waited_s < DROP_LIMIT_S:
                return why
        return None


def _sealed_ways_in(tx: Tx, plane: ControlPlane) -> dict[str, str | None]:
    """The fields of a cluster's row."""
    ours = plane.driver_kubeconfig
    return {
        "kubeconfig": tx.sealer.seal(plane.kubeconfig or ""),
        "driver_kubeconfig": tx.sealer.seal(ours) if ours else None,
    }
