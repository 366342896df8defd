"""Clearing away what no one needs any more. What invoices rest on stays."""

from __future__ import annotations

from datetime import timedelta

from ebbtide.store import audit, claims, instances, requests, runs, visits, webhooks
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.single import SingleVisits

REQUESTS_KEPT = timedelta(days=1)
RUNS_KEPT = timedelta(days=30)
DELIVERIES_KEPT = timedelta(days=30)


class Retention(SingleVisits):
    loop = Loop.RETENTION

    async def visit(self, visit: Visit) -> Outcome:
        async with self._db.transaction() as tx:
            forgotten = await requests.forget_older(tx, tx.now - REQUESTS_KEPT)
            buried = await runs.forget_older(tx, tx.now - RUNS_KEPT)
            window = timedelta(seconds=self._settings.event_window_s)
            settled = await visits.drop_of_removed_nodes(tx, tx.now - window)
            delivered = await webhooks.forget_older(tx, tx.now - DELIVERIES_KEPT)
            machines = await instances.forget_older(tx, tx.now - window)
            ended = await claims.end_empty(tx)
            days = self._settings.audit_kept_days
            audited = await audit.forget_older(tx, tx.now - timedelta(days=days)) if days else 0
            again = tx.now + timedelta(seconds=self._settings.retention_every_s)
            sentence = (
                f"{forgotten} create requests, {buried} worker runs, {settled} visits of removed nodes, "
                f"{machines} machines of programs {delivered} webhook deliveries and {audited} audit "
                f"entries forgotten, {ended} empty claims ended"
            )
            return await finish(tx, visit, Outcome(sentence, again))
