"""A pool's regular plan: promises first, then replacements, then what is left is lent."""

from __future__ import annotations

from ebbtide.services.capacity import Planner
from ebbtide.settings import Settings
from ebbtide.store import pools
from ebbtide.store.db import Database, Tx
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.single import SingleVisits


class Fulfillment(SingleVisits):
    loop = Loop.FULFILLMENT

    def __init__(self, db: Database, settings: Settings, planner: Planner) -> None:
        super().__init__(db, settings)
        self._planner = planner

    async def visit(self, visit: Visit) -> Outcome:
        async def work(tx: Tx) -> Outcome:
            pool = await pools.lock(tx, visit.key)
            assigned = await self._planner.assign(tx, pool)
            replaced = await self._planner.replace_standard(tx, pool)
            taken = await self._planner.replan(tx, pool)
            lent, again = await self._planner.refill(tx, pool)
            sentence = (
                f"{assigned} hosts to claims, {replaced} standard nodes replaced, {len(taken)} more "
                f"taken, {lent} hosts lent"
            )
            return await finish(tx, visit, Outcome(sentence, again))

        return await self._db.run(work)
