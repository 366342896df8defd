"""A cluster's kubeconfig is what its provider says now, also after the control plane came back elsewhere."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.playground import clusters
from ebbtide.playground.state import Cluster
from ebbtide.services.details import Role
from ebbtide.store import visits
from ebbtide.store.visits import Loop
from tests.workers.conftest import Rig


async def _wake(rig: Rig, cluster_id: str) -> None:
    """As a provider does whose control plane is up."""
    async with rig.sim.system.db.transaction() as tx:
        await visits.hint(tx, Loop.CLUSTER, [cluster_id])


async def test_a_new_way_in_is_taken_when_the_provider_tells(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await rig.running()
    await _wake(rig, cluster)
    assert await rig.one(Loop.CLUSTER) == "the cluster is READY"
    before = (await rig.seen(cluster)).kubeconfig
    original = clusters.kubeconfig

    def elsewhere(one: Cluster) -> str:
        return original(one).replace("server: https://", "server: https://elsewhere.")

    monkeypatch.setattr(clusters, "kubeconfig", elsewhere)
    await _wake(rig, cluster)
    assert await rig.one(Loop.CLUSTER) == "the cluster is READY; its kubeconfig has changed"
    after = (await rig.seen(cluster)).kubeconfig
    assert before
    assert after == before.replace("server: https://", "server: https://elsewhere.")
    assert after != before
    await _wake(rig, cluster)
    assert await rig.one(Loop.CLUSTER) == "the cluster is READY"


async def test_a_provider_that_does_not_answer_holds_up_no_phase(rig: Rig) -> None:
    cluster = await rig.running()
    now = rig.sim.system.db.clock.now()
    rig.world.provider_unreachable(now, now + timedelta(seconds=30))
    await _wake(rig, cluster)
    first = await rig.one(Loop.CLUSTER)
    assert first.startswith("the cluster is READY; ")
    rig.wait(60)
    assert await rig.visit(Loop.CLUSTER) == ["the cluster is READY"]


async def test_whoever_asks_hears_why_a_control_plane_is_not_there(rig: Rig) -> None:
    cluster = await rig.cluster()
    now = rig.sim.system.db.clock.now()
    rig.world.provider_unreachable(now, now + timedelta(seconds=30))
    await rig.visit(Loop.CLUSTER)
    told = await rig.sim.system.services.why.target(await rig.sim.caller("ops", Role.OPERATOR), cluster)
    assert told.sentences[0].startswith("Its control plane is not ready, at ")
    assert "trying again" in told.sentences[0]
