"""What is different about an imported cluster: one that was there before us.

Its own nodes count as standard and are never touched; we only bring preemptible ones and take them away.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.errors import BadInput
from ebbtide.services.details import ImportDetails, NodeDetails, PhaseChange
from ebbtide.store.clusters import ClusterRow


def standard_gpus(row: ClusterRow) -> int:
    """GPUs on the nodes that the cluster had, as they were last seen."""
    return sum(int(each["gpus"]) for each in row.standard_seen or ())


def check_standard(row: ClusterRow, num_gpus: int | None) -> None:
    """Raise BadInput where a change would order standard GPUs: there is nobody here to bring them."""
    if num_gpus is not None and num_gpus != standard_gpus(row):
        raise BadInput(
            f"num_gpus of an imported cluster is what stands in it ({standard_gpus(row)} GPUs are on nodes "
            f"with {row.standard_selector}) and cannot be ordered here; only num_preemptible_gpus can change",
            param="num_gpus",
        )


def standard_nodes(row: ClusterRow) -> tuple[NodeDetails, ...]:
    """The nodes that the cluster had, as they were last seen. They have no instance: nothing of them is ours
    to restart, replace or take away.
    """
    since = row.first_ready_at or row.created_at
    return tuple(_node(row, each, since) for each in row.standard_seen or ())


def import_details(row: ClusterRow) -> ImportDetails | None:
    """What an imported cluster shows besides; None for one that we made."""
    if not row.imported:
        return None
    return ImportDetails(row.standard_selector or "", row.import_problem)


def _node(row: ClusterRow, seen: Mapping[str, Any], since: datetime) -> NodeDetails:
    phase = Phase.RUNNING if seen["ready"] else Phase.BOOTSTRAPPING
    return NodeDetails(
        uid=f"standard/{row.id}/{seen['name']}",
        name=str(seen["name"]),
        cluster_id=row.id,
        compute_class=ComputeClass.STANDARD,
        phase=phase,
        gpus=int(seen["gpus"]),
        host_name=None,
        instance_id=None,
        address=seen["address"] or None,
        memory_gib=int(seen["memory_gib"]),
        cpu_cores=int(seen["cpu_cores"]),
        created_at=since,
        running_at=since,
        draining_at=None,
        deadline=None,
        removed_at=None,
        drain_kind=None,
        end_reason=None,
        why=None,
        outcome=None,
        history=(PhaseChange(phase.value, since),),
    )
