"""The common frame of loops that visit one row at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

import structlog

from ebbtide.drivers.base import DriverError
from ebbtide.errors import LeaseLost, Unavailable
from ebbtide.providers.base import ProviderError
from ebbtide.settings import Settings
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Answer, Later, Outcome, finish

log = structlog.get_logger()


class SingleVisits(ABC):
    """Runs a batch's visits side by side and turns what the outside refuses into "come back later"."""

    loop: Loop
    batch = 64
    chunk = 1  # each on its own: a visit that hangs holds up no other

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db = db
        self._settings = settings

    @abstractmethod
    async def visit(self, visit: Visit) -> Answer:
        """One move for one row; it ends the visit itself, in the transaction of its writes, or says how."""

    async def visit_many(self, claimed: Sequence[Visit]) -> list[Outcome]:
        answers = await asyncio.gather(*(self._guarded(visit) for visit in claimed))
        later = [(visit, one) for visit, one in zip(claimed, answers, strict=True) if isinstance(one, Later)]
        written = iter(await self._write(later) if later else [])
        return [next(written) if isinstance(one, Later) else one for one in answers]

    async def _write(self, later: Sequence[tuple[Visit, Later]]) -> list[Outcome]:
        """All that visits left to be written, in one transaction; each in its own if one lost its lease."""

        async def work(tx: Tx) -> list[Outcome]:
            return [await one.write(tx) for _, one in later]

        try:
            return await self._db.run(work)
        except LeaseLost as lost:
            if len(later) == 1:
                return [self._given_up(later[0][0], lost)]
            return [outcome for one in later for outcome in await self._write([one])]
        except Unavailable:
            raise
        except Exception:
            if len(later) > 1:  # one is bad; the others are good
                return [outcome for one in later for outcome in await self._write([one])]
            visit, answer = later[0]
            if answer.spare is None:
                raise
            log.exception("what a visit found cannot be written", loop=visit.loop, key=visit.key)
            return await self._write([(visit, Later(answer.spare))])

    def _given_up(self, visit: Visit, lost: LeaseLost) -> Outcome:
        log.info("visit given up", loop=visit.loop, key=visit.key, why=lost.message)
        return Outcome(lost.message)

    async def _guarded(self, visit: Visit) -> Answer:
        try:
            return await self.visit(visit)
        except LeaseLost as lost:
            return self._given_up(visit, lost)
        except (ProviderError, DriverError) as refusal:
            return await self._retry(visit, refusal.message)

    async def _retry(self, visit: Visit, why: str) -> Outcome:
        """Come back after a failure of the outside, with growing waits."""
        async with self._db.transaction() as tx:
            again = tx.now + timedelta(seconds=self._settings.retry_in_s(visit.failures))
            return await finish(tx, visit, Outcome(f"{why}; trying again", again, failed=True))
