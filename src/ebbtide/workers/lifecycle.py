"""A node's next step.

One visit, one move. What a phase needs is in one function each; the drain has a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import structlog

from ebbtide.core import events, marks
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.core.wipes import wipes_first
from ebbtide.drivers.base import Driver, DriverError, NodeRef, NodeSeen
from ebbtide.errors import LeaseLost, Unavailable
from ebbtide.providers.base import (
    Instance,
    InstanceOrder,
    InstanceState,
    OutOfCapacity,
    Permanent,
    Provider,
    ProviderError,
)
from ebbtide.settings import Settings
from ebbtide.store import clusters, fleet, nodes, pools, reading, visits, wipes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.visits import Loop, Visit
from ebbtide.store.wipes import HostTerms
from ebbtide.workers.drain import Drains
from ebbtide.workers.drain_record import closing
from ebbtide.workers.outcome import Answer, Later, Outcome, finish, only
from ebbtide.workers.refs import cluster_ref
from ebbtide.workers.single import SingleVisits
from ebbtide.workers.wiping import machine_is_gone, machine_is_up

log = structlog.get_logger()

BACKOFF_DOUBLINGS = 4
RETURN_LIMIT_S = 600  # beyond its pool's turn-over time: then a host that left is counted as broken
NOT_UP = "its machine did not come up"
LONGEST_LOOK_S = 10  # between two looks at a machine that is coming, or being wiped


class Lifecycle(SingleVisits):
    loop = Loop.LIFECYCLE
    batch = 1024  # as many nodes may get notice at once; each visit mostly waits for its cluster's API server

    def __init__(self, db: Database, settings: Settings, provider: Provider, driver: Driver) -> None:
        super().__init__(db, settings)
        self._provider = provider
        self._driver = driver
        self._drains = Drains(db, settings, driver)
        self._read: dict[str, NodeRow] = {}  # read together for visits that are about to begin

    async def visit_many(self, claimed: Sequence[Visit]) -> list[Outcome]:
        if len(claimed) > 1:
            async with self._db.read() as tx:
                self._read.update(await nodes.by_uids(tx, [visit.key for visit in claimed]))
        return await super().visit_many(claimed)

    async def visit(self, visit: Visit) -> Answer:
        node = self._read.pop(visit.key, None)
        if node is None:
            async with self._db.read() as tx:
                node = await nodes.load(tx, visit.key)
        if node is None or node.phase in (Phase.PENDING, Phase.RUNNING, Phase.REMOVED):
            return only(visit, Outcome("nothing to do", urgent=False))
        if node.phase is Phase.SCHEDULING:
            return await self._schedule(visit, node)
        if node.phase is Phase.BOOTING:
            return await self._boot(visit, node)
        if node.phase is Phase.BOOTSTRAPPING:
            return await self._join(visit, node)
        if node.phase is Phase.DRAINING:
            return await self._drains.visit(visit, node)
        return await self._remove(visit, node)

    # -- joining

    async def _schedule(self, visit: Visit, node: NodeRow) -> Answer:
        async with self._db.read() as tx:
            cluster = await clusters.load(tx, node.cluster_id or "")
            terms = await wipes.terms(tx, node.host_id or "")
        if cluster is None or not cluster.control_plane_ready:
            return only(visit, Outcome("waiting for the cluster's control plane"))
        visit.check(self._db.clock.now())
        try:
            join = await self._driver.join_data(cluster_ref(self._db, node), NodeRef(node.uid, node.name))
            instance = await self._provider.create(_order(node, cluster, join, terms))
        except (ProviderError, DriverError) as refusal:
            return await self._refused(visit, node, refusal)

        async def write(tx: Tx) -> Outcome:
            move = Move(
                node.uid,
                Phase.SCHEDULING,
                Phase.BOOTING,
                instance_id=instance.instance_id,
                address=instance.address or None,
            )
            return await self._moved(
                tx, visit, move, Outcome(f"instance {instance.instance_id} is starting", tx.now)
            )

        return Later(write)

    async def _refused(self, visit: Visit, node: NodeRow, refusal: ProviderError | DriverError) -> Outcome:
        """Give the node up, if that was final or went on for too long; else the visit is tried again.

        What went on for too long is the host's fault only if other machines of its pool came up meanwhile: an
        outage of whatever makes them quarantines nobody.
        """
        told = NOT_UP if isinstance(refusal, ProviderError) else None
        if isinstance(refusal, OutOfCapacity | Permanent):
            return await self._give_up(visit, node, refusal.message, told=told)
        limit_s = self._settings.join_limit_s
        if self._db.clock.now() < node.placed_at + timedelta(seconds=limit_s):
            raise refusal
        async with self._db.read() as tx:
            others = await reading.came_up_since(tx, node.pool, node.placed_at)
        fault = others and isinstance(refusal, ProviderError)
        why = f"{refusal.message}; given up after {limit_s} s"
        return await self._give_up(visit, node, why, hosts_fault=fault, told=told)

    async def _boot(self, visit: Visit, node: NodeRow) -> Answer:
        try:
            instance = await self._provider.status(node.uid)
        except ProviderError as refusal:
            return await self._refused(visit, node, refusal)
        if instance is None or instance.state in (InstanceState.FAILED, InstanceState.STOPPED):
            return await self._give_up(visit, node, _failure(instance), told=NOT_UP)
        if instance.state is InstanceState.UP:

            async def write(tx: Tx) -> Outcome:
                move = Move(node.uid, Phase.BOOTING, Phase.BOOTSTRAPPING, address=instance.address or None)
                outcome = await self._moved(
                    tx, visit, move, Outcome("the machine is up; joining the cluster", tx.now)
                )
                await machine_is_up(tx, node, instance)
                return outcome

            return Later(write)
        return await self._wait_to_join(visit, node, "the machine is booting")

    async def _join(self, visit: Visit, node: NodeRow) -> Answer:
        try:
            found = await self._driver.observe(cluster_ref(self._db, node))
        except DriverError as error:
            # A cluster that does not answer keeps nobody's host either. A node with pods on it, as last seen,
            # drains: they are told if it answers in time, and the machine stops at the deadline if not.
            limit = node.placed_at + timedelta(seconds=self._settings.join_limit_s)
            if self._db.clock.now() < limit:
                return await self._wait_to_join(visit, node, f"{error.message}; trying again")
            if node.workload_pods:
                return await self._drain_stray(visit, node, None, error.message)
            return await self._give_up(visit, node, error.message, hosts_fault=False)
        seen = {one.uid: one for one in found}.get(node.uid)
        if seen is None or not seen.ready or seen.gpus < node.gpus:
            return await self._wait_to_join(visit, node, _missing(seen, node.gpus), seen)
        if seen.name != node.name:  # everything about it is asked and told by name
            return await self._wait_to_join(visit, node, f"it registered as {seen.name}, not {node.name}")
        visit.check(self._db.clock.now())
        try:
            await self._driver.admit(cluster_ref(self._db, node), NodeRef(node.uid, node.name))
        except DriverError as error:
            return await self._wait_to_join(visit, node, error.message, seen, hosts_fault=False)

        async def write(tx: Tx) -> Outcome:
            waited_s = round((tx.now - node.created_at).total_seconds())
            event = events.joined(node.compute_class, tx.now, waited_s)
            move = Move(node.uid, Phase.BOOTSTRAPPING, Phase.RUNNING, event=event)
            running = Outcome(f"running after {waited_s} s")
            outcome = await self._moved(tx, visit, move, running)
            if outcome is not running:
                return outcome
            await nodes.set_facts(tx, node.uid, admitted_at=tx.now)
            await fleet.set_host(tx, node.host_id or "", boot_failures=0)
            await clusters.set_fields(tx, node.cluster_id or "", fill_backoff_until=None)
            return outcome

        return Later(write)

    async def _wait_to_join(
        self,
        visit: Visit,
        node: NodeRow,
        what: str,
        seen: NodeSeen | None = None,
        *,
        hosts_fault: bool = True,
    ) -> Answer:
        limit = node.placed_at + timedelta(seconds=self._settings.join_limit_s)
        if self._db.clock.now() >= limit:
            why = f"{what} after {self._settings.join_limit_s} s"
            if seen is not None and seen.workload_pods:
                return await self._drain_stray(visit, node, seen, why)
            return await self._give_up(visit, node, why, hosts_fault=hosts_fault)

        async def write(tx: Tx) -> Outcome:
            wait_s = min(self._settings.retry_in_s(visit.failures), LONGEST_LOOK_S)
            again = min(tx.now + timedelta(seconds=wait_s), limit)
            return await finish(tx, visit, Outcome(what, again, failed=True))

        return Later(write)

    async def _drain_stray(self, visit: Visit, node: NodeRow, seen: NodeSeen | None, why: str) -> Outcome:
        """A workload pod slipped onto a node that never joined.

        It gets its window, and pays from its start: as its cluster's clock has it, but never from before the
        node had its host, nor from what is the future here. seen: None where the cluster does not answer.
        """
        async with self._db.transaction() as tx:
            deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
            move = Move(
                node.uid,
                node.phase,
                Phase.DRAINING,
                event=events.failed(f"{why}; its pods have until {events.rfc3339(deadline)}", tx.now),
                end_reason=EndReason.FAILED,
                drain_kind=DrainKind.RECLAIM,
                deadline=deadline,
                why=why,
                bill_from=_billable_from(node, seen, tx.now),
            )
            return await self._moved(tx, visit, move, Outcome(f"draining: {why}", tx.now))

    async def _give_up(
        self, visit: Visit, node: NodeRow, why: str, *, hosts_fault: bool = True, told: str | None = None
    ) -> Outcome:
        """Send a node back that did not come up.

        told: what its tenant reads instead of `why`, which may be the operator's own programs' words.

        The host is tried again, or quarantined; the cluster's filling backs off. A machine that came up and
        did not join counts against its host only where other nodes run: else one broken cluster would take
        host after host out of the fleet.
        """
        async with self._db.transaction() as tx:
            move = Move(
                node.uid,
                node.phase,
                Phase.REMOVING,
                event=events.failed(told or why, tx.now),
                end_reason=EndReason.FAILED,
                why=why,
            )
            given_up = Outcome(f"given up: {why}", tx.now)
            outcome = await self._moved(tx, visit, move, given_up)
            if outcome is not given_up:
                return outcome
            failures = 1
            if hosts_fault and (
                node.phase is not Phase.BOOTSTRAPPING
                or await nodes.of_clusters(tx, [node.cluster_id or ""], [Phase.RUNNING])
            ):
                failures = await fleet.count_boot_failure(tx, node.host_id or "")
            if failures >= self._settings.boot_failures_limit:
                reason = f"{failures} boots in a row failed, the last: {why}"
                await fleet.quarantine(tx, node.host_id or "", reason)
            if node.compute_class is ComputeClass.PREEMPTIBLE:
                in_a_row = await reading.failed_joins(tx, node.cluster_id or "")
                wait_s = self._settings.fill_backoff_s * 2 ** min(in_a_row - 1, BACKOFF_DOUBLINGS)
                until = tx.now + timedelta(seconds=wait_s)
                await clusters.set_fields(tx, node.cluster_id or "", fill_backoff_until=until)
            return outcome

    # -- leaving

    async def _remove(self, visit: Visit, node: NodeRow) -> Answer:
        """Stop, take out of the cluster, give back; each confirmed before the next, however often that takes.

        An empty node leaves the cluster first, so that nobody sees it turn NotReady. With pods left, the
        machine stops first: a Node object that goes while its machine runs lets another pod write to the
        same volume.
        """
        if node.left_at and self._db.clock.now() >= node.left_at + timedelta(seconds=RETURN_LIMIT_S):
            await self._set_aside(node, node.left_at)
        steps = (self._leave_cluster, self._stop) if node.left_empty else (self._stop, self._leave_cluster)
        for step in steps:
            visit.check(self._db.clock.now())
            if waiting := await step(node):
                return await self._wait(visit, waiting)
        visit.check(self._db.clock.now())
        deletion = await self._provider.delete(node.uid)
        if not deletion.gone or not deletion.wiped:
            # Looked at often: a host that is wiped and not yet known to be is one that nobody can have.
            why = deletion.why or "waiting for the host to be wiped"
            return await self._wait(visit, why, longest_s=LONGEST_LOOK_S)

        async def write(tx: Tx) -> Outcome:
            move = Move(node.uid, Phase.REMOVING, Phase.REMOVED)
            moved = await nodes.move(tx, [move], cooldown_s=self._settings.cooldown_s)
            await fleet.take_back(tx, node.host_id or "")
            await machine_is_gone(tx, node, deletion)
            return await finish(
                tx, visit, Outcome("removed; the host is free" if moved else "somebody was faster")
            )

        return Later(write)

    async def _set_aside(self, node: NodeRow, left_at: datetime) -> None:
        """A host that does not come back is no supply: what was promised on it is planned anew, elsewhere."""
        async with self._db.transaction() as tx:
            pool = await pools.load(tx, node.pool)
            limit_s = RETURN_LIMIT_S + (pool.turn_over_s if pool else 0)
            if tx.now < left_at + timedelta(seconds=limit_s):
                return
            if await fleet.set_aside(tx, node.host_id or "", f"since {events.rfc3339(left_at)}"):
                log.warning("a host does not come back", host=node.host_name, node=node.name, pool=node.pool)
                await visits.hint(tx, Loop.FULFILLMENT, [node.pool])

    async def _stop(self, node: NodeRow) -> str | None:
        """Power the machine off; answer what is waited for, or None when its stop is confirmed."""
        if node.stopped_at is None:
            if not await self._provider.stop(node.uid):
                return "waiting for the machine's stop to be confirmed"
            async with self._db.transaction() as tx:
                await nodes.set_facts(tx, node.uid, stopped_at=tx.now)
        return None

    async def _leave_cluster(self, node: NodeRow) -> str | None:
        """Take the Node object out.

        Answer what is waited for. A cluster that is deleted takes its objects with it. One that does not
        answer or let go keeps nobody's host: after a while what is left is left to the observation's sweep.
        """
        if node.cluster_id is None or node.out_of_cluster_at is not None:
            return None
        waiting = "waiting for the node's leftovers to leave the cluster"
        await self._conclude(node)
        patience = timedelta(seconds=self._settings.detach_limit_s)
        patient = node.left_at is None or self._db.clock.now() < node.left_at + patience
        try:
            gone = node.end_reason is EndReason.CLUSTER_DELETED or await self._driver.remove(
                cluster_ref(self._db, node),
                NodeRef(node.uid, node.name),
                stopped=node.stopped_at is not None or not node.left_empty,  # then the stop came first
                patient=patient,
            )
        except DriverError as error:
            gone, waiting = False, f"{error.message}; trying again"
        except (LeaseLost, Unavailable):
            raise
        except Exception:  # nor does a fault of ours keep a host
            log.exception("a node cannot be taken out of its cluster", node=node.name)
            gone = False
        if gone:
            async with self._db.transaction() as tx:
                await nodes.set_facts(tx, node.uid, out_of_cluster_at=tx.now)
        return None if gone or not patient else waiting

    async def _conclude(self, node: NodeRow) -> None:
        """Put the one closing event onto a node that drained, before it goes. A failure holds nothing up."""
        if node.draining_at is None or node.concluded_at or node.end_reason is EndReason.CLUSTER_DELETED:
            return
        try:
            message = await closing(self._db, node)
            await self._driver.conclude(
                cluster_ref(self._db, node), NodeRef(node.uid, node.name), events.DRAINED, message
            )
        except DriverError as error:
            log.info("no closing event", node=node.name, why=error.message)
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            log.exception("no closing event, by a fault of ours", node=node.name)
        async with self._db.transaction() as tx:
            await nodes.set_facts(tx, node.uid, concluded_at=tx.now)

    async def _wait(self, visit: Visit, why: str, *, longest_s: int | None = None) -> Later:
        """Come back after a growing wait, of `longest_s` at most."""

        async def write(tx: Tx) -> Outcome:
            wait_s = self._settings.retry_in_s(visit.failures)
            again = tx.now + timedelta(seconds=wait_s if longest_s is None else min(wait_s, longest_s))
            return await finish(tx, visit, Outcome(why, again, failed=True))

        return Later(write)

    async def _moved(self, tx: Tx, visit: Visit, move: Move, outcome: Outcome) -> Outcome:
        """Make the move and finish, or say that somebody else moved the node meanwhile and look again."""
        if not await nodes.move(tx, [move]):
            outcome = Outcome("the node moved on meanwhile; looking again", tx.now)
        return await finish(tx, visit, outcome)


def _order(node: NodeRow, cluster: ClusterRow, join: Mapping[str, str], terms: HostTerms) -> InstanceOrder:
    return InstanceOrder(
        node_uid=node.uid,
        node_name=node.name,
        compute_class=node.compute_class,
        cluster_id=node.cluster_id or "",
        project_id=node.project_id or "",
        pool=node.pool,
        host_id=node.host_id or "",
        host_name=node.host_name or "",
        gpus=node.gpus,
        labels=marks.labels(
            node.uid,
            node.compute_class,
            region=node.region,
            gpu_type=node.gpu_type,
            fabric_block=node.fabric_block,
        ),
        taints=marks.taints(node.compute_class, explicit=cluster.placement == "explicit"),
        join=join,
        wipe=terms.policy,
        wipe_first=wipes_first(terms.policy, terms.unwiped_project, node.project_id or ""),
    )


def _billable_from(node: NodeRow, seen: NodeSeen | None, now: datetime) -> datetime | None:
    """From when a node with a stray pod is billed; None: from now."""
    if seen is None or seen.first_pod_at is None:
        return None
    return max(node.placed_at, min(seen.first_pod_at, now))


def _failure(instance: Instance | None) -> str:
    if instance is None:
        return "the provider does not know the instance any more"
    return (
        f"the instance {instance.state}: {instance.why}" if instance.why else f"the instance {instance.state}"
    )


def _missing(seen: NodeSeen | None, gpus: int) -> str:
    if seen is None:
        return "the machine has not registered with the cluster"
    return (
        f"only {seen.gpus} of its {gpus} GPUs are allocatable" if seen.ready else "the kubelet is not ready"
    )
