"""The runner: lives that begin and end, leases of the dead, faults of our own, one run in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from ebbtide import assembly
from ebbtide.clock import ManualClock, monotonic
from ebbtide.core.nodes import Phase
from ebbtide.ids import SeededIds
from ebbtide.services.details import Replay, Role
from ebbtide.services.fleet_file import PoolSpec
from ebbtide.settings import Settings
from ebbtide.store import visits
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome, finish
from ebbtide.workers.runner import Runner, _chunks
from ebbtide.workers.single import SingleVisits
from tests.builders import START, a_database, a_fleet, an_order, rows
from tests.workers.conftest import Rig


async def test_a_killed_worker_is_found_with_the_drain_it_was_in(rig: Rig) -> None:
    """G2, G3: the next start says so, and nothing is counted as a preemption."""
    cluster = await rig.running(target=24)
    await rig.order()
    (taken,) = [node for node in (await rig.seen(cluster)).nodes if node.phase is Phase.DRAINING]
    claimed = await rig.sim.system.runner._claim(Loop.LIFECYCLE, 10)
    assert [visit.key for visit in claimed] == [taken.uid]
    await rig.sim.kill()
    rig.sim.system = rig.sim._build()
    findings = await rig.sim.system.begin()
    (sentence,) = findings.sentences
    assert "was killed" in sentence
    assert f"{taken.name} (deadline" in sentence
    assert await rig.one() == "leaving: its pods are gone"  # the dead worker's lease holds nobody up
    preempted = await rig.stored("nodes", "end_reason = 'preempted'")
    assert len(preempted) == 1
    ended = [row["ended_how"] for row in await rig.stored("worker_runs", "true ORDER BY started_at")]
    assert sorted(ended, key=str) == [None, "killed"]


async def test_a_polite_end_is_no_kill(rig: Rig) -> None:
    await rig.sim.system.runner.end()
    await rig.sim.kill()
    rig.sim.system = rig.sim._build()
    assert (await rig.sim.system.begin()).sentences == ()


async def test_whoever_finishes_too_late_changes_nothing(rig: Rig) -> None:
    """Its lease ended while it was held up outside; somebody else has done it meanwhile."""
    cluster = await rig.running(target=24)
    await rig.order()
    runner = rig.sim.system.runner
    (slow,) = await runner._claim(Loop.LIFECYCLE, 1)
    rig.wait(rig.sim.settings.lease_s)
    assert await rig.one() == "leaving: its pods are gone"
    before = await rig.stored("nodes")
    (outcome,) = await runner._workers[Loop.LIFECYCLE].visit_many([slow])
    assert "lease" in outcome.sentence or "taken over" in outcome.sentence
    after = await rig.stored("nodes")
    assert [row["phase"] for row in after] == [row["phase"] for row in before]
    assert cluster


class _Stubborn(SingleVisits):
    """Fails by a fault of ours for one row, and does the others."""

    loop = Loop.LEAKS

    def __init__(self, url: str) -> None:
        self.db = a_database(url)
        super().__init__(self.db, Settings())
        self.done: list[str] = []

    async def visit(self, visit: Visit) -> Outcome:
        if visit.key == "bad":
            raise ZeroDivisionError
        async with self.db.transaction() as tx:
            self.done.append(visit.key)
            return await finish(tx, visit, Outcome("done"))


@pytest.mark.parametrize("chunk", [1, 3])
async def test_one_bad_row_does_not_stop_the_loop(database_url: str, chunk: int) -> None:
    """Nor the rows that were handed over together with it."""
    worker = _Stubborn(database_url)
    worker.chunk = chunk
    runner = Runner(worker.db, Settings(), SeededIds(1), [worker])
    async with worker.db.transaction() as tx:
        await visits.hint(tx, Loop.LEAKS, ["a", "bad", "z"])
    stop = asyncio.Event()
    running = asyncio.create_task(runner.run(stop))
    try:
        async with asyncio.timeout(20):
            while set(worker.done) != {"a", "z"} or not await _put_off(worker):  # noqa: ASYNC110  # rows change
                await asyncio.sleep(0.02)
    finally:
        stop.set()
        await running
        await worker.db.close()


async def _put_off(worker: _Stubborn) -> bool:
    async with worker.db.read() as tx:
        found = await rows(tx, "visits", "key = 'bad' AND failures = 1 AND lease_until IS NULL")
    if not found:
        return False
    assert found[0]["due_at"] == worker.db.clock.now() + timedelta(seconds=2)
    assert "fault of ours" in str(found[0]["outcome"])
    return True


class _HeldUp(_Stubborn):
    """Something outside never answers the first time."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begun = 0
        self.cut_off = asyncio.Event()

    async def visit(self, visit: Visit) -> Outcome:
        self.begun += 1
        if self.begun > 1:
            return await super().visit(visit)
        try:
            await asyncio.Event().wait()
        finally:
            self.cut_off.set()
        raise AssertionError("nobody sets that event")


async def test_a_visit_that_outlasts_its_lease_is_cut_off_and_made_again(database_url: str) -> None:
    """Its row is claimed again, by this worker or another, and it is said once."""
    worker, settings = _HeldUp(database_url), Settings(lease_s=2)
    runner = Runner(worker.db, settings, SeededIds(1), [worker])
    clock = worker.db.clock
    assert isinstance(clock, ManualClock)
    async with worker.db.transaction() as tx:
        await visits.hint(tx, Loop.LEAKS, ["slow"])
    stop = asyncio.Event()
    with capture_logs() as logs:
        running = asyncio.create_task(runner.run(stop))
        try:
            async with asyncio.timeout(20):
                await worker.cut_off.wait()
                clock.advance(settings.lease_s)
                while not worker.done:  # noqa: ASYNC110  # rows change
                    await asyncio.sleep(0.02)
        finally:
            stop.set()
            await running
            await worker.db.close()
    assert (worker.begun, worker.done) == (2, ["slow"])
    said = [line for line in logs if line["log_level"] != "debug"]
    assert [(line["event"], line["keys"]) for line in said] == [("visits cut off", ["slow"])]


async def test_in_real_time_a_cluster_comes_up_and_the_end_is_at_once(database_url: str) -> None:
    """The one test here with a real clock: machines that boot at once; stopped at once, no task left."""
    file = a_fleet()
    fast = type(file)(file.regions, tuple(_instant(pool) for pool in file.pools))
    system = assembly.build(Settings(retry_s=1), database_url, alone=True)
    await system.apply_fleet(fast)
    await system.begin()
    key = await system.first_key(Role.MEMBER, "acme", "Acme")
    caller = await system.services.access.authenticate(key.secret)
    before = asyncio.all_tasks()
    stop = asyncio.Event()
    running = asyncio.create_task(system.run(stop))
    made = await system.services.clusters.create(caller, an_order(target=8), Replay("x"))
    try:
        async with asyncio.timeout(60):
            while True:
                seen = await system.services.clusters.retrieve(caller, made.id)
                if seen.phase == "READY" and seen.allocated_preemptible_gpus == 8:
                    break
                assert not running.done()
                await asyncio.sleep(0.1)
        asked = monotonic()
        stop.set()
        await asyncio.wait_for(running, 10)
        assert monotonic() - asked < 3  # a second on a machine that is not shared
        assert asyncio.all_tasks() == before
        async with system.db.read() as tx:
            assert [row["ended_how"] for row in await rows(tx, "worker_runs")] == ["stopped"]
            assert await rows(tx, "visits", "lease_until IS NOT NULL") == []
    finally:
        running.cancel()
        await system.close()


def _instant(pool: PoolSpec) -> PoolSpec:
    return replace(pool, boot_s=0, turn_over_s=0)


@pytest.mark.parametrize("sizes", [(0, 4), (7, 3), (9, 3), (1, 16)])
def test_visits_are_handed_over_in_portions(sizes: tuple[int, int]) -> None:
    count, size = sizes
    claimed: Sequence[Visit] = [Visit(Loop.LEAKS, str(n), 1, 0, 0, START) for n in range(count)]
    portions = _chunks(claimed, size)
    assert [visit for portion in portions for visit in portion] == claimed
    assert all(1 <= len(portion) <= size for portion in portions)
