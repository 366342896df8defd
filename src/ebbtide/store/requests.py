"""Creates that were seen, so that one sent again is the same one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.store.db import Tx
from ebbtide.store.tables import create_requests


@dataclass(frozen=True, slots=True)
class Seen:
    cluster_id: str
    body_hash: str
    at: datetime


async def lock(tx: Tx, key_id: str, token_or_hash: str) -> None:
    """Let creates with the same key and token (or body) wait for one another until the transaction ends."""
    await tx.conn.execute(
        sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:text, 0))"),
        {"text": f"create/{key_id}/{token_or_hash}"},
    )


async def by_token(tx: Tx, key_id: str, token: str) -> Seen | None:
    return await _first(tx, create_requests.c.key_id == key_id, create_requests.c.token == token)


async def by_body(tx: Tx, key_id: str, body_hash: str, *, within_s: int) -> Seen | None:
    """The latest request with the same body in the last `within_s` seconds."""
    since = tx.now - timedelta(seconds=within_s)
    return await _first(
        tx,
        create_requests.c.key_id == key_id,
        create_requests.c.body_hash == body_hash,
        create_requests.c.at >= since,
    )


async def _first(tx: Tx, *where: sa.ColumnElement[bool]) -> Seen | None:
    query = sa.select(create_requests.c.cluster_id, create_requests.c.body_hash, create_requests.c.at).where(
        *where
    )
    row = (await tx.conn.execute(query.order_by(create_requests.c.no.desc()).limit(1))).first()
    return Seen(**row._mapping) if row else None


async def remember(tx: Tx, *, key_id: str, token: str | None, body_hash: str, cluster_id: str) -> None:
    await tx.conn.execute(
        sa.insert(create_requests).values(
            key_id=key_id, token=token, body_hash=body_hash, cluster_id=cluster_id, at=tx.now
        )
    )


async def forget_older(tx: Tx, limit: datetime) -> int:
    result = await tx.conn.execute(sa.delete(create_requests).where(create_requests.c.at < limit))
    return result.rowcount
