"""What an operator watches, read from the database at the moment of asking."""

from __future__ import annotations

from collections import defaultdict

from ebbtide import metrics
from ebbtide.core.hosts import Bucket, HostState, bucket, split_headroom
from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.errors import Unavailable
from ebbtide.metrics import Labels, Metric, Readings
from ebbtide.store import metrics as stored
from ebbtide.store import pools
from ebbtide.store.db import Database, Tx
from ebbtide.store.pools import PoolRow

_Samples = dict[Metric, list[tuple[Labels, float]]]


class MetricsService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def snapshot(self) -> Readings:
        """Every metric of the fleet, all of one instant; when the database is away, only that it is."""
        try:
            async with self._db.read() as tx:
                return await _read(tx)
        except Unavailable:
            return {metrics.DATABASE_UP: [((), 0.0)]}


async def _read(tx: Tx) -> Readings:
    found: _Samples = defaultdict(list)
    found[metrics.NODES_ENDED] += [
        ((compute_class, reason), number) for compute_class, reason, number in await stored.nodes_ended(tx)
    ]
    removals = await stored.oldest_removals(tx)
    for pool in await pools.all_(tx):
        await _read_pool(tx, pool, found)
        found[metrics.OLDEST_REMOVAL].append(((pool.name,), removals.get(pool.name, 0.0)))
    for loop in await stored.loops(tx):
        found[metrics.VISITS_OVERDUE].append(((loop.loop,), loop.overdue_s))
        found[metrics.VISITS_FAILING].append(((loop.loop,), loop.failing))
    found[metrics.DRAINS_OVERDUE].append(((), await stored.drains_overdue(tx)))
    found[metrics.UNSEALED].append(((), await stored.unsealed_s(tx)))
    found[metrics.WORKER_RUNS] += [((how,), number) for how, number in await stored.worker_runs(tx)]
    found[metrics.DATABASE_UP].append(((), 1.0))
    return found


async def _read_pool(tx: Tx, pool: PoolRow, found: _Samples) -> None:
    counts = dict.fromkeys(Bucket, 0)
    for state, compute_class, phase, number in await pools.bucket_counts(tx, pool.name):
        one = bucket(
            HostState(state),
            ComputeClass(compute_class) if compute_class else None,
            Phase(phase) if phase else None,
        )
        if one is not None:
            counts[one] += number
    for one, number in split_headroom(counts, pool.headroom_hosts).items():
        found[metrics.HOSTS].append(((pool.name, one.value), number))
    view = await pools.view(tx, pool)
    found[metrics.PROMISED].append(((pool.name,), view.promised))
    missing = [held.missing_hosts for held in await pools.holdings(tx, pool.name) if held.missing_hosts]
    found[metrics.UNMET_HOSTS].append(((pool.name,), sum(missing)))
    found[metrics.UNMET_CLUSTERS].append(((pool.name,), len(missing)))
