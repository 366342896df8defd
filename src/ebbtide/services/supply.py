"""What could be had now, and how long it took and lasted so far: for tenants, without telling of others.

Figures are of a region and a GPU model, never of a cluster, a project or a host of somebody else's. Counts
are cut at a limit, so that they say whether an order would go through, and not how large the fleet is or
when somebody else orders. Operators see all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.core.history import Figures, Span, figures, fills, lives
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass
from ebbtide.core.pricing import Rate, rate_at
from ebbtide.services.details import Caller
from ebbtide.services.visible import cluster_of
from ebbtide.settings import Settings
from ebbtide.store import access, fleet, history, pools
from ebbtide.store.db import Database, Tx
from ebbtide.store.history import PoolHistory
from ebbtide.store.pools import PoolRow


@dataclass(frozen=True, slots=True)
class Offer:
    """What one cluster of a region and GPU model could get now, in GPUs.

    standard:    what an order would be granted, preemptible nodes displaced for it included
    preemptible: what a target would be filled with at once
    *_more:      there is more than is told
    """

    region: str
    gpu_type: str
    gpus_per_host: int
    standard_gpus: int
    standard_more: bool
    preemptible_gpus: int
    preemptible_more: bool
    microdollars_per_gpu_hour: int | None
    preemptible_microdollars_per_gpu_hour: int | None


@dataclass(frozen=True, slots=True)
class QuotaLeft:
    """GPUs that the caller's project may still order; None: it has no quota."""

    standard_gpus: int | None
    preemptible_gpus: int | None


@dataclass(frozen=True, slots=True)
class Supply:
    at: datetime
    offers: tuple[Offer, ...]
    quota: QuotaLeft


@dataclass(frozen=True, slots=True)
class Observed:
    """Figures of a region and GPU model since an instant.

    fill: from a raised target to a RUNNING node. life: from RUNNING to the notice of a reclaim.
    """

    region: str
    gpu_type: str
    since: datetime
    until: datetime
    fill: Figures
    life: Figures


class SupplyService:
    def __init__(self, db: Database, settings: Settings) -> None:
        self._db = db
        self._settings = settings

    async def now(self, caller: Caller, region: str | None = None, gpu_type: str | None = None) -> Supply:
        """What is free now, by region and GPU model; words that name nothing find nothing."""
        limit = None if caller.is_operator else self._settings.capacity_shown_gpus
        async with self._db.read() as tx:
            chosen = _chosen(await pools.all_(tx), region, gpu_type)
            rates = await fleet.all_rates(tx)
            found = [await _offer(tx, pool, rates, limit) for pool in chosen]
            used = await access.usage(tx, caller.project_id)
            at = tx.now
        return Supply(
            at,
            tuple(_best(found)),
            QuotaLeft(
                _left(used.standard_gpus_limit, used.standard_gpus),
                _left(used.preemptible_gpus_limit, used.preemptible_gpus),
            ),
        )

    async def history(
        self, caller: Caller, region: str | None = None, gpu_type: str | None = None
    ) -> tuple[Observed, ...]:
        """How long targets took and nodes lived, by region and GPU model, over all clusters there."""
        async with self._db.read() as tx:
            chosen = _chosen(await pools.all_(tx), region, gpu_type)
            since = self._since(tx)
            found = {pool.name: await history.of_pool(tx, pool.name, since) for pool in chosen}
            now = tx.now
        return tuple(
            self._observed(kind, [found[pool.name] for pool in chosen if _kind(pool) == kind], now)
            for kind in dict.fromkeys(_kind(pool) for pool in chosen)
        )

    async def cluster_history(self, caller: Caller, cluster_id: str) -> Observed:
        """The same of one cluster. Raises NotFound, for another tenant's as for none."""
        async with self._db.read() as tx:
            row = await cluster_of(tx, caller, cluster_id)
            found = await history.of_pool(tx, row.pool, self._since(tx), cluster_id=row.id)
            return self._observed((row.region, row.gpu_type), [found], tx.now)

    def _since(self, tx: Tx) -> datetime:
        return tx.now - timedelta(days=self._settings.history_days)

    def _observed(self, kind: tuple[str, str], found: Sequence[PoolHistory], now: datetime) -> Observed:
        least = self._settings.history_samples
        return Observed(
            *kind,
            since=max(one.since for one in found),
            until=now,
            fill=figures([span for one in found for span in _fills(one, now)], least_ended=least),
            life=figures([span for one in found for span in _lives(one, now)], least_ended=least),
        )


def _fills(found: PoolHistory, now: datetime) -> Iterable[Span]:
    for cluster_id, targets in found.targets.items():
        yield from fills(targets, found.stays.get(cluster_id, []), found.since, now)


def _lives(found: PoolHistory, now: datetime) -> Iterable[Span]:
    """Of nodes that began within the window: one that began before was not chosen by chance but by age."""
    for stays in found.stays.values():
        yield from lives([stay for stay in stays if stay.running_at >= found.since], now)


def _kind(pool: PoolRow) -> tuple[str, str]:
    return pool.region, pool.gpu_type


def _chosen(rows: Iterable[PoolRow], region: str | None, gpu_type: str | None) -> list[PoolRow]:
    return sorted(
        (row for row in rows if region in (None, row.region) and gpu_type in (None, row.gpu_type)),
        key=lambda row: (row.region, row.gpu_type, row.name),
    )


async def _offer(tx: Tx, pool: PoolRow, rates: Sequence[Rate], limit: int | None) -> Offer:
    view = await pools.view(tx, pool)
    size = pool.gpus_per_host
    standard = max(0, view.unpromised + await pools.count_reclaimable(tx, pool.name)) * size
    preemptible = view.lendable * size
    most = max(standard, preemptible) if limit is None else max(size, limit // size * size)
    now_s = epoch_s(tx.now)
    prices = [
        rate_at(rates, pool.name, compute_class, now_s)
        for compute_class in (ComputeClass.STANDARD, ComputeClass.PREEMPTIBLE)
    ]
    return Offer(
        pool.region,
        pool.gpu_type,
        size,
        min(standard, most),
        standard > most,
        min(preemptible, most),
        preemptible > most,
        *(price.microdollars_per_gpu_hour if price else None for price in prices),
    )


def _best(offers: Iterable[Offer]) -> Iterable[Offer]:
    """One offer for each region and GPU model: a cluster lives in one pool, so pools are not added up."""
    best: dict[tuple[str, str], Offer] = {}
    for offer in offers:
        known = best.get((offer.region, offer.gpu_type))
        if known is None or _rank(offer) > _rank(known):
            best[offer.region, offer.gpu_type] = offer
    return best.values()


def _rank(offer: Offer) -> tuple[int, bool, int, bool]:
    return offer.standard_gpus, offer.standard_more, offer.preemptible_gpus, offer.preemptible_more


def _left(limit: int | None, ordered: int) -> int | None:
    return None if limit is None else max(0, limit - ordered)
