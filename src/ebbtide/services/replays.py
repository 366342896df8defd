"""Creates that were sent twice: told by their token, or by a client's own retry of the same body."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.errors import Conflict
from ebbtide.services.details import Caller, Replay
from ebbtide.store import requests
from ebbtide.store.db import Tx

RETRY_WITHIN_S = 120  # a client's retry of the same body in this span is the same create (contract 1.6)


async def seen(tx: Tx, caller: Caller, replay: Replay) -> str | None:
    """Lock the create against its twins; answer the id that the first of them made, None for the first.

    Raises Conflict for a token that was used with another body.
    """
    await requests.lock(tx, caller.key_id, replay.token or replay.body_hash)
    if replay.token is not None:
        found = await requests.by_token(tx, caller.key_id, replay.token)
        if found and found.body_hash != replay.body_hash:
            raise Conflict(
                f"this idempotency key was used for another request: its body had the hash "
                f"{found.body_hash}, this one has {replay.body_hash}. Use a new key for a new request.",
                code="idempotency_key_reused",
            )
    elif replay.is_retry:
        found = await requests.by_body(tx, caller.key_id, replay.body_hash, within_s=RETRY_WITHIN_S)
    else:
        found = None
    return found.cluster_id if found else None


async def remember(tx: Tx, caller: Caller, replay: Replay, made: str) -> None:
    """Write down what the create made."""
    await requests.remember(
        tx, key_id=caller.key_id, token=replay.token, body_hash=replay.body_hash, cluster_id=made
    )


def of_kind(kind: str, replay: Replay) -> Replay:
    """The same body means another thing at another path."""
    return replace(replay, body_hash=f"{kind}/{replay.body_hash}")
