"""What hints need to know: which nodes wait for something that a watch may see."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from ebbtide.core.nodes import Phase
from ebbtide.store.db import Tx

AWAITED = (Phase.BOOTING, Phase.BOOTSTRAPPING, Phase.DRAINING, Phase.REMOVING)


async def awaited_among(tx: Tx, cluster_id: str, uids: Sequence[str]) -> list[str]:
    """Those of the nodes that join, drain or leave this cluster."""
    rows = await tx.conn.execute(
        sa.text(
            "SELECT uid FROM nodes WHERE cluster_id = :cluster AND uid = ANY(:uids) AND phase = ANY(:phases)"
        ),
        {"cluster": cluster_id, "uids": list(uids), "phases": [str(phase) for phase in AWAITED]},
    )
    return [row.uid for row in rows]
