"""What a request about remediations means: who may ask, what waits for whose approval, what is listed."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass

from ebbtide.core import remediations as rules
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.remediations import Mode, Review, State, Trigger
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.ids import Ids, is_uuid4
from ebbtide.services import replays
from ebbtide.services.audit import record
from ebbtide.services.details import Caller, RemediationDetails, Replay
from ebbtide.settings import Settings
from ebbtide.store import clusters, remediations, visits
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database, Tx
from ebbtide.store.remediations import RemediationRow, Wanted
from ebbtide.store.visits import Loop

ALL_INSTANCES = "-"
_FAILED_STEP = "the last step did not succeed; it is tried again"


@dataclass(frozen=True, slots=True)
class Asked:
    """A list's filters as they were sent. Empty collections: all."""

    modes: Collection[Mode] = ()
    states: Collection[State] = ()
    triggers: Collection[Trigger] = ()
    order_by: str = ""
    page_size: int = 100
    page_token: str = ""


@dataclass(frozen=True, slots=True)
class RemediationPage:
    """next_page_token: "" at the end."""

    items: tuple[RemediationDetails, ...]
    next_page_token: str


class RemediationService:
    def __init__(self, db: Database, ids: Ids, settings: Settings) -> None:
        self._db = db
        self._ids = ids
        self._settings = settings
        rules.read_modes(settings.remediation_approval)  # a mistake in it is told at the start

    async def create(
        self,
        caller: Caller,
        cluster_id: str,
        instance_id: str,
        mode: Mode,
        reason: str | None,
        replay: Replay,
    ) -> RemediationDetails:
        """Ask for a remediation of a node. Raises NotFound, and Conflict where it cannot be done now."""
        replay = replays.of_kind(f"remediation/{cluster_id}/{instance_id}", replay)

        async def work(tx: Tx) -> str:
            found = await replays.seen(tx, caller, replay)
            if found:
                return found
            cluster = await _cluster(tx, caller, cluster_id)
            made = await self._create(tx, caller, cluster, instance_id, mode, reason)
            await replays.remember(tx, caller, replay, made)
            return made

        made = await self._db.run(work)
        return await self.retrieve(caller, cluster_id, instance_id, made)

    async def _create(
        self,
        tx: Tx,
        caller: Caller,
        cluster: ClusterRow,
        instance_id: str,
        mode: Mode,
        reason: str | None,
    ) -> str:
        node = await remediations.target(tx, cluster.id, instance_id)
        if node is None:
            raise NotFound(f"the cluster has no instance {instance_id[:80]!r}", param="instance_id")
        if node.phase is not Phase.RUNNING:
            raise Conflict(
                f"{node.name} is {node.phase}; only a running node can be remediated", code="node_not_running"
            )
        if mode in (Mode.REBOOT_VM, Mode.HOST_POWER_CYCLE) and not self._settings.restarts_machines:
            raise BadInput(
                f"machines of this fleet are not restarted in place; ask for {Mode.VM_ONLY} or "
                f"{Mode.HOST_AWARE}, which replace the node",
                param="mode",
                code="no_restarts",
            )
        if mode is Mode.EVICT_WITHOUT_REPLACEMENT:
            rules.check_eviction(
                is_standard=node.compute_class is ComputeClass.STANDARD, standard_hosts=cluster.standard_hosts
            )
        approval = rules.read_modes(self._settings.remediation_approval)
        state = rules.first_state(mode, by_operator=caller.is_operator, approval_needed=approval)
        made = self._ids.uuid4()
        await remediations.insert(
            tx,
            id=made,
            cluster_id=cluster.id,
            node_uid=node.uid,
            instance_id=instance_id,
            instance_name=node.name,
            mode=mode,
            state=state,
            trigger=Trigger.MANUAL,
            reason=reason,
            requested_by=caller.key_id,
        )
        after = {"mode": mode.value, "state": state.value, "node": node.name}
        await record(tx, caller, "remediation.create", made, after=after, of=cluster.project_id)
        return made

    async def list(self, caller: Caller, cluster_id: str, instance_id: str, asked: Asked) -> RemediationPage:
        """A page of an instance's remediations, or with "-" of the whole cluster's.

        Raises NotFound, BadInput.
        """
        order, descending = _order(asked.order_by)
        wanted = Wanted(
            cluster_id,
            None if instance_id == ALL_INSTANCES else instance_id,
            asked.modes,
            asked.states,
            asked.triggers,
            order,
            descending,
            _read_token(asked.page_token, order, descending) if asked.page_token else None,
        )
        async with self._db.read() as tx:
            await _cluster(tx, caller, cluster_id)
            if wanted.instance_id and await remediations.target(tx, cluster_id, wanted.instance_id) is None:
                raise NotFound(f"the cluster has no instance {instance_id[:80]!r}", param="instance_id")
            rows = await remediations.page(tx, wanted, asked.page_size + 1)
        shown = rows[: asked.page_size]
        more = len(rows) > asked.page_size
        token = _token(order, descending, shown[-1]) if more else ""
        operator = caller.is_operator
        return RemediationPage(tuple(remediation_details(row, operator=operator) for row, _ in shown), token)

    async def retrieve(
        self, caller: Caller, cluster_id: str, instance_id: str, remediation_id: str
    ) -> RemediationDetails:
        """One remediation. Raises NotFound."""
        async with self._db.read() as tx:
            await _cluster(tx, caller, cluster_id)
            row = await _one(tx, cluster_id, instance_id, remediation_id)
            return remediation_details(row, operator=caller.is_operator)

    async def review(
        self,
        caller: Caller,
        cluster_id: str,
        instance_id: str,
        remediation_id: str,
        review: Review,
        *,
        comment: str | None = None,
        mode: Mode | None = None,
    ) -> RemediationDetails:
        """Approve, reject or cancel. Raises NotFound, Forbidden, BadInput, Conflict (a wrong state)."""
        if mode is not None:
            rules.check_override(mode)

        async def work(tx: Tx) -> None:
            cluster = await _cluster(tx, caller, cluster_id)
            row = await _one(tx, cluster_id, instance_id, remediation_id, for_update=True)
            after = rules.after_review(review, row.state)
            fields: dict[str, object] = {"ended_at": tx.now} if after is State.CANCELLED else {}
            if review is not Review.CANCEL:
                _check_reviewer(caller, row)
                fields |= {"reviewed_by": caller.key_id, "reviewed_at": tx.now, "review_comment": comment}
            if mode is not None:
                fields["mode"] = mode
            await remediations.move(tx, row.id, row.state, after, **fields)
            before = {"state": row.state.value, "mode": row.mode.value}
            now = {"state": after.value, "mode": (mode or row.mode).value}
            action, project_id = f"remediation.{review}", cluster.project_id
            await record(tx, caller, action, row.id, before=before, after=now, of=project_id)
            await visits.hint(tx, Loop.REMEDIATION, [row.id], clusters=[row.cluster_id])

        await self._db.run(work)
        return await self.retrieve(caller, cluster_id, instance_id, remediation_id)


def remediation_details(row: RemediationRow, *, operator: bool = False) -> RemediationDetails:
    """operator: the reader is one, and sees a failed step in the words of the operator's own programs."""
    return RemediationDetails(
        id=row.id,
        cluster_id=row.cluster_id,
        instance_id=row.instance_id,
        instance_name=row.instance_name,
        mode=row.mode,
        state=row.state,
        trigger=row.trigger,
        reason=row.reason,
        requested_by=row.requested_by,
        reviewed_by=row.reviewed_by,
        review_comment=row.review_comment,
        error_message=row.error_message,
        linked_alerts=tuple(row.linked_alerts),
        created_at=row.created_at,
        started_at=row.started_at,
        reviewed_at=row.reviewed_at,
        updated_at=row.updated_at,
        ended_at=row.ended_at,
        outcome=row.outcome if operator or not row.failures else _FAILED_STEP,
    )


async def _cluster(tx: Tx, caller: Caller, cluster_id: str) -> ClusterRow:
    row = await clusters.load(tx, cluster_id) if is_uuid4(cluster_id) else None
    if (
        row is None
        or row.phase is ClusterPhase.DELETED
        or not (caller.is_operator or row.project_id == caller.project_id)
    ):
        raise NotFound(f"there is no cluster {cluster_id[:80]!r}", code="cluster_not_found")
    return row


async def _one(
    tx: Tx, cluster_id: str, instance_id: str, remediation_id: str, *, for_update: bool = False
) -> RemediationRow:
    found = is_uuid4(remediation_id)
    row = await remediations.load(tx, remediation_id, for_update=for_update) if found else None
    if row is None or row.cluster_id != cluster_id or instance_id not in (ALL_INSTANCES, row.instance_id):
        raise NotFound(
            f"the instance has no remediation {remediation_id[:80]!r}", code="remediation_not_found"
        )
    return row


def _check_reviewer(caller: Caller, row: RemediationRow) -> None:
    """What the operator's policy holds back, operators review.

    What a machine proposed, its tenant may too.
    """
    if row.trigger is Trigger.MANUAL and not caller.is_operator:
        raise Forbidden("this remediation waits for an operator; you can cancel it", code="operator_only")


def _order(text: str) -> tuple[str, bool]:
    """The column and whether it falls, from `create_time desc`. Newest first when nothing is said."""
    words = text.split()
    if not words:
        return "create_time", True
    direction = words[1].lower() if len(words) == 2 else "asc"
    if len(words) > 2 or words[0] not in remediations.ORDERS or direction not in ("asc", "desc"):
        known = ", ".join(remediations.ORDERS)
        raise BadInput(f"order_by is one of {known}, and then `asc` or `desc`", param="order_by")
    return words[0], direction == "desc"


def _token(order: str, descending: bool, last: tuple[RemediationRow, str]) -> str:
    told = json.dumps([order, descending, last[1], last[0].no])
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def _read_token(token: str, order: str, descending: bool) -> tuple[str, int]:
    """Where the last page ended. Raises BadInput for anything that is no token of the same list."""
    try:
        padded = token + "=" * (-len(token) % 4)
        told = json.loads(base64.b64decode(padded.encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, list) and len(told) == 4 and told[:2] == [order, descending]:
        value, number = told[2:]
        if isinstance(value, str) and "\0" not in value and type(number) is int and 0 <= number < 2**63:
            return value, number
    raise BadInput("page_token is not one that this list gave; begin without it", param="page_token")
