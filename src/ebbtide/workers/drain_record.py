"""What a drain writes down for its receipt and its timeline, each in a transaction of the drain's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.core import events
from ebbtide.core.drain import DrainPolicy, PodOrder, PodSeen, signal_time
from ebbtide.core.receipts import PodRecord, sentence, used_s
from ebbtide.drivers.base import OrderResult
from ebbtide.store import events as stored_events
from ebbtide.store import nodes, receipts
from ebbtide.store.db import Database, Tx
from ebbtide.store.events import NewEvent
from ebbtide.store.nodes import NodeRow
from ebbtide.workers.credits import credit


@dataclass(frozen=True, slots=True)
class Unheard:
    """An order that was sent, as far as is known, and whose answer nobody heard.

    again: it may be sent again, and is then answered
    """

    order: PodOrder
    told_at: datetime
    again: bool


def due_from(node: NodeRow, policy: DrainPolicy) -> datetime:
    """From when on SIGTERM was due: the notice, or later where the cluster wants to be warned first."""
    assert node.draining_at is not None
    assert node.deadline is not None
    return signal_time(node.draining_at, node.signal_from, node.deadline, policy)


async def seen(
    tx: Tx, node: NodeRow, at: datetime, pods: Sequence[PodSeen], facts: Mapping[str, object]
) -> datetime:
    """Write what a fresh read showed, and say so where pods came that tolerate the cordon.

    Answers the transaction's time.
    """
    first = node.drain_looked_at is None
    looked: dict[str, object] = {"drain_looked_at": at} if first else {}
    if not first and any(pod.tolerates_cordon for pod in pods):
        await receipts.lock(tx, node.uid)
    await nodes.set_facts(tx, node.uid, **facts, **looked)
    new = await receipts.saw(tx, node.uid, at, pods, arrived=not first)
    came = [_shown(pod) for pod in pods if not first and pod.uid in new and pod.tolerates_cordon]
    if came:
        await _say(tx, node, events.pod_arrived(sorted(came), tx.now))
    return tx.now


async def unheard(db: Database, node: NodeRow, pods: Sequence[PodSeen]) -> list[Unheard]:
    """Orders of a worker that was killed before it wrote what the cluster answered.

    Signals that are sent again with the same grace change nothing (grace only ever becomes shorter).
    """
    if node.first_signal_at is not None or node.drain_looked_at is None:
        return []
    ending = {pod.uid for pod in pods if pod.ends_by is not None}
    if not ending:
        return []
    async with db.read() as tx:
        known = await receipts.pods_of(tx, node.uid)
    return [
        Unheard(
            PodOrder(pod.pod_uid, pod.name, pod.grace_given_s, namespace=pod.namespace),
            pod.told_at,
            again=pod.told_by == "signal",
        )
        for pod in known
        if pod.pod_uid in ending and pod.told_at and pod.grace_given_s
    ]


async def answers(
    db: Database,
    node: NodeRow,
    pods: Sequence[PodSeen],
    results: Sequence[OrderResult],
    *,
    first_signal_at: datetime | None,
) -> None:
    """Write when the first pod was told, who refused, and which budgets were overridden."""
    said = [(one.pod_uid, one.refused, one.overrode) for one in results if one.refused or one.overrode]
    first = first_signal_at if node.first_signal_at is None else None
    if not said and first is None:
        return
    names = {pod.uid: _shown(pod) for pod in pods}
    overridden: dict[str, list[str]] = {}
    for one in results:
        if one.overrode:
            overridden.setdefault(one.overrode, []).append(names.get(one.pod_uid, one.pod_uid))
    async with db.transaction() as tx:
        await receipts.lock(tx, node.uid)
        await nodes.set_facts(tx, node.uid, **({"first_signal_at": first} if first else {}))
        await receipts.answered(tx, node.uid, said)
        if overridden:
            await _say(tx, node, events.budget_overridden(overridden, tx.now))


async def left(tx: Tx, node: NodeRow, left_over: Sequence[PodSeen]) -> None:
    """The node leaves; these pods were still there at its end."""
    if not left_over:
        return
    await receipts.end(tx, node.uid, [pod.uid for pod in left_over])
    known = {pod.pod_uid: pod for pod in await receipts.pods_of(tx, node.uid)}
    overdue = [
        events.Overdue(_shown(pod), pod.containers, _used_s(known.get(pod.uid), tx.now)) for pod in left_over
    ]
    await _say(tx, node, events.grace_expired(overdue, tx.now))


async def left_unseen(tx: Tx, node: NodeRow, policy: DrainPolicy) -> None:
    """The node leaves, and its cluster does not answer. What was promised late and not kept is credited."""
    if node.ends_at != node.deadline and node.first_signal_at is None and node.workload_pods:
        await credit_late(tx, node, policy, told=False)


async def credit_late(tx: Tx, node: NodeRow, policy: DrainPolicy, *, told: bool) -> None:
    """Say that the notice comes late by our fault, and credit what the tenant was billed for between the
    SIGTERM that did not come and now. Repeated it does nothing.
    """
    assert node.deadline is not None
    assert node.ends_at is not None
    await receipts.lock(tx, node.uid)
    await _say(tx, node, events.late_notice(tx.now, node.ends_at, node.deadline, told=told))
    silent_s = max(0, int((min(tx.now, node.deadline) - due_from(node, policy)).total_seconds()))
    await credit(
        tx,
        node,
        ref=f"late-notice/{node.uid}",
        seconds=silent_s,
        priced_at=tx.now,
        note=f"notice came {silent_s} s late",
    )


async def closing(db: Database, node: NodeRow) -> str:
    """The drain in one sentence, for the node's last event."""
    assert node.draining_at is not None
    assert node.deadline is not None
    assert node.left_at is not None
    async with db.read() as tx:
        pods = await receipts.pods_of(tx, node.uid)
    return sentence(pods, noticed_at=node.draining_at, deadline=node.deadline, left_at=node.left_at)


async def _say(tx: Tx, node: NodeRow, event: events.Event) -> None:
    """Once per node and reason. The caller has locked the node."""
    assert node.cluster_id is not None
    await stored_events.append(tx, [NewEvent(node.cluster_id, node.uid, node.name, event)])


def _used_s(pod: PodRecord | None, now: datetime) -> int | None:
    return used_s(pod, now) if pod is not None else None


def _shown(pod: PodSeen) -> str:
    return f"{pod.namespace}/{pod.name}" if pod.namespace else pod.name
