"""How a visit names a cluster to its driver."""

from __future__ import annotations

from ebbtide.drivers.base import ClusterRef
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database
from ebbtide.store.nodes import NodeRow


def cluster_ref(db: Database, node: NodeRow) -> ClusterRef:
    """The node's cluster, its kubeconfig opened for the time of the visit."""
    assert node.cluster_id is not None
    return ClusterRef(node.cluster_id, node.cluster_name or "", db.sealer.open_optional(node.kubeconfig))


def ref_of(db: Database, cluster: ClusterRow) -> ClusterRef:
    """The same for a cluster that was read as such."""
    sealed = cluster.driver_kubeconfig or cluster.kubeconfig
    return ClusterRef(cluster.id, cluster.name, db.sealer.open_optional(sealed))
