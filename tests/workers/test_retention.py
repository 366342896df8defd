"""What nobody needs any more goes; what invoices rest on stays."""

from __future__ import annotations

from ebbtide.core.nodes import Phase
from ebbtide.services.details import ClusterChange, Role
from ebbtide.store.visits import Loop
from tests.workers.conftest import Rig


async def test_what_is_old_goes_and_the_ledger_stays(rig: Rig) -> None:
    cluster = await rig.running(gpus=16, target=8)
    caller = await rig.caller()
    await rig.sim.system.services.clusters.update(caller, cluster, ClusterChange(8, 0))
    await rig.sim.run_for(60)
    removed = await rig.stored("nodes", "phase = 'REMOVED'")
    assert len(removed) == 2
    rig.wait(80 * 3_600)
    (sentence,) = await rig.visit(Loop.RETENTION)
    assert sentence.startswith("1 create requests, 0 worker runs, 2 visits of removed nodes, 0 ")
    assert len(await rig.stored("nodes")) == 3
    assert len(await rig.stored("intervals")) == 3
    assert len(await rig.stored("lifecycle_events")) == 5


async def test_a_claim_whose_last_node_is_gone_is_not_in_force_any_more(rig: Rig) -> None:
    """Each replacement of a lost node is a claim; they do not pile up."""
    cluster = await rig.running()
    for _ in range(2):
        rig.world.vanish((await rig.seen(cluster)).nodes[0].host_name or "")
        await rig.sim.run_for(80)
    assert [node.phase for node in (await rig.seen(cluster)).nodes] == [Phase.RUNNING]
    rig.wait(3_600)
    (sentence,) = await rig.visit(Loop.RETENTION)
    ended = await rig.stored("claims", "state = 'ended'")
    assert sentence.endswith(f"{len(ended)} empty claims ended")
    assert len(ended) >= 2
    operator = await rig.sim.caller("operations", role=Role.OPERATOR)
    (claim,) = await rig.sim.system.services.claims.list(operator)
    assert len(claim.given) == 1


async def test_the_audit_log_goes_as_far_back_as_the_operator_wants(rig: Rig) -> None:
    operator = await rig.sim.caller("operations", role=Role.OPERATOR)
    services = rig.sim.system.services
    await services.access.create_project(operator, "old")
    rig.wait(40 * 86_400)
    await rig.visit(Loop.RETENTION)
    assert [row["action"] for row in await rig.stored("audit_log")] == ["fleet.apply", "project.create"]
    await services.settings.change(operator, {"audit_kept_days": 30})
    rig.wait(3_600)
    (sentence,) = await rig.visit(Loop.RETENTION)
    assert "2 audit entries" in sentence
    assert [row["action"] for row in await rig.stored("audit_log")] == ["settings.update"]
