"""The meter. Seconds are sealed by observation, and intervals close with moves; what is left to do each
minute is to end the UTC days that are over. Its cost follows changes, not running nodes."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.store import intervals
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.single import SingleVisits

ROWS_A_VISIT = 5_000


class Metering(SingleVisits):
    loop = Loop.METERING

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.transaction() as tx:
            cut = await intervals.roll_days(tx, ROWS_A_VISIT)
            more = cut == ROWS_A_VISIT
            again = tx.now if more else tx.now + timedelta(seconds=self._settings.meter_every_s)
            return await finish(tx, visit, Outcome(f"{cut} intervals went on into a new day", again))
