"""Time that a tenant was billed for and had nothing of, by our doing: given back, once."""

from __future__ import annotations

from datetime import datetime

from ebbtide.core.metering import epoch_s
from ebbtide.core.pricing import charge_numerator, rate_at, round_line
from ebbtide.store import fleet, ledger
from ebbtide.store.db import Tx
from ebbtide.store.nodes import NodeRow


async def credit(tx: Tx, node: NodeRow, *, ref: str, seconds: int, priced_at: datetime, note: str) -> None:
    """Credit so many seconds of a node at the price of an instant; repeated under the same `ref` it adds
    nothing.

    Without a price the time is kept and stays unpriced.
    """
    assert node.cluster_id
    assert node.project_id
    gpu_seconds = seconds * node.gpus
    rate = rate_at(await fleet.all_rates(tx), node.pool, node.compute_class, epoch_s(priced_at))
    amount = -round_line(charge_numerator(gpu_seconds, rate.microdollars_per_gpu_hour)) if rate else None
    await ledger.add(
        tx,
        ledger.LedgerRow(
            ref=ref,
            kind="credit",
            project_id=node.project_id,
            cluster_id=node.cluster_id,
            node_uid=node.uid,
            gpu_seconds=gpu_seconds,
            microdollars=amount,
            note=note,
            at=tx.now,
        ),
    )
