"""A cluster as its caller may see it, tombstones included: what is told of it stays after it has gone."""

from __future__ import annotations

from ebbtide.errors import NotFound
from ebbtide.ids import is_uuid4
from ebbtide.services.details import Caller
from ebbtide.store import clusters
from ebbtide.store.clusters import ClusterRow
from ebbtide.store.db import Tx


async def cluster_of(tx: Tx, caller: Caller, cluster_id: str, *, for_update: bool = False) -> ClusterRow:
    """The cluster, also one that was deleted. Raises NotFound, for another tenant's as for none."""
    row = await clusters.load(tx, cluster_id, for_update=for_update) if is_uuid4(cluster_id) else None
    if row is None or not (caller.is_operator or row.project_id == caller.project_id):
        raise NotFound(f"there is no cluster {cluster_id[:80]!r}", code="cluster_not_found")
    return row
