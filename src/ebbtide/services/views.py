"""From rows to what services answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta

from ebbtide.core.nodes import ALLOCATED, ComputeClass, DrainKind, EndReason, Phase
from ebbtide.services import imported
from ebbtide.services.details import (
    ClusterDetails,
    EventDetails,
    FillState,
    NodeDetails,
    PhaseChange,
    VolumeDetails,
)
from ebbtide.services.remediations import remediation_details
from ebbtide.services.volumes import volume_details
from ebbtide.store import clusters, events, reading, remediations, volumes
from ebbtide.store.clusters import ClusterRow, PhaseRow
from ebbtide.store.db import Tx
from ebbtide.store.events import EventRow
from ebbtide.store.reading import NodeReading
from ebbtide.store.remediations import RemediationRow

_GONE = frozenset({Phase.REMOVING, Phase.REMOVED})


def node_details(
    row: NodeReading, history: Iterable[PhaseRow] = (), remediation: RemediationRow | None = None
) -> NodeDetails:
    return NodeDetails(
        uid=row.uid,
        name=row.name,
        cluster_id=row.cluster_id,
        compute_class=ComputeClass(row.compute_class),
        phase=Phase(row.phase),
        gpus=row.gpus,
        host_name=row.host_name,
        instance_id=row.instance_id,
        address=row.address,
        memory_gib=row.memory_gib,
        cpu_cores=row.cpu_cores,
        created_at=row.created_at,
        running_at=row.running_at,
        draining_at=row.draining_at,
        deadline=row.deadline,
        removed_at=row.left_at or row.removed_at,  # for its reader a node is gone when it leaves the cluster
        drain_kind=DrainKind(row.drain_kind) if row.drain_kind else None,
        end_reason=EndReason(row.end_reason) if row.end_reason else None,
        why=row.why,
        outcome=row.outcome,
        history=tuple(PhaseChange(one.phase, one.at) for one in history),
        remediation=remediation_details(remediation) if remediation else None,
    )


def event_details(row: EventRow) -> EventDetails:
    return EventDetails(row.number, row.node_uid, row.node_name, row.reason, row.message, row.at)


async def cluster_details(
    tx: Tx, rows: Sequence[ClusterRow], *, window_s: int, with_kubeconfig: bool
) -> tuple[ClusterDetails, ...]:
    """Clusters with their nodes, events and phases, read in a handful of queries however many they are."""
    if not rows:
        return ()
    ids = [row.id for row in rows]
    since = tx.now - timedelta(seconds=window_s)
    node_rows = await reading.of_clusters(tx, ids, since)
    histories = _grouped(await clusters.node_phases(tx, [row.uid for row in node_rows]))
    phases: dict[str, list[PhaseRow]] = defaultdict(list)
    for phase in await clusters.phases(tx, ids):
        phases[phase.cluster_id].append(phase)
    seen: dict[str, list[EventDetails]] = defaultdict(list)
    for event in await events.since(tx, ids, since):
        seen[event.cluster_id].append(event_details(event))
    remedies = await remediations.latest(tx, ids)
    by_cluster: dict[str, list[NodeDetails]] = defaultdict(list)
    for row in node_rows:
        by_cluster[row.cluster_id or ""].append(node_details(row, histories[row.uid], remedies.get(row.uid)))
    attached: dict[str, list[VolumeDetails]] = defaultdict(list)
    for volume in await volumes.of_clusters(tx, ids):
        attached[volume.cluster_id or ""].append(volume_details(volume))
    return tuple(
        _details(
            row,
            by_cluster[row.id],
            seen[row.id],
            phases[row.id],
            attached[row.id],
            kubeconfig=tx.sealer.open_optional(row.kubeconfig) if with_kubeconfig else None,
        )
        for row in rows
    )


def _grouped(history: Iterable[PhaseRow]) -> dict[str, list[PhaseRow]]:
    grouped: dict[str, list[PhaseRow]] = defaultdict(list)
    for one in history:
        grouped[one.node_uid or ""].append(one)
    return grouped


def _details(
    row: ClusterRow,
    nodes: Sequence[NodeDetails],
    seen: Sequence[EventDetails],
    phases: Sequence[PhaseRow],
    attached: Sequence[VolumeDetails],
    *,
    kubeconfig: str | None,
) -> ClusterDetails:
    preemptible = [node for node in nodes if node.compute_class is ComputeClass.PREEMPTIBLE]
    return ClusterDetails(
        id=row.id,
        name=row.name,
        project_id=row.project_id,
        region=row.region,
        pool=row.pool,
        gpu_type=row.gpu_type,
        billing_type=row.billing_type,
        cluster_type=row.cluster_type,
        cuda_version=row.cuda_version,
        nvidia_driver_version=row.nvidia_driver_version,
        nvidia_version_id=row.nvidia_version_id,
        phase=row.phase,
        num_gpus=imported.standard_gpus(row) if row.imported else row.standard_hosts * row.gpus_per_host,
        desired_preemptible_gpus=row.target_hosts * row.gpus_per_host,
        allocated_preemptible_gpus=sum(node.gpus for node in preemptible if node.phase in ALLOCATED),
        echo=row.echo,
        kubeconfig=kubeconfig,
        control_plane_ready=row.control_plane_ready,
        created_at=row.created_at,
        first_ready_at=row.first_ready_at,
        nodes=imported.standard_nodes(row) + tuple(node for node in nodes if node.phase not in _GONE),
        deleted_nodes=tuple(node for node in nodes if node.phase in _GONE),
        events=tuple(seen),
        phases=tuple(PhaseChange(phase.phase, phase.at) for phase in phases),
        fill=_fill(row),
        volumes=tuple(attached),
        imported=imported.import_details(row),
    )


def _fill(row: ClusterRow) -> FillState | None:
    if row.fill_reason is None or row.fill_since is None:
        return None
    return FillState(row.fill_reason, row.fill_since, row.fill_last_try, row.fill_next_try)
