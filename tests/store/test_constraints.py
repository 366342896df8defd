"""What the code must never do, the database refuses by itself."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.store.db import Database
from tests.builders import Rows

_TERMS = "node_no, node_uid, cluster_id, project_id, pool, compute_class, gpus"
_OVERLAP = "ex_intervals_no_overlap"


_REFUSED = [
    ("UPDATE nodes SET host_id = 'host-0' WHERE uid = 'node-1'", "uq_nodes_one_occupant"),
    ("UPDATE hosts SET node_uid = 'node-0' WHERE id = 'host-1'", "uq_hosts_node_uid"),
    ("UPDATE nodes SET host_id = NULL WHERE uid = 'node-0'", "has_a_host"),
    ("UPDATE nodes SET phase = 'DRAINING' WHERE uid = 'node-0'", "has_a_deadline"),
    (
        (
            "UPDATE nodes SET phase = 'DRAINING', deadline = now() - interval '9 s', draining_at = now(), "
            "ends_at = now() WHERE uid = 'node-0'"
        ),
        "deadline_after_notice",
    ),
    (
        (
            "UPDATE nodes SET draining_at = now(), deadline = now() + interval '9 s', ends_at = now() "
            "WHERE uid = 'node-0'"
        ),
        "deadline_after_notice",
    ),
    ("UPDATE nodes SET end_reason = 'preempted' WHERE uid = 'node-2'", "standard_never_preempted"),
    ("UPDATE nodes SET phase = 'REMOVING' WHERE uid = 'node-0'", "ended_with_a_reason"),
    ("UPDATE nodes SET phase = 'RESTING' WHERE uid = 'node-0'", "phase_known"),
    ("UPDATE nodes SET end_reason = 'tired' WHERE uid = 'node-0'", "end_reason_known"),
    ("UPDATE nodes SET name = 'twin' WHERE uid IN ('node-0', 'node-1')", "uq_nodes_name"),
    ("UPDATE clusters SET standard_hosts = 0", "one_standard_node"),
    ("UPDATE clusters SET target_hosts = -1", "target_not_negative"),
    ("UPDATE clusters SET phase = 'Ready'", "phase_known"),
    ("UPDATE pools SET gpus_per_host = 0", "gpus_positive"),
    ("UPDATE hosts SET name = 'host-1' WHERE id = 'host-0'", "uq_hosts_name_in_use"),
    ("UPDATE intervals SET end_s = start_s - 1", "forwards"),
    (f"INSERT INTO intervals ({_TERMS}, start_s) SELECT {_TERMS}, start_s + 50 FROM intervals", _OVERLAP),
    (
        (
            f"INSERT INTO intervals ({_TERMS}, start_s, end_s) "
            f"SELECT {_TERMS}, start_s - 9, start_s + 1 FROM intervals"
        ),
        _OVERLAP,
    ),
    (
        (
            "INSERT INTO lifecycle_events VALUES ('cluster', 1, 'node-0', 'n', 'r', 'm', now()), "
            "('cluster', 2, 'node-0', 'n', 'r', 'm', now())"
        ),
        "uq_lifecycle_events_node_uid_reason",
    ),
    ("DELETE FROM hosts WHERE id = 'host-0'", "fk_nodes_host_id"),
]


async def _refusal(db: Database, statement: str) -> str:
    """What the database says against the statement."""
    with pytest.raises(IntegrityError) as caught:
        async with db.transaction() as tx:
            await tx.conn.execute(sa.text(statement))
    return str(caught.value.orig)


async def test_the_database_refuses(db: Database, rows: Rows) -> None:
    """Each by its constraint, and not by another."""
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.RUNNING)
        await rows.node(tx, 1, Phase.SCHEDULING)
        await rows.node(tx, 2, Phase.SCHEDULING, compute_class=ComputeClass.STANDARD)
    for statement, constraint in _REFUSED:
        assert constraint in await _refusal(db, statement), statement


async def test_the_same_times_of_two_nodes_do_not_overlap(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.nodes(tx, 4, Phase.RUNNING)
        starts = (await tx.conn.execute(sa.text("SELECT DISTINCT start_s FROM intervals"))).all()
    assert len(starts) == 1


async def test_a_host_may_be_let_again_once_its_node_is_removed(db: Database, rows: Rows) -> None:
    async with db.transaction() as tx:
        await rows.node(tx, 0, Phase.REMOVED)
        await tx.conn.execute(sa.text("UPDATE nodes SET host_id = 'host-0' WHERE uid = 'node-0'"))
        await rows.node(tx, 1, Phase.SCHEDULING)
        await tx.conn.execute(sa.text("UPDATE nodes SET host_id = 'host-0' WHERE uid = 'node-1'"))
