"""A remediation's visits, one at a time: what each does, and the sentence that it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.core.nodes import ComputeClass, Phase
from ebbtide.core.remediations import Mode, Review, State
from ebbtide.playground.behaviours import Dawdles
from ebbtide.providers.base import Transient
from ebbtide.services.details import RemediationDetails, Replay, Role
from ebbtide.services.remediations import Asked
from ebbtide.store.visits import Loop, Visit
from ebbtide.workers.outcome import Outcome
from ebbtide.workers.restart import Restarts
from tests.builders import a_fleet, a_pool
from tests.workers.conftest import Make, Rig


async def asked(rig: Rig, cluster_id: str, mode: Mode) -> RemediationDetails:
    node = await rig.node(cluster_id)
    return await rig.sim.system.services.remediations.create(
        await rig.caller(), cluster_id, node.instance_id or "", mode, None, Replay("r")
    )


async def state(rig: Rig, one: RemediationDetails) -> State:
    found = await rig.sim.system.services.remediations.retrieve(
        await rig.caller(), one.cluster_id, "-", one.id
    )
    return found.state


async def test_a_replacement_is_begun_in_one_step_and_then_watched(rig: Rig) -> None:
    cluster_id = await rig.running()
    node = await rig.node(cluster_id)
    one = await asked(rig, cluster_id, Mode.HOST_AWARE)
    said = await rig.one(Loop.REMEDIATION)
    assert said.startswith(f"{node.name} drains until ")
    (row,) = await rig.stored("hosts", "name = :name", name=node.host_name)
    assert (row["state"], row["state_reason"]) == ("cordoned", f"remediation {one.id} of {node.name}")
    (stored,) = await rig.stored("nodes", "uid = :uid", uid=node.uid)
    assert (stored["phase"], stored["drain_kind"]) == (Phase.DRAINING, "release")
    assert await rig.visit(Loop.REMEDIATION) == [], "others are at it"
    rig.wait(5)
    assert await rig.one(Loop.REMEDIATION) == f"{node.name} drains"
    await rig.sim.run_for(60)
    assert await state(rig, one) is State.SUCCEEDED


async def test_a_replacement_is_promised_while_the_old_node_still_drains(rig: Rig) -> None:
    cluster_id = await rig.running()
    node = await rig.node(cluster_id)
    rig.world.run_pods(cluster_id, node.name, grace_s=250, behaviour=Dawdles(240))
    await asked(rig, cluster_id, Mode.VM_ONLY)
    await rig.sim.run_for(60)
    phases = sorted(
        one.phase for one in (await rig.seen(cluster_id)).nodes if one.compute_class is ComputeClass.STANDARD
    )
    assert phases == [Phase.DRAINING, Phase.RUNNING]


async def test_a_restart_tells_pods_waits_for_them_and_watches_the_machine(rig: Rig) -> None:
    cluster_id = await rig.running()
    node = await rig.node(cluster_id)
    rig.world.run_pods(cluster_id, node.name, grace_s=20, behaviour=Dawdles(10))
    one = await asked(rig, cluster_id, Mode.REBOOT_VM)
    assert (await rig.one(Loop.REMEDIATION)).startswith(f"{node.name} is emptied until ")
    assert await rig.one(Loop.REMEDIATION) == "waiting for 1 pod to leave"
    (seen,) = rig.world.nodes(cluster_id)
    assert (seen.cordoned, seen.ready) == (True, True)
    rig.wait(12)
    assert await rig.one(Loop.REMEDIATION) == "the machine goes down"
    (stored,) = await rig.stored("nodes", "uid = :uid", uid=node.uid)
    assert stored["restart_until"] is not None
    assert await rig.one(Loop.REMEDIATION) == "the machine is starting"
    assert (await rig.node(cluster_id)).phase is Phase.RUNNING
    await rig.sim.run_for(90)
    assert await state(rig, one) is State.SUCCEEDED
    (stored,) = await rig.stored("nodes", "uid = :uid", uid=node.uid)
    assert (stored["restart_until"], stored["phase"]) == (None, Phase.RUNNING)


async def test_why_a_restart_failed_is_the_operators_to_read(rig: Rig) -> None:
    """What the operator's programs say, and what hosts are called, is no tenant's business."""
    cluster_id = await rig.running()
    one = await asked(rig, cluster_id, Mode.REBOOT_VM)
    for _ in range(2):
        await rig.one(Loop.REMEDIATION)
    rig.flaky.strike_verb("reboot", Transient("the bmc of rack-7 refused root:hunter2"))
    assert "rack-7" in await rig.one(Loop.REMEDIATION)
    services, tenant = rig.sim.system.services, await rig.caller()
    operator = await rig.sim.caller("ops", Role.OPERATOR)
    neutral = "the last step did not succeed; it is tried again"
    (page,) = (await services.remediations.list(tenant, cluster_id, "-", Asked())).items
    (node,) = (await rig.seen(cluster_id)).nodes
    assert page.outcome == neutral
    assert (await services.remediations.retrieve(tenant, cluster_id, "-", one.id)).outcome == neutral
    assert node.remediation is not None
    assert node.remediation.outcome == neutral
    told = (await services.remediations.retrieve(operator, cluster_id, "-", one.id)).outcome
    assert "rack-7" in (told or "")


async def test_a_budget_is_kept_until_the_pods_grace_must_begin(make: Make) -> None:
    rig = await make(drain_window_s=60)
    cluster_id = await rig.running()
    node = await rig.node(cluster_id)
    rig.world.run_pods(cluster_id, node.name, grace_s=20, behaviour=Dawdles(10), name="web")
    rig.world.budget(cluster_id, "keep-web", "web")
    await asked(rig, cluster_id, Mode.REBOOT_VM)
    await rig.one(Loop.REMEDIATION)
    said = await rig.one(Loop.REMEDIATION)
    assert said.startswith("waiting for 1 pod to leave; "), said
    rig.wait(29)
    await rig.one(Loop.REMEDIATION)
    (seen,) = rig.world.nodes(cluster_id)
    assert seen.workload_pods == 1
    rig.wait(2)
    await rig.one(Loop.REMEDIATION)
    rig.wait(11)
    assert await rig.one(Loop.REMEDIATION) == "the machine goes down"


async def test_a_cluster_that_does_not_answer_holds_a_restart_up_to_its_deadline(make: Make) -> None:
    rig = await make(drain_window_s=60)
    cluster_id = await rig.running()
    now = rig.sim.now
    rig.world.unreachable(cluster_id, now, now.replace(hour=now.hour + 1), ("pods",))
    await asked(rig, cluster_id, Mode.REBOOT_VM)
    await rig.one(Loop.REMEDIATION)
    assert (await rig.one(Loop.REMEDIATION)).endswith("does not answer; trying again")
    rig.wait(60)
    assert await rig.one(Loop.REMEDIATION) == "the machine goes down"


async def test_a_node_that_is_taken_just_before_its_restart_is_credited_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order comes while the cluster is asked whether the node is empty: its machine never goes down."""
    rig = await make(a_fleet(a_pool(2)))
    cluster_id = await rig.running(target=8)
    node = await rig.node(cluster_id, ComputeClass.PREEMPTIBLE)
    one = await rig.sim.system.services.remediations.create(
        await rig.caller(), cluster_id, node.instance_id or "", Mode.REBOOT_VM, None, Replay("r")
    )
    await rig.one(Loop.REMEDIATION)
    ask = Restarts._ask_pods

    async def taken_meanwhile(restarts: Restarts, visit: Visit, *rest: Any) -> Outcome | None:
        answer = await ask(restarts, visit, *rest)
        await rig.order()
        return answer

    monkeypatch.setattr(Restarts, "_ask_pods", taken_meanwhile)
    assert await rig.one(Loop.REMEDIATION) == "the node moved on meanwhile; looking again"
    await rig.sim.run_for(120)
    assert await state(rig, one) is State.AUTO_RESOLVED
    assert await rig.stored("ledger_entries") == []


async def test_cancelled_between_the_look_and_the_beginning(rig: Rig) -> None:
    cluster_id = await rig.running()
    one = await asked(rig, cluster_id, Mode.VM_ONLY)
    await rig.sim.system.services.remediations.review(
        await rig.caller(), cluster_id, "-", one.id, Review.CANCEL
    )
    assert await rig.one(Loop.REMEDIATION) == "over: CANCELLED"
    assert await rig.phase(cluster_id) is Phase.RUNNING


async def test_waiting_for_approval_says_so(make: Make) -> None:
    rig = await make(remediation_approval="VM_ONLY")  # type: ignore[arg-type]  # a setting that is a text
    cluster_id = await rig.running()
    await asked(rig, cluster_id, Mode.VM_ONLY)
    assert await rig.one(Loop.REMEDIATION) == "waiting for approval"
