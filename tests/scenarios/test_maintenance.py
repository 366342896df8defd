"""The operator works on hosts: whoever is on one is told or replaced first, and nobody gets it meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.playground.behaviours import KubeletDoublesGrace, Obeys, StopUnconfirmed
from tests.scenarios.conftest import Begin
from tests.scenarios.story import GPUS, JOINED_BY_S, MINUTE, Story, after, left_at

WINDOW_S = 300


async def test_a_free_host_is_held_at_once_and_lent_to_nobody_until_it_is_returned(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    (free,) = [host.name for host in await story.hosts() if host.bucket == "free"]
    report = await story.drains(free, "new cables")
    assert report.maintenance is not None
    assert (report.maintenance.state, report.maintenance.disturbed) == ("held", ())
    assert (report.host.bucket, report.host.state) == ("cordoned", "cordoned")
    assert report.host.state_reason == "maintenance: new cables"
    await story.passes(10 * MINUTE)
    assert not await acme.running()
    with pytest.raises(Conflict, match="out of stock"):
        await acme.changes(gpus=2 * GPUS)
    back = await story.returns(free)
    assert back.maintenance is not None
    assert (back.maintenance.state, back.maintenance.ended_how) == ("ended", "returned")
    await story.passes(JOINED_BY_S)
    assert [node.host_name for node in await acme.running()] == [free]  # it did not rest


async def test_a_preemptible_node_gets_its_five_minutes_and_the_reason(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, Obeys(100))
    noticed = story.now
    report = await story.drains(node.host_name or "", "a loud fan")
    assert report.maintenance is not None
    assert report.maintenance.state == "draining"
    assert [stay.uid for stay in report.maintenance.disturbed] == [node.uid]
    await story.passes(WINDOW_S)
    gone = await acme.node(node.uid)
    assert gone.end_reason is EndReason.PREEMPTED
    assert 100 <= after(noticed, left_at(gone)) < WINDOW_S
    (event,) = [event for event in (await acme.details()).events if event.reason == "TogetherPreempted"]
    assert "maintenance of its host: a loud fan" in event.message
    seen = await story.host(node.host_name or "")
    assert seen.maintenance is not None
    assert seen.maintenance.state == "held"
    assert [(stay.name, stay.end_reason) for stay in seen.history] == [
        (seen.host.node_name, None),
        (node.name, "preempted"),
    ]


async def test_a_standard_node_is_replaced_before_it_is_drained(given: Begin) -> None:
    story = await given(3)
    acme = await story.orders(gpus=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running_standard()
    acme.runs(node, Obeys(200))
    report = await story.drains(node.host_name or "")
    await story.passes(JOINED_BY_S)
    running = await acme.running_standard()
    assert len(running) == 1  # the new one runs while the old one still has its time
    assert [one.uid for one in await acme.draining(ComputeClass.STANDARD)] == [node.uid]
    await story.passes(WINDOW_S)
    gone = await acme.node(node.uid)
    assert gone.end_reason is EndReason.REMEDIATED
    assert story.preempted() == 0
    assert report.maintenance is not None
    assert [stay.uid for stay in report.maintenance.disturbed] == [node.uid]
    assert (await acme.reasons())["EbbtideNodeRemediated"] == 1
    assert (await acme.details()).num_gpus == GPUS


async def test_its_replacement_takes_a_preemptible_node_where_nothing_is_free(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    await story.passes(JOINED_BY_S)
    (standard,), (lent,) = await acme.running_standard(), await acme.running()
    report = await story.drains(standard.host_name or "")
    assert report.maintenance is not None
    assert [stay.uid for stay in report.maintenance.disturbed] == [standard.uid, lent.uid]
    assert story.preempted() == 1
    await story.passes(WINDOW_S + JOINED_BY_S)
    assert [node.host_name for node in await acme.running_standard()] == [lent.host_name]


async def test_a_standard_node_that_cannot_be_replaced_stays(given: Begin) -> None:
    story = await given(1)
    acme = await story.orders(gpus=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running_standard()
    with pytest.raises(Conflict, match="standard nodes are never taken") as refusal:
        await story.drains(node.host_name or "")
    assert refusal.value.code == "no_replacement"
    story.look()
    assert [one.uid for one in await acme.running_standard()] == [node.uid]
    assert (await story.host(node.host_name or "")).maintenance is None
    assert "cordoned" not in (await story.pool()).counts


async def test_a_dry_run_says_who_would_be_disturbed_and_disturbs_nobody(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    await story.passes(JOINED_BY_S)
    (standard,), (lent,) = await acme.running_standard(), await acme.running()
    before = story.watch.ask("SELECT uid, phase FROM nodes ORDER BY no")
    report = await story.drains(standard.host_name or "", dry_run=True)
    assert report.dry_run
    assert report.maintenance is not None
    assert [stay.name for stay in report.maintenance.disturbed] == [standard.name, lent.name]
    await story.passes(MINUTE)
    assert story.watch.ask("SELECT uid, phase FROM nodes ORDER BY no") == before
    assert (await story.host(standard.host_name or "")).maintenance is None


async def test_a_host_that_is_promised_is_made_good_elsewhere_or_kept(given: Begin) -> None:
    """A claim waits for a node's host. Working on that host takes the other node; the last one stays."""
    story = await given(3)
    acme = await story.orders(target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running():
        acme.runs(node, Obeys(250))
    await story.claims(1, "order-1")
    (leaving,) = await acme.draining()
    (staying,) = await acme.running()
    report = await story.drains(leaving.host_name or "")
    assert report.maintenance is not None
    assert [stay.uid for stay in report.maintenance.disturbed] == [staying.uid]
    with pytest.raises(Conflict, match="is promised to a claim"):
        await story.drains(staying.host_name or "")
    await story.passes(WINDOW_S + MINUTE)
    assert (await story.claim("order-1")).given == (staying.host_name,)
    assert (await story.host(leaving.host_name or "")).host.bucket == "cordoned"


async def test_a_host_of_another_system_is_left_to_it(given: Begin) -> None:
    story = await given(1)
    claim = await story.claims(1, "order-1", "the web shop")
    (host,) = claim.given
    with pytest.raises(Conflict, match="ebbtide fleet return") as refusal:
        await story.drains(host)
    assert refusal.value.code == "host_claimed"
    await story.gives_back("order-1")
    await story.drains(host)  # it leaves, and is held then
    await story.passes(MINUTE)
    held = (await story.host(host)).maintenance
    assert held is not None
    assert held.state == "held"


async def test_called_off_while_it_drains_the_notice_stands_and_the_host_comes_back(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    acme.runs(node, KubeletDoublesGrace())
    await story.drains(node.host_name or "")
    await story.passes(30)
    report = await story.returns(node.host_name or "")
    assert report.host.bucket == "draining"
    assert report.host.state == "available"
    await story.passes(WINDOW_S + 2 * JOINED_BY_S)
    assert (await acme.node(node.uid)).end_reason is EndReason.PREEMPTED
    assert [one.host_name for one in await acme.running()] == [node.host_name]


async def test_a_host_that_does_not_let_go_is_waited_for(given: Begin) -> None:
    story = await given(2)
    acme = await story.orders(target=GPUS)
    await story.passes(JOINED_BY_S)
    (node,) = await acme.running()
    story.world.set_behaviour(StopUnconfirmed(10), host=node.host_name or "")
    await story.drains(node.host_name or "")
    await story.passes(MINUTE)
    report = await story.host(node.host_name or "")
    assert report.maintenance is not None
    assert report.maintenance.state == "draining"
    assert report.history[0].phase == Phase.REMOVING
    assert "stop" in (report.history[0].outcome or "")
    await story.passes(20 * MINUTE)
    held = (await story.host(node.host_name or "")).maintenance
    assert held is not None
    assert held.state == "held"


async def test_asked_again_it_only_takes_the_new_reason(given: Begin) -> None:
    story = await given(1)
    (host,) = [host.name for host in await story.hosts()]
    await story.drains(host, "fan 2")
    hosts, operator = story.sim.system.services.hosts, await story.operator()
    until = story.now + timedelta(hours=2)
    for _ in range(2):
        report = await hosts.drain(operator, host, "fan 2 and 3", until)
        assert report.host.state_reason == f"maintenance: fan 2 and 3 (until {until:%Y-%m-%dT%H:%M:%SZ})"
    assert len(story.watch.ask("SELECT 1 FROM maintenances")) == 1
    entries = await story.sim.system.services.audit.read(operator, limit=5)
    assert [entry.action for entry in entries][:3] == ["host.drain", "host.drain", "fleet.apply"]
    await story.returns(host)
    assert (await story.returns(host)).host.state == "available"  # as harmless


async def test_what_is_in_maintenance_is_neither_cordoned_nor_uncordoned(given: Begin) -> None:
    story = await given(1)
    fleet, operator = story.sim.system.services.fleet, await story.operator()
    (host,) = [host.name for host in await story.hosts()]
    await story.drains(host)
    for cordoned in (True, False):
        with pytest.raises(Conflict, match="ebbtide fleet hosts return"):
            await fleet.set_cordon(operator, host, cordoned=cordoned)
    await story.returns(host)
    await story.passes(MINUTE)
    await fleet.set_cordon(operator, host, cordoned=True)
    with pytest.raises(Conflict, match="ebbtide fleet hosts uncordon"):
        await story.returns(host)


async def test_a_reason_is_needed_and_an_end_that_is_to_come(given: Begin) -> None:
    story = await given(1)
    hosts, operator = story.sim.system.services.hosts, await story.operator()
    (host,) = [host.name for host in await story.hosts()]
    with pytest.raises(BadInput, match="reason"):
        await story.drains(host, " ")
    with pytest.raises(BadInput, match="in the past"):
        await hosts.drain(operator, host, "x", story.now)
    with pytest.raises(NotFound):
        await story.drains("nowhere")


async def test_both_hosts_of_a_cluster_at_once_and_the_process_dies(given: Begin) -> None:
    """Nobody looks for a while in the middle of it: what was promised is there in the end."""
    story: Story = await given(4)
    acme = await story.orders(gpus=2 * GPUS, target=2 * GPUS)
    await story.passes(JOINED_BY_S)
    for node in await acme.running_standard():
        await story.drains(node.host_name or "")
    await story.passes(20)
    await story.dies()
    story.nobody_works(100)
    await story.starts()
    await story.passes(2 * WINDOW_S)
    assert len(await acme.running_standard()) == 2
    assert not await acme.running()
    assert (await story.pool()).counts["cordoned"] == 2
