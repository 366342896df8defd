"""The fleet's metrics: names, kinds and labels, and how they are written for Prometheus.

Their values are read from the database when somebody asks, so a restart changes none of them, and every
server answers the same. No label names a node, a host or a tenant: series stay few. `docs/metrics.md` lists
them; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_Family = CounterMetricFamily | GaugeMetricFamily


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Counters are named without the `_total` that Prometheus shows."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


NODES_ENDED = Metric(
    "ebbtide_nodes_ended",
    Kind.COUNTER,
    "Nodes whose end was decided, by why. Restarts and upgrades are no preemptions.",
    ("compute_class", "end_reason"),
)
HOSTS = Metric("ebbtide_hosts", Kind.GAUGE, "Hosts of a pool in each bucket.", ("pool", "bucket"))
PROMISED = Metric(
    "ebbtide_promised_hosts", Kind.GAUGE, "Hosts promised to claims that did not come yet.", ("pool",)
)
UNMET_HOSTS = Metric(
    "ebbtide_unmet_target_hosts", Kind.GAUGE, "Hosts that preemptible targets still want.", ("pool",)
)
UNMET_CLUSTERS = Metric(
    "ebbtide_unmet_target_clusters", Kind.GAUGE, "Clusters whose preemptible target is not met.", ("pool",)
)
OLDEST_REMOVAL = Metric(
    "ebbtide_oldest_removal_seconds",
    Kind.GAUGE,
    "How long the oldest host on its way back has been so; a stop that is not confirmed shows here.",
    ("pool",),
)
DRAINS_OVERDUE = Metric(
    "ebbtide_drains_overdue", Kind.GAUGE, "Nodes that drain on past the end of their drain."
)
VISITS_OVERDUE = Metric(
    "ebbtide_visit_overdue_seconds",
    Kind.GAUGE,
    "How late the latest due visit of a loop is; grows when no worker lives or keeps up.",
    ("loop",),
)
VISITS_FAILING = Metric(
    "ebbtide_visits_failing", Kind.GAUGE, "Rows whose last three visits of a loop all failed.", ("loop",)
)
UNSEALED = Metric(
    "ebbtide_unsealed_seconds",
    Kind.GAUGE,
    "For how long the cluster that was seen last of all was not seen; its bill stands still meanwhile.",
)
WORKER_RUNS = Metric(
    "ebbtide_worker_runs",
    Kind.GAUGE,
    "Lives of worker processes in the last 30 days, by how they ended (alive: not yet).",
    ("ended",),
)
DATABASE_UP = Metric("ebbtide_database_up", Kind.GAUGE, "1 when the database answered this question.")

METRICS = (
    NODES_ENDED,
    HOSTS,
    PROMISED,
    UNMET_HOSTS,
    UNMET_CLUSTERS,
    OLDEST_REMOVAL,
    DRAINS_OVERDUE,
    VISITS_OVERDUE,
    VISITS_FAILING,
    UNSEALED,
    WORKER_RUNS,
    DATABASE_UP,
)

Labels = tuple[str, ...]
Readings = Mapping[Metric, Sequence[tuple[Labels, float]]]


class _Once(Collector):
    """Hands prometheus-client what was read."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[_Family]:
        return list(_families(self._readings))


def _families(readings: Readings) -> Iterator[_Family]:
    for metric, samples in readings.items():
        family: _Family
        if metric.kind is Kind.COUNTER:
            family = CounterMetricFamily(metric.name, metric.about, labels=metric.labels)
        else:
            family = GaugeMetricFamily(metric.name, metric.about, labels=metric.labels)
        for labels, value in samples:
            family.add_metric(labels, value)
        yield family


def exposition(readings: Readings) -> bytes:
    """What was read in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Once(readings))
    return generate_latest(registry)
