"""What an operator watches: read from the database, so that restarts change nothing, and with few series."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ebbtide import metrics
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.services.details import Caller, Replay
from ebbtide.services.metrics import MetricsService
from ebbtide.store import clusters, nodes, runs, visits
from ebbtide.store.nodes import Move
from ebbtide.store.visits import Finish, Loop
from tests.builders import (
    POOL,
    SIZE,
    Office,
    a_database,
    all_join,
    an_order,
    control_planes_are_ready,
    one_plan,
)

Values = dict[tuple[str, ...], float]


async def _read(office: Office) -> dict[str, Values]:
    """Metric name to values by labels."""
    found = await MetricsService(office.db).snapshot()
    return {metric.name: dict(samples) for metric, samples in found.items()}


async def _running(office: Office, tenant: Caller, target: int) -> str:
    made = await office.services.clusters.create(tenant, an_order(target=target), Replay("x"))
    async with office.db.transaction() as tx:
        await control_planes_are_ready(tx)
    await one_plan(office)
    async with office.db.transaction() as tx:
        await all_join(tx)
    return made.id


async def test_hosts_are_in_one_bucket_each_and_unmet_targets_show(office: Office, tenant: Caller) -> None:
    await _running(office, tenant, target=9 * SIZE)
    seen = await _read(office)
    buckets = {labels[1]: value for labels, value in seen["ebbtide_hosts"].items() if value}
    assert buckets == {"standard": 1, "preemptible": 3}
    assert seen["ebbtide_unmet_target_hosts"] == {(POOL,): 6}
    assert seen["ebbtide_unmet_target_clusters"] == {(POOL,): 1}
    assert seen["ebbtide_database_up"] == {(): 1}


async def test_preemptions_are_counted_at_their_notice_and_restarts_never(
    office: Office, tenant: Caller
) -> None:
    """G3."""
    await _running(office, tenant, target=3 * SIZE)
    operator = await office.operator()
    await office.services.claims.create(operator, POOL, 2, "r", "x")
    for number in range(5):
        async with office.db.transaction() as tx:
            await runs.start(tx, f"run-{number}")
            await runs.bury_dead(tx, all_others=True, run_id=f"run-{number}")
    seen = await _read(office)
    assert seen["ebbtide_nodes_ended"] == {("preemptible", "preempted"): 2}
    assert seen["ebbtide_worker_runs"] == {("alive",): 1, ("killed",): 4}
    assert seen["ebbtide_promised_hosts"] == {(POOL,): 2}


async def test_what_is_late_shows(office: Office, tenant: Caller) -> None:
    cluster = await _running(office, tenant, target=SIZE)
    operator = await office.operator()
    await office.services.fleet.reclaim(operator, POOL, 1, "a drill")
    async with office.db.transaction() as tx:
        (standard,) = [n for n in await nodes.of_cluster(tx, cluster) if n.compute_class == "standard"]
        await nodes.move(tx, [Move(standard.uid, Phase.RUNNING, Phase.REMOVING, end_reason=EndReason.LOST)])
        await clusters.mark_observed(tx, {cluster: tx.now})
    office.clock.advance(400)
    seen = await _read(office)
    assert seen["ebbtide_drains_overdue"] == {(): 1}
    assert seen["ebbtide_oldest_removal_seconds"] == {(POOL,): 400}
    assert seen["ebbtide_unsealed_seconds"] == {(): 400}
    assert seen["ebbtide_visit_overdue_seconds"][("lifecycle",)] == 400


async def test_a_leased_or_settled_visit_is_not_late_and_repeated_failures_show(office: Office) -> None:
    async with office.db.transaction() as tx:
        await visits.hint(tx, Loop.METERING, ["all"])
        await visits.hint(tx, Loop.RETENTION, ["all"])
    for _ in range(3):
        async with office.db.transaction() as tx:
            (visit,) = await visits.claim(tx, Loop.METERING, "me", limit=1, lease_s=60)
            await visits.finish(tx, [Finish(visit, "no", tx.now, failed=True)])
    async with office.db.transaction() as tx:
        await visits.claim(tx, Loop.METERING, "me", limit=1, lease_s=500)
        (visit,) = await visits.claim(tx, Loop.RETENTION, "me", limit=1, lease_s=60)
        await visits.finish(tx, [Finish(visit, "done", None)])
    office.clock.advance(300)
    seen = await _read(office)
    overdue = seen["ebbtide_visit_overdue_seconds"]
    assert (overdue["metering",], overdue["retention",]) == (0, 0)
    assert seen["ebbtide_visits_failing"]["metering",] == 1


async def test_every_metric_is_read_and_none_is_about_one_node(office: Office, tenant: Caller) -> None:
    """H5: series do not grow with nodes, hosts, clusters or tenants."""
    assert set(await MetricsService(office.db).snapshot()) == set(metrics.METRICS)
    before = {name: len(values) for name, values in (await _read(office)).items()}
    await _running(office, tenant, target=3 * SIZE)
    after = {name: len(values) for name, values in (await _read(office)).items()}
    grown = {name for name in after if after[name] > before[name]}
    assert grown <= {"ebbtide_visit_overdue_seconds", "ebbtide_visits_failing"}
    labels = {label for metric in metrics.METRICS for label in metric.labels}
    assert labels == {"pool", "bucket", "compute_class", "end_reason", "loop", "ended"}


async def test_the_text_is_what_prometheus_reads(office: Office, tenant: Caller) -> None:
    await _running(office, tenant, target=SIZE)
    operator = await office.operator()
    await office.services.fleet.reclaim(operator, POOL, 1, "a drill")
    text = metrics.exposition(await office.services.metrics.snapshot()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {one.name for one in metrics.METRICS} == set(families)
    (ended,) = families["ebbtide_nodes_ended"].samples
    assert (ended.name, ended.labels, ended.value) == (
        metrics.NODES_ENDED.shown,
        {"compute_class": "preemptible", "end_reason": "preempted"},
        1.0,
    )
    assert families["ebbtide_hosts"].type == "gauge"


async def test_without_a_database_that_is_what_it_says(database_url: str) -> None:
    nowhere = a_database(database_url.replace("host=", "host=/nowhere"))
    try:
        assert await MetricsService(nowhere).snapshot() == {metrics.DATABASE_UP: [((), 0.0)]}
    finally:
        await nowhere.close()
