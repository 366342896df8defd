"""The invariants, looked at after every step: the ledger row by row, beside what the world says of machines.

Nothing here uses the store's own queries: an error in them must not hide itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ebbtide.core.hosts import HostState
from ebbtide.core.invariants import check, check_step
from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.core.snapshot import ClusterFact, HostFact, IntervalFact, NodeFact, PoolFact, Snapshot
from ebbtide.playground.world import World

# On a manual clock what is due is done at its instant; the rest is how late a repeated visit may be.
TICK_S = 5

_NODES = """
SELECT uid, no, pool, compute_class, phase, cluster_id, host_id, end_reason, placed_at, running_at,
       draining_at, deadline, ends_at, first_signal_at, left_at, removed_at,
       (SELECT m.host_id FROM maintenances m WHERE m.node_uid = nodes.uid) AS pinned_host_id
FROM nodes WHERE phase <> 'REMOVED' OR removed_at >= %s
"""
_HOSTS = "SELECT id, name, pool, state, node_uid FROM hosts"
_CLUSTERS = "SELECT id, target_hosts FROM clusters WHERE phase NOT IN ('DELETING', 'DELETED')"
_POOLS = "SELECT name, headroom_hosts FROM pools"
_INTERVALS = """
SELECT node_no, start_s, end_s FROM intervals WHERE node_uid IN (
  SELECT uid FROM nodes WHERE phase <> 'REMOVED' OR removed_at >= %s)
"""

Row = dict[str, Any]


class Watch:
    """Judges a ledger and a world. `down` is told of spans in which no worker lived.

    checks: how many snapshots were judged
    """

    def __init__(self, database_url: str, world: World) -> None:
        plain = database_url.replace("postgresql+psycopg://", "postgresql://")
        self._ledger = psycopg.connect(plain, autocommit=True, row_factory=dict_row)
        self._world = world
        self._before: Snapshot | None = None
        self.down: list[tuple[datetime, datetime]] = []
        self.checks = 0

    def close(self) -> None:
        self._ledger.close()

    def ask(self, query: str, *values: object) -> list[Row]:
        """Rows of the ledger, for tests that look behind the services."""
        return self._ledger.execute(query.encode(), values).fetchall()

    def look(self, now: datetime) -> None:
        """Judge the present; fails with every sentence of the invariants."""
        present = self.snapshot(now)
        problems = check(present)
        if self._before is not None:
            problems += check_step(self._before, present)
        if self._plan_is_due(now):  # promises are kept by plans: one that is due at this instant comes first
            problems = [problem for problem in problems if " promised " not in problem]
        problems += self._world.violations
        self._before = present
        self.checks += 1
        assert not problems, f"at {now}:\n" + "\n".join(problems)

    def _plan_is_due(self, now: datetime) -> bool:
        return bool(self.ask("SELECT 1 FROM visits WHERE loop = 'fulfillment' AND due_at <= %s", now))

    def snapshot(self, now: datetime) -> Snapshot:
        since = self._before.at if self._before else now
        hosts, nodes = self.ask(_HOSTS), self.ask(_NODES, since)
        occupants = set(self._world.occupants().values())
        return Snapshot(
            at=now,
            hosts=tuple(
                HostFact(row["id"], row["pool"], HostState(row["state"]), row["node_uid"]) for row in hosts
            ),
            nodes=tuple(_node(row, gone=row["uid"] not in occupants) for row in nodes),
            clusters=tuple(ClusterFact(row["id"], row["target_hosts"]) for row in self.ask(_CLUSTERS)),
            pools=tuple(_pool(row, hosts, nodes) for row in self.ask(_POOLS)),
            intervals=tuple(IntervalFact(**row) for row in self.ask(_INTERVALS, since)),
            tick_s=TICK_S,
            down=tuple(self.down),
        )


def _node(row: Row, *, gone: bool) -> NodeFact:
    """gone: the world has no instance for the node: the word that must come before its host is free."""
    return NodeFact(
        uid=row["uid"],
        no=row["no"],
        pool=row["pool"],
        compute_class=ComputeClass(row["compute_class"]),
        phase=Phase(row["phase"]),
        cluster_id=row["cluster_id"],
        host_id=row["host_id"],
        end_reason=EndReason(row["end_reason"]) if row["end_reason"] else None,
        placed_at=row["placed_at"],
        running_at=row["running_at"],
        notified_at=row["draining_at"],
        deadline=row["deadline"],
        ends_at=row["ends_at"],
        first_signal_at=row["first_signal_at"],
        removing_at=row["left_at"],
        removed_at=row["removed_at"],
        provider_gone_at=row["removed_at"] if gone else None,
        pinned_host_id=row["pinned_host_id"],
    )


def _pool(pool: Row, hosts: Sequence[Row], nodes: Sequence[Row]) -> PoolFact:
    mine = [host for host in hosts if host["pool"] == pool["name"]]
    usable = {host["id"] for host in mine if host["state"] == HostState.AVAILABLE}
    of_pool = [node for node in nodes if node["pool"] == pool["name"]]
    return PoolFact(
        name=pool["name"],
        free=sum(host["node_uid"] is None and host["id"] in usable for host in mine),
        leaving=sum(
            node["phase"] in (Phase.DRAINING, Phase.REMOVING) and node["host_id"] in usable
            for node in of_pool
        ),
        promised=sum(
            node["phase"] == Phase.PENDING and node["compute_class"] != ComputeClass.MAINTENANCE
            for node in of_pool
        ),
        headroom=pool["headroom_hosts"],
        total=sum(host["state"] != HostState.RETIRED or host["node_uid"] is not None for host in mine),
    )
