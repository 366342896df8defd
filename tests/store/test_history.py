"""The history's queries: bounded, and by index."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.store import clusters, history
from ebbtide.store.db import Database
from tests.builders import POOL, Rows

_PREEMPTIBLE = "FROM nodes WHERE pool = 'p' AND compute_class = 'preemptible' AND running_at"
QUERIES = {
    "ix_nodes_preemptible_ran": f"SELECT running_at {_PREEMPTIBLE} >= now() ORDER BY running_at DESC LIMIT 1",
    "ix_nodes_preemptible_left": f"SELECT 1 {_PREEMPTIBLE} > now() AND (left_at >= now() OR left_at IS NULL)",
    "ix_nodes_drained": "SELECT no FROM nodes WHERE cluster_id = 'c' AND draining_at IS NOT NULL ORDER BY no",
    "ix_target_changes_cluster": "SELECT hosts FROM target_changes WHERE cluster_id = 'c' AND at < now()",
}


@pytest.mark.parametrize("index", QUERIES)
async def test_each_question_has_its_index(db: Database, index: str) -> None:
    async with db.transaction() as tx:
        await tx.conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join((await tx.conn.execute(sa.text(f"EXPLAIN {QUERIES[index]}"))).scalars())
    assert index in plan, plan


async def test_with_many_nodes_the_window_is_shorter(
    db: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_STAYS", 2)
    clock = db.clock
    began = clock.now()
    for number in range(4):
        clock.advance(60)  # type: ignore[attr-defined]  # a manual clock
        async with db.transaction() as tx:
            await rows.node(tx, number)
    async with db.read() as tx:
        found = await history.of_pool(tx, POOL, began)
        (cluster_id,) = found.stays
        alone = await history.of_pool(tx, POOL, began, cluster_id=cluster_id)
    assert found.since == began + timedelta(seconds=120)
    assert alone.since == began
    assert len(alone.stays[cluster_id]) == 4


async def test_every_change_of_a_target_is_remembered_in_order(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        (row,) = await clusters.live(tx)
        began = tx.now
        await clusters.set_fields(tx, row.id, target_hosts=3)
        await clusters.set_fields(tx, row.id, weight=2)
    db.clock.advance(10)  # type: ignore[attr-defined]  # a manual clock
    async with db.transaction() as tx:
        await clusters.set_fields(tx, row.id, target_hosts=1, standard_hosts=2)
    async with db.read() as tx:
        found = await history.of_pool(tx, POOL, began)
        later = await history.of_pool(tx, POOL, began + timedelta(seconds=5))
    assert [one.hosts for one in found.targets[row.id]][-2:] == [3, 1]
    assert [(one.hosts, one.at is None) for one in later.targets[row.id]] == [(3, True), (1, False)]
