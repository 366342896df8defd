"""How a visit names a cluster to its driver."""

from __future__ import annotations

from ebbtide.drivers.base import ClusterRef, DriverError
from ebbtide.errors import StartupError
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Database
from ebbtide.store.nodes import NodeRow


def cluster_ref(db: Database, node: NodeRow) -> ClusterRef:
    """The node's cluster, its kubeconfig opened for the time of the visit. Raises DriverError when no key
    opens it: such a cluster cannot be asked, and nothing may be concluded from that.
    """
    assert node.cluster_id is not None
    return _opened(db, node.cluster_id, node.cluster_name or "", node.kubeconfig)


def ref_of(db: Database, cluster: ClusterRow) -> ClusterRef:
    """The same for a cluster that was read as such."""
    return _opened(db, cluster.id, cluster.name, cluster.driver_kubeconfig or cluster.kubeconfig)


def _opened(db: Database, cluster_id: str, name: str, sealed: str | None) -> ClusterRef:
    try:
        return ClusterRef(cluster_id, name, db.sealer.open_optional(sealed))
    except StartupError as error:
        raise DriverError(f"cluster {name or cluster_id}: {error.message}") from error
