"""Every visit made twice, as when a lease ends while its worker is still at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import LoopWorker, Outcome
from tests.scenarios.watch import Watch


class How(StrEnum):
    """Who does the visit a second time, and when."""

    REPEATED = "a worker repeats what it has finished"
    OVERTAKEN = "a worker does it all and finds at the end that another one has the visit"
    SIDE_BY_SIDE = "two workers do it at the same time, the older of them without a lease"


class Twice:
    """A loop's worker whose visits are made twice. Only the lease that is the latest may write."""

    def __init__(self, worker: LoopWorker, watch: Watch, how: How) -> None:
        self.loop: Loop = worker.loop
        self.batch, self.chunk = worker.batch, worker.chunk
        self._worker = worker
        self._watch = watch
        self._how = how

    async def visit_many(self, claimed: Sequence[Visit]) -> list[Outcome]:
        if self._how is How.REPEATED:
            outcomes = await self._worker.visit_many(claimed)
            await self._worker.visit_many(claimed)
            return outcomes
        taken_over = [self._take_over(visit) for visit in claimed]
        if self._how is How.OVERTAKEN:
            await self._worker.visit_many(claimed)
            return await self._worker.visit_many(taken_over)
        _, outcomes = await asyncio.gather(
            self._worker.visit_many(claimed), self._worker.visit_many(taken_over)
        )
        return outcomes

    def _take_over(self, visit: Visit) -> Visit:
        """The visit as another worker claims it."""
        (row,) = self._watch.ask(
            "UPDATE visits SET fence = fence + 1 WHERE loop = %s AND key = %s RETURNING fence, hints",
            visit.loop.value,
            visit.key,
        )
        return replace(visit, fence=row["fence"], hints=row["hints"])


def twice(watch: Watch, how: How) -> Callable[[LoopWorker], LoopWorker]:
    return lambda worker: Twice(worker, watch, how)
