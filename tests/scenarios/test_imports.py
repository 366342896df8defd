"""An imported cluster: its own nodes are never touched, ours come and go, and at the end we leave nothing."""

from __future__ import annotations

import pytest

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.playground.behaviours import Obeys
from ebbtide.services.details import ClusterChange, ClusterDetails, ImportChange, ImportOrder, Replay, Role
from ebbtide.services.imports import check_selector
from tests.scenarios.conftest import Begin
from tests.scenarios.imported import OWN, a_kubeconfig, imported, imports
from tests.scenarios.story import GPU_TYPE, GPUS, JOINED_BY_S, MINUTE, REGION, STANDARD


def problem(details: ClusterDetails) -> str | None:
    assert details.imported is not None
    return details.imported.problem


async def test_it_is_ready_when_its_nodes_were_seen(given: Begin) -> None:
    story = await given(hosts=4)
    reef = await imports(story, target=16)
    first = await reef.details()
    assert first.phase is ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES
    assert (first.num_gpus, first.kubeconfig, first.desired_preemptible_gpus) == (0, None, 16)
    await story.passes(MINUTE)
    waiting = await reef.details()
    assert "no API server answers" in (problem(waiting) or "")
    assert not waiting.control_plane_ready
    assert await story.free_hosts() == 4  # no host is lent to a cluster that nobody has seen
    why = await story.sim.system.services.why.target(await story.operator(), reef.id)
    assert "no API server answers" in (why.reason or "")
    story.world.stand_up(reef.id, OWN)
    await story.passes(2 * MINUTE)
    ready = await reef.details()
    assert (ready.phase, ready.num_gpus, problem(ready)) == (ClusterPhase.READY, 16, None)
    assert ready.kubeconfig is None
    assert {node.name for node in await reef.running(STANDARD)} == set(OWN)
    assert len(await reef.running()) == 2
    assert await story.free_hosts() == 2  # its own nodes hold none of ours


async def test_its_own_nodes_come_and_go_as_they_like(given: Begin) -> None:
    story = await given(hosts=1)
    reef = await imported(story)
    story.world.stand_up(reef.id, {"old-a": 8})
    await story.passes(2 * MINUTE)
    assert (await reef.details()).num_gpus == 8
    story.world.stand_up(reef.id, {})
    await story.passes(2 * MINUTE)
    left = await reef.details()
    assert "no node of the cluster has the labels pool=gpu" in (problem(left) or "")
    assert left.num_gpus == 8  # as last seen
    assert left.phase is ClusterPhase.READY


async def test_only_the_target_can_be_changed(given: Begin) -> None:
    story = await given(hosts=4)
    reef = await imported(story)
    with pytest.raises(BadInput, match="num_gpus of an imported cluster is what stands in it"):
        await reef.changes(gpus=24)
    with pytest.raises(BadInput, match="multiple of 8"):
        await reef.changes(target=12)
    changed = await reef.changes(gpus=16, target=24)  # a client may send back what it was told
    assert (changed.num_gpus, changed.desired_preemptible_gpus) == (16, 24)
    await story.passes(JOINED_BY_S + MINUTE)
    assert len(await reef.running()) == 3
    await reef.changes(target=8)
    await story.passes(MINUTE)
    assert len(await reef.running()) == 1
    assert len(await reef.running(STANDARD)) == 2


async def test_standard_demand_takes_its_preemptible_nodes_and_never_its_own(given: Begin) -> None:
    story = await given(hosts=2)
    reef = await imported(story, target=16)
    (one, other) = await reef.running()
    reef.runs(one, Obeys(20))
    reef.runs(other, Obeys(20))
    await story.orders("globex", "first", gpus=16)
    await story.passes(2 * MINUTE)
    assert await reef.running() == []
    assert len(await reef.running(STANDARD)) == 2
    assert {node.end_reason for node in await reef.gone()} == {EndReason.PREEMPTED}
    assert (await reef.reasons())["TogetherPreempted"] == 2


async def test_only_its_preemptible_time_is_billed(given: Begin) -> None:
    story = await given(hosts=1)
    reef = await imported(story, target=8)
    await story.passes(10 * MINUTE)
    await reef.changes(target=0)
    await story.passes(2 * MINUTE)
    lines = await story.usage()
    assert {line.compute_class for line in lines} == {"preemptible"}
    assert 0 < sum(line.gpu_seconds for line in lines) < 14 * MINUTE * GPUS


async def test_delete_detaches(given: Begin) -> None:
    """Preemptible nodes drain, with their whole window; the cluster and its own nodes stay."""
    story = await given(hosts=2)
    reef = await imported(story, target=16)
    (busy, idle) = await reef.running()
    reef.runs(busy, Obeys(90), grace_s=200)
    await reef.is_deleted()
    going = await reef.details()
    assert going.phase is ClusterPhase.DELETING
    assert {node.uid for node in await reef.draining()} == {busy.uid, idle.uid}
    await story.passes(60)
    assert [node.uid for node in await reef.draining()] == [busy.uid]  # its pod is given its time
    await story.passes(2 * MINUTE)
    with pytest.raises(NotFound):
        await reef.details()
    assert await story.free_hosts() == 2
    assert story.world.nodes(reef.id) == ()
    assert story.world.standard(reef.id) == OWN
    rows = story.watch.ask("SELECT driver_kubeconfig, imported FROM clusters WHERE id = %s", reef.id)
    assert [(row["driver_kubeconfig"], row["imported"]) for row in rows] == [(None, True)]
    reasons = story.watch.ask("SELECT DISTINCT end_reason FROM nodes WHERE cluster_id = %s", reef.id)
    assert [row["end_reason"] for row in reasons] == ["scaled_down"]


async def test_one_that_never_answered_is_detached_at_once(given: Begin) -> None:
    story = await given(hosts=1)
    reef = await imports(story, target=8)
    await story.passes(10)
    await reef.is_deleted()
    await story.passes(5)
    with pytest.raises(NotFound):
        await reef.details()
    assert story.lent() == 0


async def test_one_that_does_not_answer_any_more_gives_its_hosts_back(given: Begin) -> None:
    story = await given(hosts=2)
    reef = await imported(story, target=16)
    reef.runs((await reef.running())[0])
    story.world.unreachable(reef.id, story.now, story.now.replace(year=story.now.year + 1))
    await reef.is_deleted()
    await story.passes(30 * MINUTE)
    assert await story.free_hosts() == 2
    with pytest.raises(NotFound):
        await reef.details()


async def test_who_may_and_what_is_refused(given: Begin) -> None:
    story = await given(hosts=1)
    await imports(story)
    with pytest.raises(Conflict, match="imported already, as reef"):
        await imports(story, name="again")
    with pytest.raises(BadInput, match="simulated: its machines can join no real cluster"):
        await imports(story, server="https://k8s.example:6443", name="real")
    with pytest.raises(BadInput, match="label selector"):
        await imports(story, server="https://other.playground.invalid", selector=" ")
    for role in (Role.MEMBER, Role.ADMIN):
        tenant = await story.caller("acme", role)
        order = ImportOrder("x", REGION, GPU_TYPE, a_kubeconfig(), "a=b")
        with pytest.raises(Forbidden):
            await story.sim.system.services.imports.create(tenant, order, Replay("x"))


async def test_renewing_looks_again_at_once(given: Begin) -> None:
    story = await given(hosts=1)
    reef = await imported(story)
    operator = await story.operator()
    services = story.sim.system.services
    change = ImportChange(a_kubeconfig("https://moved.playground.invalid"), "pool in (a, b),!spot")
    renewed = await services.imports.renew(operator, reef.id, change)
    assert renewed.imported is not None
    assert renewed.imported.standard_selector == "pool in (a, b),!spot"
    entries = await services.audit.read(operator)
    assert [entry.action for entry in entries[:2]] == ["cluster.renew", "cluster.import"]
    assert (entries[0].after or {})["server"] == "https://moved.playground.invalid"
    assert "token" not in str([entry.after for entry in entries])
    plain = await story.orders("acme", "plain")
    with pytest.raises(NotFound, match="no imported cluster"):
        await services.imports.renew(operator, plain.id, change)
    with pytest.raises(Forbidden):
        await services.imports.renew(await story.caller("acme", Role.ADMIN), reef.id, change)


async def test_the_same_request_sent_again_is_the_same_import(given: Begin) -> None:
    story = await given(hosts=1)
    first = await imports(story)
    operator = await story.operator()
    project = (await story.caller("acme")).project_id
    order = ImportOrder("reef", REGION, GPU_TYPE, a_kubeconfig(), "pool=gpu", project_id=project)
    replay = Replay("same", token="once")
    with pytest.raises(Conflict):
        await story.sim.system.services.imports.create(operator, order, replay)
    again = ImportOrder(
        "other", REGION, GPU_TYPE, a_kubeconfig("https://other.playground.invalid"), "pool=gpu"
    )
    second = await story.sim.system.services.imports.create(operator, again, replay)
    third = await story.sim.system.services.imports.create(operator, again, replay)
    assert second.id == third.id != first.id


@pytest.mark.parametrize(
    ("selector", "good"),
    [
        ("pool=gpu", True),
        ("node-role.kubernetes.io/gpu", True),
        ("a==b,c!=d", True),
        ("!spot", True),
        ("pool in (a, b)", True),
        ("pool notin (a,b),x", True),
        ("", False),
        ("a b", False),
        ("a=b&limit=1", False),
        ("pool in a", False),
        ("x" * 600, False),
    ],
)
def test_selectors(selector: str, good: bool) -> None:
    if good:
        check_selector(selector)
    else:
        with pytest.raises(BadInput, match="label selector"):
            check_selector(selector)


async def test_an_update_that_says_nothing_changes_nothing(given: Begin) -> None:
    story = await given(hosts=1)
    reef = await imported(story, target=8)
    caller = await story.caller("acme")
    same = await story.sim.system.services.clusters.update(caller, reef.id, ClusterChange())
    assert same.desired_preemptible_gpus == 8
    assert [node.phase for node in await reef.nodes()] == [Phase.RUNNING]
