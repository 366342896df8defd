"""Every column that holds a sealed secret."""

from __future__ import annotations

import sqlalchemy as sa

from ebbtide.store.db import Tx

_COLUMNS = (
    ("clusters", "id", "kubeconfig"),
    ("clusters", "id", "driver_kubeconfig"),
    ("instances", "node_uid", "join_data"),
    ("webhooks", "id", "secret"),
)


async def reseal(tx: Tx) -> int:
    """Seal every stored secret with the newest key; answer how many there are."""
    count = 0
    for table, key, column in _COLUMNS:
        rows = await tx.conn.execute(
            sa.text(
                f"SELECT {key} AS id, {column} AS sealed FROM {table} WHERE {column} IS NOT NULL "
                f"ORDER BY {key} FOR UPDATE"
            )
        )
        for row in rows.all():
            await tx.conn.execute(
                sa.text(f"UPDATE {table} SET {column} = :sealed WHERE {key} = :id"),
                {"id": row.id, "sealed": tx.sealer.reseal(row.sealed)},
            )
            count += 1
    return count
