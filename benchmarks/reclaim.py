"""What a claim's choice of preemptible nodes costs beside the best choice there is, and how long it takes.

    python benchmarks/reclaim.py [--quick] [--json FILE]

`core.reclaim.choose` is a rule that people can follow, not an optimiser. On small random pools its choice is
priced and set beside the exact optimum, found by HiGHS as an integer program. The price of a set, in points:

- each node: not running 0, idle 1, idle inside its minimum life 2, busy 10, busy inside its minimum life 12
- each busy node: 0.05 for each hour that it has run (work that may be lost), at most 24 hours
- the hosts that the largest project is left with (unfairness), 1 each

The optimum takes the same number of nodes. Then the time to choose among 12,500 candidates, beside Python's
`sorted` of the same candidates by class, age and uid.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import highspy
from _common import GPUS_PER_HOST, Options, Report, Result, median, options

from ebbtide.core import reclaim
from ebbtide.core.capacity import Candidate, Holding
from ebbtide.core.nodes import Phase

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MIN_LIFE_S = 600
MOST_HOURS, POINTS_AN_HOUR = 24.0, 0.05
JOINING = (Phase.SCHEDULING, Phase.BOOTING, Phase.BOOTSTRAPPING)


@dataclass(frozen=True, slots=True)
class Pool:
    """A random pool: its candidates, what its clusters hold, and how many hosts are claimed."""

    candidates: Sequence[Candidate]
    holdings: Sequence[Holding]
    hosts: int


def random_pool(rng: random.Random, nodes: int, clusters: int, projects: int, hosts: int) -> Pool:
    owners = [(f"c{at}", f"p{at % projects}") for at in range(clusters)]
    weights = [rng.random() ** 2 + 0.05 for _ in owners]  # some hold much, some little
    candidates = []
    for at in range(nodes):
        cluster_id, project_id = rng.choices(owners, weights)[0]
        joining = rng.random() < 0.1
        ran_s = rng.choice((rng.uniform(10, MIN_LIFE_S), rng.uniform(MIN_LIFE_S, 100_000)))
        candidates.append(
            Candidate(
                uid=f"n{at:06}",
                cluster_id=cluster_id,
                project_id=project_id,
                phase=rng.choice(JOINING) if joining else Phase.RUNNING,
                busy=not joining and rng.random() < 0.7,
                running_at=None if joining else NOW - timedelta(seconds=ran_s),
            )
        )
    held = Counter((one.cluster_id, one.project_id) for one in candidates)
    holdings = [Holding(cluster, project, n * GPUS_PER_HOST) for (cluster, project), n in held.items()]
    return Pool(candidates, holdings, hosts)


def node_price(node: Candidate) -> float:
    if node.phase is not Phase.RUNNING or node.running_at is None:
        return 0.0
    ran_s = (NOW - node.running_at).total_seconds()
    inside = ran_s < MIN_LIFE_S
    if not node.busy:
        return 2.0 if inside else 1.0
    return (12.0 if inside else 10.0) + POINTS_AN_HOUR * min(MOST_HOURS, ran_s / 3600)


def price(pool: Pool, taken: set[str]) -> float:
    """What taking these nodes costs, by the definition at the top."""
    left = Counter({one.project_id: 0 for one in pool.candidates})
    left.update(one.project_id for one in pool.candidates if one.uid not in taken)
    return sum(node_price(one) for one in pool.candidates if one.uid in taken) + max(left.values())


def choose(pool: Pool) -> set[str]:
    found = reclaim.choose(pool.candidates, pool.holdings, pool.hosts, NOW, MIN_LIFE_S, GPUS_PER_HOST)
    return {victim.uid for victim in found}


def optimum(pool: Pool) -> float:
    """The least price of any set of that size."""
    new: Callable[[], Any] = highspy.Highs
    model = new()
    for option, value in (("output_flag", False), ("log_to_console", False), ("mip_rel_gap", 0.0)):
        model.setOptionValue(option, value)
    takes = [model.addBinary(obj=node_price(one)) for one in pool.candidates]
    largest = model.addVariable(lb=0, obj=1.0)
    model.addConstr(model.qsum(takes) == pool.hosts)
    for project_id in {one.project_id for one in pool.candidates}:
        own = [take for take, one in zip(takes, pool.candidates, strict=True) if one.project_id == project_id]
        model.addConstr(largest + model.qsum(own) >= len(own))
    model.run()
    assert model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(model.getObjectiveValue())


def timed(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds, the median of some rounds."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def _beside_optimum(report: Report, pools: int) -> None:
    rng = random.Random(20_261)
    ours, best, ratios = 0.0, 0.0, []
    for _ in range(pools):
        nodes = rng.randrange(10, 60)
        pool = random_pool(rng, nodes, rng.randrange(2, 9), rng.randrange(1, 5), rng.randrange(1, nodes))
        taken, least = choose(pool), optimum(pool)
        assert len(taken) == pool.hosts
        cost = price(pool, taken)
        assert cost >= least - 1e-6, "nothing beats the optimum"
        ours, best = ours + cost, best + least
        ratios.append(cost / least if least else 1.0)
    what = f"price of {pools} small reclaims"
    same = sum(ratio < 1 + 1e-6 for ratio in ratios)
    worst = f"median ratio {median(ratios):.3f}, worst {max(ratios):.3f}; same price in {same} of {pools}"
    report.add(Result(what, ours, "points", "exact optimum (HiGHS)", best, aim=1.1, note=worst))


def _time(report: Report, nodes: int, rounds: int) -> None:
    pool = random_pool(random.Random(7), nodes, 500, 50, 0)
    for hosts in (1, nodes // 60, nodes):
        asked = Pool(pool.candidates, pool.holdings, hosts)
        report.add(
            Result(
                f"choosing {hosts:,} of {nodes:,} nodes",
                timed(lambda asked=asked: choose(asked), rounds),  # type: ignore[misc]  # bound at once
                "ms",
                "sorted()",
                timed(lambda: sorted(pool.candidates, key=lambda one: (node_price(one), one.uid)), rounds),
            )
        )


def main() -> int:
    given: Options = options(__doc__)
    report = Report("reclaim", given)
    _beside_optimum(report, 20 if given.quick else 400)
    _time(report, 500 if given.quick else 12_500, 3 if given.quick else 9)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
