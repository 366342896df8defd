"""Receipts: what was promised to a node's pods when it was taken, what they got, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.core.nodes import EndReason, Phase
from ebbtide.core.receipts import PodEnd, PodRecord, end_of, ended_at, sentence, used_s, used_up
from ebbtide.errors import NotFound
from ebbtide.services.details import Caller
from ebbtide.services.visible import cluster_of
from ebbtide.store import ledger, receipts
from ebbtide.store.db import Database
from ebbtide.store.ledger import LedgerRow
from ebbtide.store.receipts import DrainRow

_REASON = {
    EndReason.PREEMPTED: "TogetherPreempted",
    EndReason.SCALED_DOWN: "TogetherScaledDown",
    EndReason.REMEDIATED: "EbbtideNodeRemediated",
}


@dataclass(frozen=True, slots=True)
class PodReceipt:
    """A pod's part. Seconds are whole; see docs/receipts.md for what each field says and does not say."""

    namespace: str
    pod: str
    pod_uid: str
    kind: str
    arrived_after_notice: bool
    tolerates_cordon: bool
    first_seen_at: datetime
    grace_asked_s: int
    grace_given_s: int | None
    shortened_to_s: int | None
    sigterm_at: datetime | None
    told_by: str | None
    budget_refused: str | None
    budget_overridden: str | None
    end: PodEnd
    ended_at: datetime | None
    used_s: int | None
    grace_used_up: bool


@dataclass(frozen=True, slots=True)
class CreditReceipt:
    reason: str
    gpu_seconds: int
    microdollars: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Receipt:
    """A drain. `pods` is None in lists."""

    cluster_id: str
    node_id: str
    node_uid: str
    compute_class: str
    gpus: int
    kind: str
    reason: str
    message: str | None
    state: str
    summary: str | None
    noticed_at: datetime
    deadline: datetime
    ends_at: datetime
    late_notice: bool
    warned_s: int
    sigterm_due_at: datetime
    cordoned_at: datetime | None
    first_sigterm_at: datetime | None
    left_at: datetime | None
    left_because: str | None
    stopped_at: datetime | None
    out_of_cluster_at: datetime | None
    host_free_at: datetime | None
    window_s: int
    used_s: int | None
    unused_s: int | None
    billed_s: int
    credits: tuple[CreditReceipt, ...]
    pods_by_end: dict[str, int]
    arrived_after_notice: int
    budgets_refused: tuple[str, ...]
    budgets_overridden: tuple[str, ...]
    pods: tuple[PodReceipt, ...] | None


class ReceiptService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(
        self, caller: Caller, cluster_id: str, before: str | None = None, limit: int = 50
    ) -> tuple[Receipt, ...]:
        """Drains of a cluster, deleted ones included, the newest node first, without their pods.

        before: a node's name or uid: only drains of nodes that are older
        Raises NotFound, for another tenant's cluster as for none, and for a node that did not drain in it.
        """
        async with self._db.read() as tx:
            cluster = await cluster_of(tx, caller, cluster_id)
            older_than = await receipts.drain(tx, cluster.id, before) if before else None
            if before and older_than is None:
                raise _no_drain()
            number = older_than.no if older_than else None
            rows = await receipts.drains(tx, cluster.id, before=number, limit=limit)
            uids = [row.uid for row in rows]
            pods = await receipts.pods_of_many(tx, uids)
            credited = await ledger.of_nodes(tx, cluster.project_id, uids)
        return tuple(
            _receipt(row, pods.get(row.uid, []), credited.get(row.uid, []), with_pods=False) for row in rows
        )

    async def retrieve(self, caller: Caller, cluster_id: str, node: str) -> Receipt:
        """One drain with its pods, by its node's name or uid. Raises NotFound."""
        async with self._db.read() as tx:
            cluster = await cluster_of(tx, caller, cluster_id)
            row = await receipts.drain(tx, cluster.id, node)
            if row is None:
                raise _no_drain()
            pods = await receipts.pods_of(tx, row.uid)
            credited = await ledger.of_nodes(tx, cluster.project_id, [row.uid])
        return _receipt(row, pods, credited.get(row.uid, []), with_pods=True)


def _no_drain() -> NotFound:
    return NotFound(
        "no such node of this cluster has drained; list its drains to see which have",
        param="node",
        code="drain_not_found",
    )


def _receipt(
    row: DrainRow, pods: Sequence[PodRecord], credited: Sequence[LedgerRow], *, with_pods: bool
) -> Receipt:
    taken_s = _seconds(row.draining_at, row.left_at) if row.left_at else None
    window_s = _seconds(row.draining_at, row.deadline)
    due = max(row.draining_at, row.signal_from or row.draining_at)
    told = [pod.told_at for pod in pods if pod.told_at is not None]
    by_end = dict.fromkeys((end.value for end in PodEnd), 0)
    for pod in pods:
        by_end[end_of(pod, row.left_at).value] += 1
    return Receipt(
        cluster_id=row.cluster_id,
        node_id=row.name,
        node_uid=row.uid,
        compute_class=row.compute_class,
        gpus=row.gpus,
        kind=row.drain_kind,
        reason=_reason(row),
        message=row.message,
        state=_state(row),
        summary=_summary(row, pods),
        noticed_at=row.draining_at,
        deadline=row.deadline,
        ends_at=row.ends_at,
        late_notice=row.ends_at > row.deadline,
        warned_s=_seconds(row.draining_at, due),
        sigterm_due_at=due,
        cordoned_at=row.notified_at,
        first_sigterm_at=min(told, default=None),
        left_at=row.left_at,
        left_because=_left_because(row),
        stopped_at=row.stopped_at,
        out_of_cluster_at=row.out_of_cluster_at,
        host_free_at=row.removed_at,
        window_s=window_s,
        used_s=taken_s,
        unused_s=None if taken_s is None else max(0, window_s - taken_s),
        billed_s=row.billed_s,
        credits=tuple(CreditReceipt(one.note, one.gpu_seconds, one.microdollars, one.at) for one in credited),
        pods_by_end=by_end,
        arrived_after_notice=sum(pod.arrived for pod in pods),
        budgets_refused=_named(pod.refused for pod in pods),
        budgets_overridden=_named(pod.overrode for pod in pods),
        pods=tuple(_pod(pod, row.left_at) for pod in pods) if with_pods else None,
    )


def _pod(pod: PodRecord, left_at: datetime | None) -> PodReceipt:
    return PodReceipt(
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.pod_uid,
        kind=pod.kind,
        arrived_after_notice=pod.arrived,
        tolerates_cordon=pod.tolerates,
        first_seen_at=pod.first_seen_at,
        grace_asked_s=pod.grace_asked_s,
        grace_given_s=pod.grace_given_s,
        shortened_to_s=pod.shortened_to_s,
        sigterm_at=pod.told_at,
        told_by=pod.told_by,
        budget_refused=pod.refused,
        budget_overridden=pod.overrode,
        end=end_of(pod, left_at),
        ended_at=ended_at(pod, left_at),
        used_s=used_s(pod, left_at),
        grace_used_up=used_up(pod, left_at),
    )


def _reason(row: DrainRow) -> str:
    return _REASON.get(EndReason(row.end_reason), "EbbtideNodeFailed") if row.end_reason else ""


def _state(row: DrainRow) -> str:
    if row.phase == Phase.REMOVED:
        return "host_free"
    return "left" if row.left_at else "draining"


def _left_because(row: DrainRow) -> str | None:
    if row.left_at is None:
        return None
    if row.left_empty:
        return "empty"
    return "deadline" if row.left_at >= row.deadline else "cut_short"


def _summary(row: DrainRow, pods: Sequence[PodRecord]) -> str | None:
    if row.left_at is None:
        return None
    return sentence(pods, noticed_at=row.draining_at, deadline=row.deadline, left_at=row.left_at)


def _named(budgets: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({budget for budget in budgets if budget}))


def _seconds(start: datetime, end: datetime) -> int:
    return max(0, int((end - start).total_seconds()))
