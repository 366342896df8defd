"""Quotas.

How many GPUs a project may order. They count wishes, so a node that leaves gives nothing back and takes
nothing.
"""

from __future__ import annotations

from ebbtide.errors import Conflict
from ebbtide.store import access
from ebbtide.store.db import Tx


async def check(tx: Tx, project_id: str, *, standard_gpus: int, preemptible_gpus: int) -> None:
    """Raise Conflict if so many more GPUs of either class are beyond the project's quota. Lowering always
    passes.

    Locks the project until the transaction ends, so that two orders cannot share what is left.
    """
    if not standard_gpus and not preemptible_gpus:
        return
    used = await access.lock_usage(tx, project_id)
    for word, more, ordered, limit in (
        ("standard", standard_gpus, used.standard_gpus, used.standard_gpus_limit),
        ("preemptible", preemptible_gpus, used.preemptible_gpus, used.preemptible_gpus_limit),
    ):
        if limit is not None and more and ordered + more > limit:
            raise Conflict(
                f"the project's quota is {limit} {word} GPUs; {ordered} are ordered, {more} more asked for. "
                f"Order at most {max(0, limit - ordered)} more, or ask the operator to raise it.",
                code="quota_exceeded",
            )
