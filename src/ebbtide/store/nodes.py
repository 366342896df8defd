"""Nodes: the one function that writes phases, and how nodes are read. Long because a move is one thing.

`move` takes many moves at once and does everything that belongs to a move in one go: the phase, its history,
the lifecycle event, the host's occupant, the billable interval, and the visits that become due. Lock order
everywhere: pool, nodes, hosts, clusters, visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ebbtide.core import events as core_events
from ebbtide.core.nodes import (
    ALLOCATED,
    ComputeClass,
    DrainKind,
    EndReason,
    Phase,
    check_end,
    check_move,
    first_phase,
)
from ebbtide.store import events, intervals, visits
from ebbtide.store.db import Tx
from ebbtide.store.tables import nodes
from ebbtide.store.visits import Loop


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to be written.

    With a host it starts SCHEDULING (RUNNING for a host handed to somebody else), without PENDING.
    """

    uid: str
    name: str
    cluster_id: str | None
    project_id: str | None
    pool: str
    compute_class: ComputeClass
    gpus: int
    claim_id: str | None = None
    host_id: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One move of one node.

    before:     the phase it was seen in; if it is in another by now, the move does not happen
    host_id:    for leaving PENDING: the host it got
    bill_from:  when a billable stay began earlier than this move (a pod slipped in before RUNNING)
    bill_until: when it stopped being billable, if before this move
    """

    uid: str
    before: Phase
    after: Phase
    event: core_events.Event | None = None
    host_id: str | None = None
    end_reason: EndReason | None = None
    drain_kind: DrainKind | None = None
    deadline: datetime | None = None
    why: str | None = None
    taken_for: str | None = None
    instance_id: str | None = None
    address: str | None = None
    bill_from: datetime | None = None
    bill_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """A node as it is after its move."""

    uid: str
    no: int
    name: str
    cluster_id: str | None
    project_id: str | None
    pool: str
    compute_class: ComputeClass
    gpus: int
    host_id: str | None
    deadline: datetime | None
    phase_since: datetime


async def place(tx: Tx, new: Sequence[NewNode]) -> None:
    """Write new nodes, PENDING or with their hosts."""
    if not new:
        return
    await tx.conn.execute(
        sa.insert(nodes),
        [
            {
                "uid": node.uid,
                "name": node.name,
                "cluster_id": node.cluster_id,
                "project_id": node.project_id,
                "pool": node.pool,
                "compute_class": node.compute_class,
                "gpus": node.gpus,
                "claim_id": node.claim_id,
                "phase": Phase.PENDING,
                "phase_since": tx.now,
                "created_at": tx.now,
            }
            for node in new
        ],
    )
    await _write_history(tx, [(node.uid, node.cluster_id, Phase.PENDING, tx.now) for node in new])
    with_host = [node for node in new if node.host_id]
    await move(
        tx,
        [
            Move(node.uid, Phase.PENDING, first_phase(node.compute_class), host_id=node.host_id)
            for node in with_host
        ],
    )


_MOVE = sa.text("""
UPDATE nodes n SET
    phase = m.after, phase_since = GREATEST(:now, n.phase_since),
    host_id = COALESCE(m.host_id, n.host_id),
    placed_at = CASE WHEN m.host_id IS NOT NULL THEN GREATEST(:now, n.phase_since) ELSE n.placed_at END,
    running_at = CASE WHEN m.after = 'RUNNING' THEN GREATEST(:now, n.phase_since) ELSE n.running_at END,
    drain_kind = COALESCE(m.drain_kind, n.drain_kind),
    draining_at = CASE WHEN m.after = 'DRAINING' THEN GREATEST(:now, n.phase_since) ELSE n.draining_at END,
    signal_from = CASE WHEN m.after = 'DRAINING' THEN LEAST(m.deadline, GREATEST(:now, n.phase_since)
        + COALESCE((SELECT make_interval(secs => c.warn_first_s) FROM clusters c WHERE c.id = n.cluster_id),
                   interval '0'))
        ELSE n.signal_from END,
    deadline = COALESCE(n.deadline, m.deadline),
    ends_at = COALESCE(n.ends_at, m.deadline),
    why = COALESCE(m.why, n.why),
    taken_for = COALESCE(m.taken_for, n.taken_for),
    left_at = CASE WHEN m.after = 'REMOVING' THEN GREATEST(:now, n.phase_since) ELSE n.left_at END,
    end_reason = COALESCE(m.end_reason, n.end_reason),
    removed_at = CASE WHEN m.after = 'REMOVED' THEN GREATEST(:now, n.phase_since) ELSE n.removed_at END,
    instance_id = COALESCE(m.instance_id, n.instance_id),
    address = COALESCE(m.address, n.address)
FROM unnest(CAST(:uids AS text[]), CAST(:befores AS text[]), CAST(:afters AS text[]), CAST(:host_ids AS
text[]),
            CAST(:drain_kinds AS text[]), CAST(:deadlines AS timestamptz[]), CAST(:whys AS text[]),
            CAST(:taken_fors AS text[]), CAST(:end_reasons AS text[]), CAST(:instance_ids AS text[]),
            CAST(:addresses AS text[]))
     AS m(uid, before, after, host_id, drain_kind, deadline, why, taken_for, end_reason, instance_id, address)
WHERE n.uid = m.uid AND n.phase = m.before
RETURNING n.uid, n.no, n.name, n.cluster_id, n.project_id, n.pool, n.compute_class, n.gpus, n.host_id,
n.deadline, n.phase_since
""")


async def move(tx: Tx, moves: Sequence[Move], *, cooldown_s: int = 0) -> list[Moved]:
    """Carry out moves, each through the transition table; answer those that happened (others were faster with
    the rest).

    cooldown_s: how long a host given back by demand that displaces is not lent to preemptible nodes.
    """
    if not moves:
        return []
    for one in moves:
        check_move(one.before, one.after)
    by_uid = {one.uid: one for one in moves}
    if len(by_uid) > 1:
        await tx.conn.execute(_LOCK, {"uids": list(by_uid)})
    rows = await tx.conn.execute(_MOVE, {"now": tx.now, **_columns(sorted(moves, key=lambda one: one.uid))})
    moved = sorted((_moved(row) for row in rows), key=lambda one: one.uid)
    for node in moved:
        if reason := by_uid[node.uid].end_reason:
            check_end(node.compute_class, reason)
    await _write_history(
        tx, [(node.uid, node.cluster_id, by_uid[node.uid].after, node.phase_since) for node in moved]
    )
    await _occupy(tx, [node for node in moved if by_uid[node.uid].host_id])
    await _vacate(
        tx, [node for node in moved if by_uid[node.uid].after is Phase.REMOVED and node.host_id], cooldown_s
    )
    await _bill(tx, moved, by_uid)
    await events.append(
        tx,
        [
            events.NewEvent(node.cluster_id, node.uid, node.name, event)
            for node in moved
            if node.cluster_id and (event := by_uid[node.uid].event)
        ],
    )
    await _wake(tx, moved, by_uid)
    return moved


# Whoever writes to several nodes locks them in the order of their uids, so that no two wait for each other.
_LOCK = sa.text("SELECT 1 FROM nodes WHERE uid = ANY(:uids) ORDER BY uid FOR NO KEY UPDATE")


async def lock_cluster(tx: Tx, cluster_id: str) -> None:
    """Lock the nodes of a cluster, for a transaction that locks the cluster next and moves its nodes then.

    Moves lock nodes first and their clusters, for the events, after; the other way round two would wait in a
    circle.
    """
    await tx.conn.execute(
        sa.text("""
        SELECT 1 FROM nodes WHERE cluster_id = :id AND phase <> 'REMOVED' ORDER BY uid FOR NO KEY UPDATE
        """),
        {"id": cluster_id},
    )


def _columns(moves: Sequence[Move]) -> dict[str, list[object]]:
    return {
        "uids": [one.uid for one in moves],
        "befores": [one.before for one in moves],
        "afters": [one.after for one in moves],
        "host_ids": [one.host_id for one in moves],
        "drain_kinds": [one.drain_kind for one in moves],
        "deadlines": [one.deadline for one in moves],
        "whys": [one.why for one in moves],
        "taken_fors": [one.taken_for for one in moves],
        "end_reasons": [one.end_reason for one in moves],
        "instance_ids": [one.instance_id for one in moves],
        "addresses": [one.address for one in moves],
    }


def _moved(row: sa.Row[tuple[object, ...]]) -> Moved:
    values = dict(row._mapping)
    return Moved(**{**values, "compute_class": ComputeClass(values["compute_class"])})


async def _write_history(tx: Tx, changes: Sequence[tuple[str, str | None, Phase, datetime]]) -> None:
    if not changes:
        return
    await tx.conn.execute(
        sa.text("""
        INSERT INTO phase_transitions (node_uid, cluster_id, phase, at)
        SELECT * FROM unnest(CAST(:uids AS text[]), CAST(:clusters AS text[]), CAST(:phases AS text[]),
                             CAST(:ats AS timestamptz[]))
        """),
        {
            "uids": [uid for uid, _, _, _ in changes],
            "clusters": [cluster_id for _, cluster_id, _, _ in changes],
            "phases": [phase for _, _, phase, _ in changes],
            "ats": [at for _, _, _, at in changes],
        },
    )


async def _occupy(tx: Tx, moved: Sequence[Moved]) -> None:
    if not moved:
        return
    result = await tx.conn.execute(
        sa.text("""
        UPDATE hosts h SET node_uid = o.uid
        FROM unnest(CAST(:uids AS text[]), CAST(:host_ids AS text[])) AS o(uid, host_id)
        WHERE h.id = o.host_id AND h.node_uid IS NULL
        """),
        {"uids": [node.uid for node in moved], "host_ids": [node.host_id for node in moved]},
    )
    if result.rowcount != len(moved):
        raise AssertionError(
            "a host was given to a second occupant: the plan was not made under the pool's lock"
        )


async def _vacate(tx: Tx, moved: Sequence[Moved], cooldown_s: int) -> None:
    """Free hosts. Those given back by demand that displaces rest, and those taken for no claim.

    What was worked on does not: nobody is about to want it back.
    """
    if not moved:
        return
    await tx.conn.execute(
        sa.text("""
        UPDATE hosts h SET node_uid = NULL, lendable_at = CASE
            WHEN n.compute_class IN ('standard', 'external')
              OR (n.end_reason = 'preempted' AND n.taken_for IS NULL)
            THEN CAST(:until AS timestamptz) END
        FROM nodes n WHERE n.uid = h.node_uid AND n.uid = ANY(:uids)
        """),
        {"uids": [node.uid for node in moved], "until": tx.now + timedelta(seconds=cooldown_s)},
    )


async def _bill(tx: Tx, moved: Sequence[Moved], by_uid: dict[str, Move]) -> None:
    opened, closed = [], []
    for node in moved:
        one = by_uid[node.uid]
        if node.cluster_id and one.after in ALLOCATED and one.before not in ALLOCATED:
            opened.append(intervals.Opened(node.uid, one.bill_from or tx.now))
        if node.cluster_id and one.before in ALLOCATED and one.after not in ALLOCATED:
            ends = [tx.now, *(at for at in (one.bill_until, node.deadline) if at)]
            closed.append(intervals.Closed(node.uid, min(ends)))
    await intervals.open_(tx, opened)
    await intervals.close(tx, closed)


async def _wake(tx: Tx, moved: Sequence[Moved], by_uid: dict[str, Move]) -> None:
    """Make due what a move makes due: the node's own next step, its cluster's phase, its pool's plan."""
    machines = [node for node in moved if by_uid[node.uid].after not in (Phase.REMOVED, Phase.RUNNING)]
    for urgent in (True, False):
        due = [node for node in machines if (by_uid[node.uid].after is Phase.DRAINING) is urgent]
        await visits.hint(
            tx,
            Loop.LIFECYCLE,
            [node.uid for node in due],
            clusters=[node.cluster_id for node in due],
            urgent=urgent,
        )
    ended = {Phase.RUNNING, Phase.DRAINING, Phase.REMOVING, Phase.REMOVED}
    clusters = {node.cluster_id for node in moved if node.cluster_id and by_uid[node.uid].after in ended}
    await visits.hint(tx, Loop.CLUSTER, sorted(clusters))
    pools = {node.pool for node in moved if by_uid[node.uid].after in {Phase.REMOVING, Phase.REMOVED}}
    await visits.hint(tx, Loop.FULFILLMENT, sorted(pools))


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with what a visit needs of its cluster, host and pool."""

    uid: str
    no: int
    name: str
    cluster_id: str | None
    cluster_name: str | None
    kubeconfig: str | None
    project_id: str | None
    pool: str
    host_id: str | None
    host_name: str | None
    fabric_block: str | None
    region: str
    gpu_type: str
    compute_class: ComputeClass
    gpus: int
    phase: Phase
    phase_since: datetime
    created_at: datetime
    placed_at: datetime
    running_at: datetime | None
    drain_kind: DrainKind | None
    draining_at: datetime | None
    deadline: datetime | None
    ends_at: datetime | None
    signal_from: datetime | None
    drain_attempted_at: datetime | None
    notified_at: datetime | None
    drain_looked_at: datetime | None
    first_signal_at: datetime | None
    left_at: datetime | None
    left_empty: bool
    end_reason: EndReason | None
    why: str | None
    instance_id: str | None
    stopped_at: datetime | None
    concluded_at: datetime | None
    out_of_cluster_at: datetime | None
    admitted_at: datetime | None
    workload_pods: int
    cordoned: bool
    healthy_until: datetime | None
    restart_until: datetime | None


_LOAD = """
SELECT n.uid, n.no, n.name, n.cluster_id, c.name AS cluster_name,
       COALESCE(c.driver_kubeconfig, c.kubeconfig) AS kubeconfig, n.project_id, n.pool, n.host_id,
       h.name AS host_name, h.fabric_block, p.region, p.gpu_type, n.compute_class, n.gpus, n.phase,
       n.phase_since, n.created_at, COALESCE(n.placed_at, n.created_at) AS placed_at, n.running_at,
       n.drain_kind, n.draining_at, n.deadline, n.ends_at, n.signal_from, n.drain_attempted_at, n.notified_at,
       n.drain_looked_at, n.first_signal_at, n.left_at, n.left_empty, n.end_reason, n.why, n.instance_id,
       n.stopped_at, n.concluded_at, n.out_of_cluster_at, n.admitted_at, n.workload_pods, n.cordoned,
       n.healthy_until, n.restart_until
FROM nodes n JOIN pools p ON p.name = n.pool
LEFT JOIN clusters c ON c.id = n.cluster_id LEFT JOIN hosts h ON h.id = n.host_id
"""


# By position, and words by a table: an observation of 1,000 nodes makes 1,000 of these.
_WORDS: list[tuple[int, dict[str, StrEnum]]] = [
    (list(NodeRow.__slots__).index(name), {word.value: word for word in words})
    for name, words in (
        ("compute_class", ComputeClass),
        ("phase", Phase),
        ("drain_kind", DrainKind),
        ("end_reason", EndReason),
    )
]


def _row(row: sa.Row[tuple[object, ...]]) -> NodeRow:
    values: list[Any] = list(row)
    for at, words in _WORDS:
        if values[at] is not None:
            values[at] = words[values[at]]
    return NodeRow(*values)


async def load(tx: Tx, uid: str) -> NodeRow | None:
    """One node, or None when there is no such uid."""
    row = (await tx.conn.execute(sa.text(_LOAD + " WHERE n.uid = :uid"), {"uid": uid})).first()
    return _row(row) if row else None


async def by_uids(tx: Tx, uids: Sequence[str]) -> dict[str, NodeRow]:
    """Nodes by uid."""
    rows = await tx.conn.execute(sa.text(_LOAD + " WHERE n.uid = ANY(:uids)"), {"uids": list(uids)})
    return {row.uid: _row(row) for row in rows}


async def of_cluster(tx: Tx, cluster_id: str) -> list[NodeRow]:
    """Every node of a cluster that is not REMOVED, oldest first."""
    rows = await tx.conn.execute(
        sa.text(_LOAD + " WHERE n.cluster_id = :id AND n.phase <> 'REMOVED' ORDER BY n.no"),
        {"id": cluster_id},
    )
    return [_row(row) for row in rows]


async def of_clusters(tx: Tx, cluster_ids: Sequence[str], phases: Sequence[Phase]) -> list[NodeRow]:
    """Nodes of several clusters in the phases given."""
    rows = await tx.conn.execute(
        sa.text(
            _LOAD + " WHERE n.cluster_id = ANY(:ids) AND n.phase <> 'REMOVED' AND n.phase = ANY(:phases) "
            "ORDER BY n.no"
        ),
        {"ids": list(cluster_ids), "phases": list(phases)},
    )
    return [_row(row) for row in rows]


async def of_pool(tx: Tx, pool: str) -> list[NodeRow]:
    """Every node of a pool that is not REMOVED."""
    rows = await tx.conn.execute(
        sa.text(_LOAD + " WHERE n.pool = :pool AND n.phase <> 'REMOVED' ORDER BY n.no"), {"pool": pool}
    )
    return [_row(row) for row in rows]


async def in_phase(tx: Tx, phase: Phase) -> list[NodeRow]:
    """Every node of the fleet in a phase (not REMOVED: those are too many)."""
    rows = await tx.conn.execute(
        sa.text(_LOAD + " WHERE n.phase = :phase AND n.phase <> 'REMOVED' ORDER BY n.no"), {"phase": phase}
    )
    return [_row(row) for row in rows]


async def of_claim(tx: Tx, claim_id: str) -> list[NodeRow]:
    """Every node that was made for a claim, ended ones too."""
    rows = await tx.conn.execute(sa.text(_LOAD + " WHERE n.claim_id = :id ORDER BY n.no"), {"id": claim_id})
    return [_row(row) for row in rows]


async def taken_for(tx: Tx, claim_id: str) -> list[NodeRow]:
    """Nodes that a claim took and that are still on their way out."""
    rows = await tx.conn.execute(
        sa.text(_LOAD + " WHERE n.taken_for = :id AND n.phase <> 'REMOVED' ORDER BY n.no"), {"id": claim_id}
    )
    return [_row(row) for row in rows]


async def gone_among(
    tx: Tx, cluster_id: str, names: Mapping[str, str], *, rest_s: int = 0
) -> dict[str, Phase]:
    """Of the Node objects seen in a cluster, those that the ledger calls gone: REMOVING or REMOVED by uid.

    names: by uid, as the cluster has them. A label is soon copied: who has the uid of a node of another
           cluster, or another name than it had, is not ours; nor are uids that the ledger does not know.
    rest_s: leave out nodes on their way that were taken out of their cluster so short a time ago
    """
    rows = await tx.conn.execute(
        sa.text("""
        SELECT uid, name, phase FROM nodes
        WHERE uid = ANY(:uids) AND cluster_id = :cluster
            AND (phase = 'REMOVED' OR phase = 'REMOVING' AND out_of_cluster_at <= :before)
        ORDER BY no
        """),
        {"uids": list(names), "cluster": cluster_id, "before": tx.now - timedelta(seconds=rest_s)},
    )
    return {row.uid: Phase(row.phase) for row in rows if row.name == names[row.uid]}


async def end_late(tx: Tx, uid: str, ends_at: datetime) -> bool:
    """Let a drain end after its deadline, once. False when it was done before or the node left meanwhile."""
    result = await tx.conn.execute(
        sa.text("""
        UPDATE nodes SET ends_at = :ends_at WHERE uid = :uid AND phase = 'DRAINING' AND ends_at = deadline
        """),
        {"uid": uid, "ends_at": ends_at},
    )
    return bool(result.rowcount)


async def set_facts(tx: Tx, uid: str, **facts: object) -> None:
    """Write what the outside said of a node. Phases, deadlines and endings go through `move` only."""
    forbidden = facts.keys() & {"phase", "phase_since", "deadline", "end_reason", "host_id"}
    if forbidden:
        raise AssertionError(f"not facts: {sorted(forbidden)}")
    if facts:
        await tx.conn.execute(sa.update(nodes).where(nodes.c.uid == uid).values(**facts))
