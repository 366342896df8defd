"""How a node is taken out of its cluster: what its driver is told, and what comes of a late pod."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.drivers.base import Driver
from ebbtide.playground.behaviours import IgnoresSigterm, Obeys, Volume
from ebbtide.playground.facts import What
from ebbtide.services.details import NodeDetails
from tests.workers.conftest import Rig

PREEMPTIBLE = ComputeClass.PREEMPTIBLE


class Told:
    """A driver that remembers with which words it was asked to remove."""

    def __init__(self, plain: Driver) -> None:
        self._plain = plain
        self.words: list[tuple[bool, bool]] = []
        self.gone = True

    async def remove(self, *args: Any, stopped: bool = True, patient: bool = True) -> bool:
        self.words.append((stopped, patient))
        done = await self._plain.remove(*args, stopped=stopped, patient=patient)
        return done and self.gone

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._plain, verb)


@pytest.fixture
def told(rig: Rig) -> Told:
    loops = rig.sim.system.runner._workers.values()
    (lifecycle,) = [one for one in loops if type(one).__name__ == "Lifecycle"]
    wrapped = Told(lifecycle._driver)  # type: ignore[attr-defined]  # it is that class
    lifecycle._driver = wrapped  # type: ignore[attr-defined]  # it is that class
    return wrapped


async def _taken(rig: Rig, behaviour: Obeys | IgnoresSigterm, *volumes: Volume) -> tuple[str, NodeDetails]:
    """A cluster, and its preemptible node, which an order has just taken."""
    cluster = await rig.running(target=24)
    for node in (await rig.seen(cluster)).nodes:
        if node.compute_class is PREEMPTIBLE:
            rig.world.run_pods(cluster, node.name, 1, behaviour, 300, volumes=volumes)
    await rig.sim.run_for(30)
    await rig.order()
    (node,) = [one for one in (await rig.seen(cluster)).nodes if one.phase is Phase.DRAINING]
    return cluster, node


async def test_an_emptied_node_leaves_while_its_machine_may_run(rig: Rig, told: Told) -> None:
    await _taken(rig, Obeys(10))
    await rig.sim.run_for(60)
    assert told.words == [(False, True)]


async def test_one_with_pods_left_leaves_when_its_machine_is_off(rig: Rig, told: Told) -> None:
    await _taken(rig, IgnoresSigterm(), Volume(lingers_s=None))
    await rig.sim.run_for(330)
    assert told.words
    assert set(told.words) == {(True, True)}


async def test_patience_ends_with_the_limit(rig: Rig, told: Told) -> None:
    told.gone = False
    _, node = await _taken(rig, Obeys(10))
    await rig.sim.run_for(60 + rig.sim.settings.detach_limit_s)
    assert told.words[0] == (False, True)
    assert (False, False) in told.words
    assert rig.world.facts(what=What.POWER_OFF, node_uid=node.uid)


async def test_a_fault_of_ours_keeps_no_host(rig: Rig) -> None:
    _, node = await _taken(rig, Obeys(10))
    rig.flaky.strike_verb("conclude", ZeroDivisionError())
    rig.flaky.strike_verb("remove", *[ZeroDivisionError()] * 200)
    for _ in range(60 + rig.sim.settings.detach_limit_s):
        await rig.sim.run_for(1)
        (row,) = await rig.stored("nodes", "uid = :uid", uid=node.uid)
        if row["phase"] == "REMOVED":
            break
    else:
        pytest.fail("its host did not come back")


async def test_a_pod_that_comes_at_the_last_moment_is_told_and_not_forced(rig: Rig) -> None:
    cluster, node = await _taken(rig, Obeys(10))
    rig.wait(11)
    while "leaving" not in (sentence := " ".join(await rig.visit())):
        rig.wait(5)
        assert "waiting" in sentence or not sentence
    rig.world.run_pods(cluster, node.name, 1, Obeys(4), 60, "late", tolerates_everything=True)
    await rig.sim.run_for(120)
    told = rig.world.facts(what=What.SIGTERM, node_uid=node.uid)
    assert [fact.pod.startswith("late") for fact in told] == [False, True]
    assert told[1].given_s == 60
    assert rig.world.violations == []
    assert node.uid not in {view.uid for view in rig.world.nodes(cluster)}
