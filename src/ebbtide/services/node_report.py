"""One node, whole: what it is, why it is where it is, what happened to it, and what its machine said."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.services.access import require_operator
from ebbtide.services.details import Caller, PhaseChange
from ebbtide.services.why import WhyNode, WhyService
from ebbtide.store import clusters, maintenance, node_report
from ebbtide.store.db import Database
from ebbtide.store.maintenance import Stay
from ebbtide.store.node_report import Machine, NodeEvent, NodeWipe


@dataclass(frozen=True, slots=True)
class NodeReport:
    """stay: from when to when it was on its host. why: the story in sentences. timeline: its phases in order.

    machine: what the operator's own programs said of it; None with other providers
    """

    stay: Stay
    why: WhyNode
    timeline: tuple[PhaseChange, ...]
    events: tuple[NodeEvent, ...]
    machine: Machine | None
    wipes: tuple[NodeWipe, ...]


class NodeService:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._why = WhyService(db)

    async def show(self, caller: Caller, ref: str) -> NodeReport:
        """A node by its name or uid, removed ones included (operators). Raises NotFound."""
        require_operator(caller)
        why = await self._why.node(caller, ref)
        async with self._db.read() as tx:
            (stay,) = await maintenance.stays_of(tx, [why.uid])
            phases = await clusters.node_phases(tx, [why.uid])
            return NodeReport(
                stay,
                why,
                tuple(PhaseChange(one.phase, one.at) for one in phases),
                tuple(await node_report.events_of(tx, why.uid)),
                await node_report.machine_of(tx, why.uid),
                tuple(await node_report.wipes_of(tx, why.uid)),
            )
