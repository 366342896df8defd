"""Why a node is where it is, and why a target is not met: what the fleet decided, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.core.capacity import PoolView
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.events import rfc3339
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.words import many
from ebbtide.errors import NotFound
from ebbtide.services.access import require_operator
from ebbtide.services.details import Caller
from ebbtide.store import claims, clusters, instances, pools, why, wipes
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.instances import LastRun
from ebbtide.store.pools import ClusterHolding
from ebbtide.store.visits import Loop
from ebbtide.store.why import NodeStory, VisitStory
from ebbtide.store.wipes import WipeRow


@dataclass(frozen=True, slots=True)
class WhyClaim:
    id: str
    kind: str
    state: str
    ref: str | None
    for_whom: str
    hosts: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WhyVisit:
    """The last visit's outcome, and when the next one is due (None: nothing is left to do)."""

    outcome: str | None
    at: datetime | None
    next_due: datetime | None
    failures: int


@dataclass(frozen=True, slots=True)
class WhyProgram:
    """The last program that its provider ran for a node; exit_code None: it took too long and was killed.

    state, handle: as its programs last answered. output: the last of its standard error.
    """

    verb: str
    exit_code: int | None
    at: datetime
    state: str | None
    handle: str | None
    output: str


@dataclass(frozen=True, slots=True)
class WhyNode:
    """made_for: the claim that the node was ordered by; None for a preemptible one, which fills a target.

    taken_for: the claim that took it, if one did. taken_because: why it was this one.
    sentences: all of it, to be read in order.
    """

    uid: str
    name: str
    pool: str
    cluster_id: str | None
    cluster_name: str | None
    host: str | None
    compute_class: str
    phase: str
    phase_since: datetime
    deadline: datetime | None
    end_reason: str | None
    made_for: WhyClaim | None
    taken_for: WhyClaim | None
    taken_because: str | None
    visit: WhyVisit | None
    program: WhyProgram | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhyPool:
    """Hosts of the pool, as the last plan would count them now. lendable: what a target could get."""

    name: str
    free: int
    resting: int
    resting_until: datetime | None
    leaving: int
    promised: int
    headroom: int
    lendable: int


@dataclass(frozen=True, slots=True)
class WhyTarget:
    """Hosts wanted, held (joining and draining ones included) and missing; reason None: it is met."""

    cluster_id: str
    cluster_name: str
    wanted: int
    held: int
    joining: int
    draining: int
    missing: int
    reason: str | None
    since: datetime | None
    last_try: datetime | None
    next_try: datetime | None
    pauses_until: datetime | None
    pool: WhyPool
    visit: WhyVisit | None
    sentences: tuple[str, ...]


class WhyService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def node(self, caller: Caller, ref: str) -> WhyNode:
        """A node's story, by its uid or name, removed ones included (operators). Raises NotFound."""
        require_operator(caller)
        async with self._db.read() as tx:
            found = await why.node(tx, ref)
            if found is None:
                raise NotFound(f"there is no node {ref[:80]!r}", param="node", code="node_not_found")
            made_for, taken_for = await _claim(tx, found.claim_id), await _claim(tx, found.taken_for)
            visit = _visit(await why.visit(tx, Loop.LIFECYCLE, found.uid))
            program = _program((await instances.last_runs(tx, [found.uid])).get(found.uid))
            wiped = await wipes.read(tx, node=found.uid)
        return WhyNode(
            uid=found.uid,
            name=found.name,
            pool=found.pool,
            cluster_id=found.cluster_id,
            cluster_name=found.cluster_name,
            host=found.host_name,
            compute_class=found.compute_class,
            phase=found.phase,
            phase_since=found.phase_since,
            deadline=found.deadline,
            end_reason=found.end_reason,
            made_for=made_for,
            taken_for=taken_for,
            taken_because=found.why,
            visit=visit,
            program=program,
            sentences=(
                *_of_node(found, made_for, taken_for),
                *_of_wipes(wiped),
                *_of_program(program),
                *_of_visit(visit),
            ),
        )

    async def target(self, caller: Caller, cluster_id: str) -> WhyTarget:
        """Why a cluster's target is not met, and what its pool has (operators). Raises NotFound."""
        require_operator(caller)
        async with self._db.read() as tx:
            row = await clusters.load(tx, cluster_id)
            if row is None or row.phase is ClusterPhase.DELETED:
                raise NotFound(f"there is no cluster {cluster_id[:80]!r}", code="cluster_not_found")
            pool = await pools.load(tx, row.pool)
            assert pool is not None
            view = await pools.view(tx, pool)
            held = {one.holding.cluster_id: one for one in await pools.holdings(tx, row.pool)}.get(row.id)
            visit = _visit(await why.visit(tx, Loop.FULFILLMENT, row.pool))
            plane = None if row.control_plane_ready else await why.visit(tx, Loop.CLUSTER, row.id)
            now = tx.now
        told = _target(row, held, _pool(view), visit, now)
        return replace(told, sentences=(*_of_plane(_visit(plane)), *told.sentences))


async def _claim(tx: Tx, claim_id: str | None) -> WhyClaim | None:
    row = await claims.load(tx, claim_id) if claim_id else None
    if row is None:
        return None
    return WhyClaim(row.id, row.kind.value, row.state.value, row.ref, row.for_whom, row.hosts, row.created_at)


def _visit(row: VisitStory | None) -> WhyVisit | None:
    return WhyVisit(row.outcome, row.outcome_at, row.due_at, row.failures) if row else None


def _pool(view: PoolView) -> WhyPool:
    return WhyPool(
        view.pool,
        view.free_total,
        view.cooling,
        view.cooling_until,
        view.leaving,
        view.promised,
        view.headroom,
        view.lendable,
    )


def _program(row: LastRun | None) -> WhyProgram | None:
    return WhyProgram(row.verb, row.exit_code, row.ran_at, row.state, row.handle, row.output) if row else None


def _of_program(program: WhyProgram | None) -> Iterator[str]:
    if program is None:
        return
    end = "took too long and was killed" if program.exit_code is None else f"ended with {program.exit_code}"
    yield f"Its {program.verb} program {end} at {rfc3339(program.at)}."
    if program.output:
        yield f"It wrote:\n{program.output}"


def _of_wipes(wiped: Sequence[WipeRow]) -> Iterator[str]:
    for one in reversed(wiped):
        yield f"Its host was wiped {one.moment} it, at {rfc3339(one.at)}, by: {one.wiped_by}."


def _of_node(found: NodeStory, made_for: WhyClaim | None, taken_for: WhyClaim | None) -> Iterator[str]:
    where = f"on host {found.host_name}" if found.host_name else "without a host"
    if made_for is not None:
        yield f"It was ordered {where} for {_told(made_for)}."
    elif found.compute_class == ComputeClass.PREEMPTIBLE and found.cluster_name:
        yield f"It was placed {where} because cluster {found.cluster_name!r} wants more preemptible nodes."
    if found.why:
        yield f"It was chosen to leave: {found.why}."
    if taken_for is not None:
        yield f"Its host goes to {_told(taken_for)}."
    if found.phase == Phase.DRAINING and found.deadline:
        yield f"It drains, and is gone by {rfc3339(found.deadline)} at the latest."
    yield f"It is {found.phase} since {rfc3339(found.phase_since)}."


def _of_plane(visit: WhyVisit | None) -> Iterator[str]:
    """Of a control plane that is not there yet."""
    if visit is not None and visit.outcome and visit.at:
        yield f"Its control plane is not ready, at {rfc3339(visit.at)}: {visit.outcome}."


def _told(claim: WhyClaim) -> str:
    """A standard claim says what it is for itself; others are known by their reference."""
    name = f" {claim.ref!r}" if claim.ref else ""
    return f"the {claim.kind} claim{name} of {many(claim.hosts, 'host')} for {claim.for_whom} ({claim.state})"


def _of_visit(visit: WhyVisit | None) -> Iterator[str]:
    if visit is None:
        return
    if visit.outcome and visit.at:
        yield f"Last looked after at {rfc3339(visit.at)}: {visit.outcome}."
    if visit.failures:
        yield f"That failed {visit.failures} times in a row."
    yield f"Next due at {rfc3339(visit.next_due)}." if visit.next_due else "Nothing is left to do."


def _target(
    row: ClusterRow, held: ClusterHolding | None, pool: WhyPool, visit: WhyVisit | None, now: datetime
) -> WhyTarget:
    size = row.gpus_per_host
    has = held.holding.held_gpus // size if held else 0
    backoff = row.fill_backoff_until
    pauses_until = backoff if backoff and backoff > now else None
    missing = max(0, row.target_hosts - has)
    reason = _reason(row, missing)
    return WhyTarget(
        cluster_id=row.id,
        cluster_name=row.name,
        wanted=row.target_hosts,
        held=has,
        joining=held.holding.joining if held else 0,
        draining=held.holding.leaving_gpus // size if held else 0,
        missing=missing,
        reason=reason,
        since=row.fill_since,
        last_try=row.fill_last_try,
        next_try=row.fill_next_try,
        pauses_until=pauses_until,
        pool=pool,
        visit=visit,
        sentences=tuple(_of_target(row, has, reason, pauses_until, pool)),
    )


def _reason(row: ClusterRow, missing: int) -> str | None:
    if row.fill_reason is not None or not missing:
        return row.fill_reason
    if not row.control_plane_ready:
        return row.import_problem or "the control plane is not ready, so no node could join"
    return "it was not tried yet"


def _of_target(
    row: ClusterRow, has: int, reason: str | None, pauses_until: datetime | None, pool: WhyPool
) -> Iterator[str]:
    yield f"Cluster {row.name!r} wants {row.target_hosts} preemptible nodes and has {has}."
    yield f"Not met: {reason}." if reason else "The target is met."
    if reason and row.fill_since:
        yield f"That is so since {rfc3339(row.fill_since)}."
    if reason and row.fill_last_try:
        yield f"Last tried at {rfc3339(row.fill_last_try)}."
    if reason and row.fill_next_try:
        yield f"Tried again at {rfc3339(row.fill_next_try)}, or as soon as a host comes free."
    if pauses_until:
        yield f"Nodes failed to join: filling pauses until {rfc3339(pauses_until)}."
    yield (
        f"Pool {pool.name} has {pool.free} free hosts ({pool.resting} of them resting), {pool.leaving} "
        f"coming free, {pool.promised} promised, {pool.headroom} kept as headroom: {pool.lendable} to lend "
        f"now."
    )
