"""What happens to each pod while its node drains, written while it happens; read as receipts.

Every write may come twice, or from a visit that has lost its lease: what is known already stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from ebbtide.core.drain import PodOrder, PodSeen
from ebbtide.core.receipts import PodRecord
from ebbtide.store.db import Tx

_SIGNAL, _EVICTION = "signal", "eviction"


async def lock(tx: Tx, node_uid: str) -> None:
    """Lock a node that drains, before anything is written of its pods and said in its timeline: who does the
    same visit meanwhile waits, and finds it said."""
    await tx.conn.execute(
        sa.text("SELECT 1 FROM nodes WHERE uid = :node FOR NO KEY UPDATE"), {"node": node_uid}
    )


# One statement: a wave of notices writes this for every node at once.
_SAW = sa.text("""
WITH gone AS (
    UPDATE drain_pods SET gone_at = :at
    WHERE node_uid = :node AND gone_at IS NULL AND NOT killed AND first_seen_at <= :at
      AND NOT pod_uid = ANY(CAST(:uids AS text[]))
)
INSERT INTO drain_pods (node_uid, pod_uid, namespace, name, kind, first_seen_at, arrived, tolerates,
                        grace_asked_s, told_by)
SELECT :node, s.uid, s.namespace, s.name, s.kind, :at, :arrived, s.tolerates, s.grace_s,
       CASE WHEN s.ending THEN 'others' END
FROM unnest(CAST(:uids AS text[]), CAST(:namespaces AS text[]), CAST(:names AS text[]),
            CAST(:kinds AS text[]), CAST(:tolerates AS boolean[]), CAST(:graces AS integer[]),
            CAST(:ending AS boolean[])) AS s(uid, namespace, name, kind, tolerates, grace_s, ending)
ORDER BY s.uid
ON CONFLICT DO NOTHING
RETURNING pod_uid
""")


async def saw(
    tx: Tx, node_uid: str, at: datetime, pods: Sequence[PodSeen], *, arrived: bool
) -> frozenset[str]:
    """A complete read, begun at `at`, showed these pods that count: new ones are written down, missing ones
    are gone.

    arrived: pods that are new now came after the notice
    Answers the uids of those that are new.
    """
    rows = await tx.conn.execute(
        _SAW,
        {
            "node": node_uid,
            "at": at,
            "arrived": arrived,
            "uids": [pod.uid for pod in pods],
            "namespaces": [pod.namespace for pod in pods],
            "names": [pod.name for pod in pods],
            "kinds": [pod.kind.value for pod in pods],
            "tolerates": [pod.tolerates_cordon for pod in pods],
            "graces": [pod.grace_s for pod in pods],
            "ending": [pod.ends_by is not None for pod in pods],
        },
    )
    return frozenset(rows.scalars())


_TELL = sa.text("""
UPDATE drain_pods p SET
    told_at = CASE WHEN o.shorten THEN p.told_at ELSE CAST(:at AS timestamptz) END,
    told_by = CASE WHEN o.shorten THEN p.told_by ELSE o.by END,
    grace_given_s = CASE WHEN o.shorten THEN p.grace_given_s ELSE o.grace_s END,
    shortened_to_s = CASE WHEN o.shorten THEN o.grace_s ELSE p.shortened_to_s END
FROM unnest(CAST(:uids AS text[]), CAST(:graces AS integer[]), CAST(:shortens AS boolean[]),
            CAST(:bys AS text[])) AS o(uid, grace_s, shorten, by)
WHERE p.node_uid = :node AND p.pod_uid = o.uid
""")


async def will_tell(
    tx: Tx, node_uid: str, at: datetime, signal: Sequence[PodOrder], evict: Sequence[PodOrder]
) -> None:
    """These orders are sent next. Written before, so that a process that dies after sending leaves no gap;
    one that dies before is corrected by the next, which sees the pods untold and tells them anew."""
    orders = [(order, _SIGNAL) for order in signal] + [(order, _EVICTION) for order in evict]
    if not orders:
        return
    await tx.conn.execute(
        _TELL,
        {
            "node": node_uid,
            "at": at,
            "uids": [order.uid for order, _ in orders],
            "graces": [order.grace_s for order, _ in orders],
            "shortens": [order.shorten for order, _ in orders],
            "bys": [by for _, by in orders],
        },
    )


async def answered(tx: Tx, node_uid: str, results: Sequence[tuple[str, str | None, str | None]]) -> None:
    """What the cluster said to orders that were not simply carried out: (pod uid, refused, overrode)."""
    if not results:
        return
    await tx.conn.execute(
        sa.text("""
        UPDATE drain_pods p SET
            overrode = COALESCE(a.overrode, p.overrode), refused = COALESCE(a.refused, p.refused),
            told_at = CASE WHEN a.refused IS NULL OR p.told_by <> 'eviction' THEN p.told_at END,
            told_by = CASE WHEN a.refused IS NULL OR p.told_by <> 'eviction' THEN p.told_by END,
            grace_given_s = CASE WHEN a.refused IS NULL OR p.told_by <> 'eviction' THEN p.grace_given_s END
        FROM unnest(CAST(:uids AS text[]), CAST(:refused AS text[]), CAST(:overrode AS text[]))
             AS a(uid, refused, overrode)
        WHERE p.node_uid = :node AND p.pod_uid = a.uid
        """),
        {
            "node": node_uid,
            "uids": [uid for uid, _, _ in results],
            "refused": [refused for _, refused, _ in results],
            "overrode": [overrode for _, _, overrode in results],
        },
    )


async def end(tx: Tx, node_uid: str, left_over: Sequence[str]) -> None:
    """The node leaves, and these pods end with its machine."""
    if left_over:
        await tx.conn.execute(
            sa.text("""
            UPDATE drain_pods SET killed = true
            WHERE node_uid = :node AND pod_uid = ANY(:uids) AND gone_at IS NULL
            """),
            {"node": node_uid, "uids": list(left_over)},
        )


_POD = (
    "pod_uid, namespace, name, kind, first_seen_at, arrived, tolerates, grace_asked_s, told_at, told_by, "
    "grace_given_s, shortened_to_s, refused, overrode, gone_at, killed"
)


async def pods_of(tx: Tx, node_uid: str) -> list[PodRecord]:
    """The pods of one drain, by namespace and name."""
    return (await pods_of_many(tx, [node_uid])).get(node_uid, [])


async def pods_of_many(tx: Tx, node_uids: Sequence[str]) -> dict[str, list[PodRecord]]:
    """The same for several, by node uid."""
    rows = await tx.conn.execute(
        sa.text(
            f"SELECT node_uid, {_POD} FROM drain_pods WHERE node_uid = ANY(:uids) "
            f"ORDER BY namespace, name, pod_uid"
        ),
        {"uids": list(node_uids)},
    )
    found: dict[str, list[PodRecord]] = {}
    for row in rows:
        node_uid, *values = row
        found.setdefault(node_uid, []).append(PodRecord(*values))
    return found


NOTICES = ("TogetherPreempted", "TogetherScaledDown", "EbbtideNodeRemediated", "EbbtideNodeFailed")


async def notice_of(tx: Tx, node_uid: str) -> str:
    """What the tenant was told of a node's notice, as its event has it."""
    found = await tx.conn.execute(
        sa.text("""
        SELECT message FROM lifecycle_events
        WHERE node_uid = :node AND reason = ANY(:notices) ORDER BY number LIMIT 1
        """),
        {"node": node_uid, "notices": list(NOTICES)},
    )
    return str(found.scalar_one_or_none() or "")


@dataclass(frozen=True, slots=True)
class DrainRow:
    """A node that was noticed, with the times of its leaving.

    no:         its place in the ledger; a later node has a higher one
    message:    its notice as its tenant reads it
    billed_s:   billed seconds from the notice on
    """

    no: int
    uid: str
    name: str
    cluster_id: str
    project_id: str
    compute_class: str
    gpus: int
    phase: str
    drain_kind: str
    end_reason: str | None
    running_at: datetime | None
    draining_at: datetime
    deadline: datetime
    ends_at: datetime
    signal_from: datetime | None
    notified_at: datetime | None
    drain_looked_at: datetime | None
    first_signal_at: datetime | None
    left_at: datetime | None
    left_empty: bool
    stopped_at: datetime | None
    out_of_cluster_at: datetime | None
    removed_at: datetime | None
    message: str | None
    billed_s: int


_DRAIN = """
SELECT n.no, n.uid, n.name, n.cluster_id, n.project_id, n.compute_class, n.gpus, n.phase, n.drain_kind,
       n.end_reason, n.running_at, n.draining_at, n.deadline, n.ends_at, n.signal_from, n.notified_at,
       n.drain_looked_at, n.first_signal_at, n.left_at, n.left_empty, n.stopped_at, n.out_of_cluster_at,
       n.removed_at,
       (SELECT e.message FROM lifecycle_events e
        WHERE e.node_uid = n.uid AND e.reason = ANY(:notices) ORDER BY e.number LIMIT 1) AS message,
       (SELECT COALESCE(sum(GREATEST(0,
            COALESCE(i.end_s, LEAST(:now_s, extract(epoch FROM n.deadline)::bigint))
            - GREATEST(i.start_s, extract(epoch FROM n.draining_at)::bigint))), 0)::bigint
        FROM intervals i WHERE i.node_uid = n.uid) AS billed_s
FROM nodes n
WHERE n.cluster_id = :cluster AND n.draining_at IS NOT NULL
"""


def _values(tx: Tx, cluster_id: str) -> dict[str, object]:
    return {"cluster": cluster_id, "now_s": int(tx.now.timestamp()), "notices": list(NOTICES)}


async def drains(tx: Tx, cluster_id: str, *, before: int | None, limit: int) -> list[DrainRow]:
    """Drains of a cluster, the newest node first; with `before`, only of nodes with a lower number."""
    rows = await tx.conn.execute(
        sa.text(
            _DRAIN
            + " AND (CAST(:before AS bigint) IS NULL OR n.no < :before) ORDER BY n.no DESC LIMIT :limit"
        ),
        {**_values(tx, cluster_id), "before": before, "limit": limit},
    )
    return [DrainRow(*row) for row in rows]


async def drain(tx: Tx, cluster_id: str, node: str) -> DrainRow | None:
    """One drain, by its node's name or uid; None when the cluster had no such node, or it never drained."""
    row = (
        await tx.conn.execute(
            sa.text(_DRAIN + " AND (n.name = :node OR n.uid = :node)"),
            {**_values(tx, cluster_id), "node": node},
        )
    ).first()
    return DrainRow(*row) if row else None
