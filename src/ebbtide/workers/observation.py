"""Looking at clusters: who is there, who is busy, who vanished. One visit per cluster; only what changed is
written.

An observation of the whole cluster is also what seals the bill: time is final up to the last look at which
all was well. A node that is not well keeps the time of the last good look, and is lost when the provider says
so or when that lasts too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog

from ebbtide.core import events
from ebbtide.core.nodes import ComputeClass, DrainKind, EndReason, Phase
from ebbtide.drivers.base import ClusterRef, Driver, DriverError, NodeRef, NodeSeen
from ebbtide.errors import LeaseLost
from ebbtide.providers.base import InstanceState, Provider, ProviderError
from ebbtide.settings import Settings
from ebbtide.store import clusters, nodes, visits
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.nodes import Move, NodeRow
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome
from ebbtide.workers.refs import ref_of

log = structlog.get_logger()

ZOMBIE_REST_S = 10
ZOMBIES_S = 20  # of one look; the next goes on
_WATCHED = (Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.RUNNING, Phase.DRAINING)


@dataclass(slots=True)
class _Look:
    """What one look at one cluster found and what is to be written of it."""

    visit: Visit
    outcome: Outcome
    cluster: ClusterRow | None = None
    at: datetime | None = None
    facts: dict[str, dict[str, object]] = field(default_factory=dict)  # node uid: changed facts
    lost: list[Move] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)  # node uids: their tenant deleted the Node object
    wake: list[NodeRow] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        return bool(self.facts or self.lost or self.given_back or self.wake)


class Observation:
    loop = Loop.OBSERVATION
    batch = 64
    chunk = 16  # looked at side by side, quiet ones written in one statement

    def __init__(self, db: Database, settings: Settings, provider: Provider, driver: Driver) -> None:
        self._db = db
        self._settings = settings
        self._provider = provider
        self._driver = driver

    async def visit_many(self, claimed: Sequence[Visit]) -> list[Outcome]:
        async with self._db.read() as tx:
            rows = {row.id: row for row in await clusters.by_ids(tx, [visit.key for visit in claimed])}
            known: dict[str, list[NodeRow]] = {}
            for node in await nodes.of_clusters(tx, list(rows), _WATCHED):
                known.setdefault(node.cluster_id or "", []).append(node)
        looks = {
            visit.key: asyncio.create_task(
                self._look(visit, rows.get(visit.key), known.get(visit.key, [])), name=visit.key
            )
            for visit in claimed
        }
        try:
            left = set(looks.values())
            while (
                left
            ):  # what is known is written: a cluster that hangs holds up none that was looked at with it
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                await self._finish_all([task.result() for task in looks.values() if task in done])
        finally:
            for task in looks.values():
                task.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)
        return [looks[visit.key].result().outcome for visit in claimed]

    async def _finish_all(self, looks: Sequence[_Look]) -> None:
        """Quiet clusters are finished in one statement; what changed gets a transaction of its own."""
        quiet = [look for look in looks if not look.changes]
        for group in ([quiet] if quiet else []) + [[look] for look in looks if look.changes]:
            await self._finish(group)

    async def _finish(self, looks: Sequence[_Look]) -> None:
        try:
            await self._db.run(partial(self._write, looks=looks))
        except LeaseLost as lost:
            if len(looks) > 1:  # one lease is lost (its cluster was just deleted, say); the others are good
                for look in looks:
                    await self._finish([look])
            else:
                log.info("observation given up", why=lost.message)

    async def _look(self, visit: Visit, row: ClusterRow | None, known: Sequence[NodeRow]) -> _Look:
        if row is None or not row.control_plane_ready:
            return _Look(visit, Outcome("nothing to look at"))
        at = self._db.clock.now()
        again = _next_look(at, self._settings.observe_every_s)
        try:
            ref = ref_of(self._db, row)
            seen = {one.uid: one for one in await self._driver.observe(ref)}
        except DriverError as error:
            # Nothing may be concluded: what is not seen is neither well nor lost, and the bill is not sealed
            # any further.
            return _Look(visit, Outcome(f"{error.message}; trying again", again, failed=True))
        look = _Look(visit, Outcome(f"{len(seen)} nodes seen", again), row, at)
        unwell = [node for node in known if not self._compare(look, node, seen.get(node.uid))]
        # Asked side by side: a provider may take its time over each, and one lease has to do for all.
        await asyncio.gather(*(self._unwell(look, row, node) for node in unwell))
        await self._expel(look, ref, seen, {node.uid for node in known})
        return look

    def _compare(self, look: _Look, node: NodeRow, seen: NodeSeen | None) -> bool:
        """Note what is to be written of a node; False when it should be well and is not."""
        if node.phase in (Phase.BOOTING, Phase.BOOTSTRAPPING):
            if seen and seen.ready:
                look.wake.append(node)
            if seen and seen.workload_pods != node.workload_pods:
                look.facts[node.uid] = {"workload_pods": seen.workload_pods}
            return True
        if seen is None or not seen.ready:
            return False
        facts: dict[str, object] = {}
        if node.healthy_until is not None:
            facts["healthy_until"] = None
        if seen.workload_pods != node.workload_pods:
            facts["workload_pods"] = seen.workload_pods
            if node.phase is Phase.DRAINING:
                look.wake.append(node)
        if seen.cordoned != node.cordoned:
            facts["cordoned"] = seen.cordoned
        if facts:
            look.facts[node.uid] = facts
        if seen.deleting and node.phase is Phase.RUNNING and node.compute_class is ComputeClass.PREEMPTIBLE:
            look.given_back.append(node.uid)
        return True

    async def _unwell(self, look: _Look, row: ClusterRow, node: NodeRow) -> None:
        assert look.at is not None
        last_good = node.healthy_until or max(row.observed_until or look.at, node.running_at or look.at)
        last_good = min(last_good, look.at)
        # A machine that we restart ourselves may be away. The remediation sees whether it comes back; the
        # margin is its time to act upon it.
        margin = timedelta(seconds=self._settings.lost_after_s)
        away = node.restart_until is not None and look.at < node.restart_until + margin
        gone = not away and await self._is_gone(node)
        waited_s = (look.at - last_good).total_seconds()
        # Not at the first such look: after a long silence the last good one is long ago, and proves nothing.
        again = node.healthy_until is not None
        if gone or (again and not away and waited_s >= self._settings.lost_after_s):
            look.lost.append(_lost(node, look.at, last_good))
        elif node.healthy_until is None:
            look.facts[node.uid] = {"healthy_until": last_good}

    async def _is_gone(self, node: NodeRow) -> bool:
        """Whether the provider confirms that the machine is not there or down.

        A provider that cannot say confirms nothing.
        """
        try:
            instance = await self._provider.status(node.uid)
        except ProviderError:
            return False
        return instance is None or instance.state in (InstanceState.STOPPED, InstanceState.FAILED)

    async def _expel(self, look: _Look, ref: ClusterRef, seen: dict[str, NodeSeen], known: set[str]) -> None:
        """Remove Node objects that the ledger calls gone: a kubelet that still runs registers again.

        Where its machine's stop is not confirmed yet, it does so within a second each time: then it has a
        rest, and pods that got onto it are told to go, and forced once the stop is.
        """
        strangers = {uid: one.name for uid, one in seen.items() if uid not in known}
        if not strangers:
            return
        async with self._db.read() as tx:
            gone = await nodes.gone_among(tx, ref.cluster_id, strangers, rest_s=ZOMBIE_REST_S)
        until = min(self._db.clock.now() + timedelta(seconds=ZOMBIES_S), look.visit.lease_until)
        for uid, phase in gone.items():
            if self._db.clock.now() >= until:
                log.info("zombie nodes stay for now", cluster=ref.cluster_id, why="the next look goes on")
                break
            off = phase is Phase.REMOVED
            try:
                left = await self._driver.remove(
                    ref, NodeRef(uid, seen[uid].name), stopped=off, patient=not off
                )
            except DriverError as error:
                log.info("zombie node stays for now", node=seen[uid].name, why=error.message)
                continue
            if left and not off:
                look.facts[uid] = {"out_of_cluster_at": look.at}
            if left:
                log.warning("zombie node removed", cluster=ref.cluster_id, node=seen[uid].name)
            else:
                log.info("zombie node stays for now", node=seen[uid].name, why="something is left on it")

    async def _write(self, tx: Tx, looks: Sequence[_Look]) -> None:
        for look in looks:
            # Nodes in one order, all before their cluster: see store.nodes.
            if look.lost or look.given_back:
                await nodes.lock_cluster(tx, look.visit.key)
            for uid, facts in sorted(look.facts.items()):
                await nodes.set_facts(tx, uid, **facts)
            deadline = tx.now + timedelta(seconds=self._settings.drain_window_s)
            released = [_release(uid, tx.now, deadline) for uid in look.given_back]
            await nodes.move(tx, [*look.lost, *released])
            await visits.hint(
                tx,
                Loop.LIFECYCLE,
                [node.uid for node in look.wake],
                clusters=[node.cluster_id for node in look.wake],
            )
        await clusters.mark_observed(tx, {look.visit.key: look.at for look in looks if look.at})
        for look in looks:
            visits.finish_at_commit(tx, look.outcome.finish(look.visit))


def _next_look(at: datetime, every_s: int) -> datetime:
    """The last whole quarter of the span that is not later than a span from now.

    Clusters thus fall due together, whatever made them due in between, and quiet ones are written together.
    """
    latest_s = int(at.timestamp()) + every_s
    return datetime.fromtimestamp(latest_s - latest_s % max(1, every_s // 4), UTC)


def _lost(node: NodeRow, at: datetime, last_good: datetime) -> Move:
    """Billing ends at the last good look.

    A node that was noticed before keeps the reason that it was given then.
    """
    return Move(
        node.uid,
        node.phase,
        Phase.REMOVING,
        event=events.lost(at, last_good),
        end_reason=node.end_reason or EndReason.LOST,
        why=node.why or "the host vanished",
        bill_until=last_good,
    )


def _release(node_uid: str, at: datetime, deadline: datetime) -> Move:
    """Its tenant deleted the Node object, which our finalizer holds: it leaves as any node given back. What
    is wanted stays, so another one comes when hosts are to spare.
    """
    why = "the Node object was deleted in its cluster"
    return Move(
        node_uid,
        Phase.RUNNING,
        Phase.DRAINING,
        event=events.scaled_down(why, at, deadline),
        end_reason=EndReason.SCALED_DOWN,
        drain_kind=DrainKind.RELEASE,
        deadline=deadline,
        why=why,
    )
