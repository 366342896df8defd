"""What was used and what it costs: a pure function of intervals and rates, plus the ledger's credits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass
from ebbtide.core.pricing import Rate, charge_numerator, rates_of, round_line, split_by_rate
from ebbtide.errors import BadInput
from ebbtide.services.details import Caller, CreditLine, Usage, UsageLine
from ebbtide.store import fleet, intervals, ledger
from ebbtide.store.db import Database
from ebbtide.store.intervals import Sealed


@dataclass(frozen=True, slots=True)
class _Key:
    cluster_id: str
    cluster_name: str
    project_id: str
    compute_class: ComputeClass
    gpu_type: str
    node_name: str | None
    rate: int | None
    standard_rate: int | None


class UsageService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(
        self,
        caller: Caller,
        since: datetime,
        until: datetime,
        cluster_id: str | None = None,
        by: str = "cluster",
    ) -> Usage:
        """Usage in [since, until), of the caller's project or of all (operators). Only sealed time counts.

        by: "cluster" for a line per cluster, class and price, "node" for one per node.
        Raises BadInput when the span is empty or `by` is another word.
        """
        if by not in ("cluster", "node"):
            raise BadInput("'by' is 'cluster' or 'node'", param="by")
        if until <= since:
            raise BadInput("'until' must be after 'since'", param="until")
        project_id = None if caller.is_operator else caller.project_id
        async with self._db.read() as tx:
            found = await intervals.read(
                tx, epoch_s(since), epoch_s(until), project_id=project_id, cluster_id=cluster_id
            )
            rates = await fleet.all_rates(tx)
            entries = await ledger.read(tx, since, until, project_id=project_id, cluster_id=cluster_id)
        sealed = [
            one.sealed_until_s
            for one in found
            if one.interval.end_s is None or one.sealed_until_s < one.interval.end_s
        ]
        return Usage(
            since=since,
            until=until,
            sealed_until=datetime.fromtimestamp(min(sealed), UTC) if sealed else None,
            lines=_lines(found, rates, epoch_s(since), epoch_s(until), by),
            credits=tuple(
                CreditLine(row.cluster_id, name, row.note, row.microdollars or 0, row.at)
                for row, name in entries
            ),
        )


def _lines(
    found: Sequence[Sealed], rates: Sequence[Rate], since_s: int, until_s: int, by: str
) -> tuple[UsageLine, ...]:
    seconds: dict[_Key, tuple[int, int]] = defaultdict(lambda: (0, 0))
    known = {
        (pool, compute_class): rates_of(rates, pool, compute_class)
        for pool, compute_class in {(rate.pool, rate.compute_class) for rate in rates}
    }
    for one in found:
        start_s, end_s = max(one.interval.start_s, since_s), min(one.sealed_until_s, until_s)
        own = known.get((one.interval.pool, one.interval.compute_class), [])
        standard = known.get((one.interval.pool, ComputeClass.STANDARD), [])
        # Cut where either price changes, so that each piece has one price and one saving.
        for piece_start, piece_end, rate in split_by_rate(start_s, max(start_s, end_s), own):
            for cut_start, cut_end, standard_rate in split_by_rate(piece_start, piece_end, standard):
                key = _key(one, by, rate, standard_rate)
                gpu_seconds, node_seconds = seconds[key]
                span_s = cut_end - cut_start
                seconds[key] = (gpu_seconds + span_s * one.interval.gpus, node_seconds + span_s)
    ordered = sorted(seconds.items(), key=lambda item: _order(item[0]))
    return tuple(_line(key, gpu_seconds, node_seconds) for key, (gpu_seconds, node_seconds) in ordered)


def _key(one: Sealed, by: str, rate: Rate | None, standard: Rate | None) -> _Key:
    return _Key(
        one.interval.cluster_id,
        one.cluster_name,
        one.interval.project_id,
        one.interval.compute_class,
        one.gpu_type,
        one.node_name if by == "node" else None,
        rate.microdollars_per_gpu_hour if rate else None,
        standard.microdollars_per_gpu_hour if standard else None,
    )


def _order(key: _Key) -> tuple[str, str, str, str, int]:
    # Standard before preemptible, as the classes' own order is.
    return (
        key.cluster_name,
        key.cluster_id,
        "" if key.compute_class is ComputeClass.STANDARD else "p",
        key.node_name or "",
        key.rate or 0,
    )


def _line(key: _Key, gpu_seconds: int, node_seconds: int) -> UsageLine:
    charge = None if key.rate is None else round_line(charge_numerator(gpu_seconds, key.rate))
    full = None if key.standard_rate is None else round_line(charge_numerator(gpu_seconds, key.standard_rate))
    return UsageLine(
        cluster_id=key.cluster_id,
        cluster_name=key.cluster_name,
        project_id=key.project_id,
        compute_class=key.compute_class,
        gpu_type=key.gpu_type,
        node_name=key.node_name,
        gpu_seconds=gpu_seconds,
        node_seconds=node_seconds,
        microdollars_per_gpu_hour=key.rate,
        microdollars=charge,
        saved_microdollars=None if charge is None or full is None else full - charge,
    )
