"""What a node's coming and going means for the data on its host."""

from __future__ import annotations

from ebbtide.core.nodes import ComputeClass
from ebbtide.core.wipes import SEVERAL
from ebbtide.providers.base import Deletion, Instance
from ebbtide.store import wipes
from ebbtide.store.db import Tx
from ebbtide.store.nodes import NodeRow


async def machine_is_up(tx: Tx, node: NodeRow, instance: Instance) -> None:
    """Its host was wiped before it started, if its provider says so."""
    if instance.wiped_by:
        await wipes.wiped(tx, node.host_id or "", node.uid, "before", instance.wiped_by)


async def machine_is_gone(tx: Tx, node: NodeRow, deletion: Deletion) -> None:
    """Its host carries nobody's data, if something wiped it; else that of whoever had it."""
    host_id = node.host_id or ""
    if deletion.wiped_by:
        await wipes.wiped(tx, host_id, node.uid, "after", deletion.wiped_by)
    elif node.compute_class is ComputeClass.EXTERNAL:
        await wipes.left_unwiped(tx, host_id, SEVERAL)  # it was somebody's whom no provider of ours knows
    elif not deletion.untouched and node.compute_class is not ComputeClass.MAINTENANCE:
        await wipes.left_unwiped(tx, host_id, node.project_id or SEVERAL)
