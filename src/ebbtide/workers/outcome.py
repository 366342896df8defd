"""What a visit answers: one sentence, and when to come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ebbtide.store import visits
from ebbtide.store.db import Tx
from ebbtide.store.visits import Finish, Loop, Visit


@dataclass(frozen=True, slots=True)
class Outcome:
    """sentence: read by logs, people and tests alike. again_at: None means settled until a hint."""

    sentence: str
    again_at: datetime | None = None
    failed: bool = False
    urgent: bool | None = None

    def finish(self, visit: Visit) -> Finish:
        return Finish(visit, self.sentence, self.again_at, self.failed, self.urgent)


@dataclass(frozen=True, slots=True)
class Later:
    """What a visit writes last, its finish included: the loop does it, together with other visits' writes.

    spare: what is written where that fails by a fault of ours, in a transaction of its own
    """

    write: Callable[[Tx], Awaitable[Outcome]]
    spare: Callable[[Tx], Awaitable[Outcome]] | None = None


Answer = Outcome | Later


class LoopWorker(Protocol):
    """One loop. `visit` may be called twice for the same row, or killed at any line: it then does the same
    again.

    It makes one move: reads the row, talks to the outside without a transaction open, writes, and finishes
    the visit in the
    transaction of its writes.
    """

    loop: Loop
    batch: int  # visits under way at once
    chunk: int  # visits handed over together

    async def visit_many(self, claimed: Sequence[Visit]) -> list[Outcome]:
        """Carry out claimed visits; each is finished (or its lease lost) when this returns."""


async def finish(tx: Tx, visit: Visit, outcome: Outcome) -> Outcome:
    """End one visit inside the transaction of its writes."""
    visits.finish_at_commit(tx, outcome.finish(visit))
    return outcome


def only(visit: Visit, outcome: Outcome) -> Later:
    """Nothing is to be written but the visit's end."""
    return Later(lambda tx: finish(tx, visit, outcome))
