"""Remediations from the request to their end, over a world that loses replies and a process that dies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.core.remediations import Mode, Review, State, Trigger
from ebbtide.errors import BadInput, Conflict, Forbidden, NotFound
from ebbtide.playground.behaviours import Dawdles, RestartHangs, RestartReplyLost
from ebbtide.playground.facts import What
from ebbtide.playground.flaky import Flaky
from ebbtide.services.details import (
    Caller,
    ClusterChange,
    ClusterDetails,
    ClusterOrder,
    NodeDetails,
    RemediationDetails,
    Replay,
    Role,
)
from ebbtide.services.fleet_file import FleetFile, parse
from ebbtide.services.remediations import Asked
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation
from tests.scenarios.watch import Watch

CALM = replace(Settings(), observe_every_s=20, meter_every_s=600, leaks_every_s=600)


def fleet(hosts: int) -> FleetFile:
    return parse(f"""
regions:
  eu-1: {{}}
pools:
  eu-h100:
    region: eu-1
    gpu_type: H100_SXM
    price_per_gpu_hour: 3.60
    boot_s: 10
    turn_over_s: 5
    blocks: {{b1: {hosts}}}
""")


class Killed(BaseException):
    """The process dies at this line."""


@dataclass
class Ward:
    """A cluster whose machines are sick."""

    sim: Simulation
    watch: Watch
    tenant: Caller
    operator: Caller
    cluster_id: str
    requests: int = 0
    deaths: int = 0

    async def passes(self, seconds: float) -> None:
        end = self.sim.now.timestamp() + seconds
        while self.sim.now.timestamp() < end:
            try:
                await self.sim.run_for(end - self.sim.now.timestamp())
            except Killed:
                self.deaths += 1
                await self.sim.restart()

    async def see(self) -> ClusterDetails:
        return await self.sim.system.services.clusters.retrieve(self.tenant, self.cluster_id)

    async def nodes(self, kind: ComputeClass = ComputeClass.STANDARD) -> list[NodeDetails]:
        return [node for node in (await self.see()).nodes if node.compute_class is kind]

    async def asks(
        self, node: NodeDetails, mode: Mode, by: Caller | None = None, reason: str | None = "it is sick"
    ) -> RemediationDetails:
        self.requests += 1
        return await self.sim.system.services.remediations.create(
            by or self.tenant,
            self.cluster_id,
            node.instance_id or "",
            mode,
            reason,
            Replay(f"r-{self.requests}"),
        )

    async def state(self, asked: RemediationDetails) -> RemediationDetails:
        return await self.sim.system.services.remediations.retrieve(
            self.tenant, self.cluster_id, "-", asked.id
        )

    async def reviews(
        self, asked: RemediationDetails, review: Review, by: Caller, mode: Mode | None = None
    ) -> RemediationDetails:
        return await self.sim.system.services.remediations.review(
            by, self.cluster_id, asked.instance_id, asked.id, review, comment="seen", mode=mode
        )

    async def listed(self, **asked: object) -> list[str]:
        page = await self.sim.system.services.remediations.list(
            self.tenant,
            self.cluster_id,
            "-",
            Asked(**asked),  # type: ignore[arg-type]  # a test's own fields
        )
        return [each.id for each in page.items]

    async def uncordons(self, node: NodeDetails) -> None:
        await self.sim.system.services.fleet.set_cordon(self.operator, node.host_name or "", cordoned=False)

    async def host(self, name: str | None) -> str:
        hosts = await self.sim.system.services.fleet.hosts(self.operator)
        return next(each.state for each in hosts if each.name == name)


Admit = Callable[..., Awaitable[Ward]]


@pytest.fixture
async def admit(database_url: str) -> AsyncIterator[Admit]:
    wards: list[Ward] = []

    async def begin(
        hosts: int = 4,
        *,
        gpus: int = 8,
        target: int = 0,
        settings: Settings = CALM,
        flaky: Flaky | None = None,
    ) -> Ward:
        wrap = flaky.wrap if flaky else (lambda plain: plain)
        sim = Simulation(database_url, settings=settings, provider=wrap, driver=wrap, inline=True)
        watch = Watch(database_url, sim.world)
        await sim.begin(fleet(hosts))
        sim.after_step.append(lambda: watch.look(sim.now))
        tenant, operator = await sim.caller("acme"), await sim.caller("ops", Role.OPERATOR)
        order = ClusterOrder("demo", "eu-1", "H100_SXM", gpus, num_preemptible_gpus=target)
        made = await sim.system.services.clusters.create(tenant, order, Replay("c"))
        ward = Ward(sim, watch, tenant, operator, made.id)
        await ward.passes(60)
        assert (await ward.see()).phase is ClusterPhase.READY
        wards.append(ward)
        return ward

    yield begin
    for ward in wards:
        ward.watch.look(ward.sim.now)
        ward.watch.close()
        assert ward.sim.world.violations == []
        await ward.sim.system.close()


async def test_a_new_machine_anywhere(admit: Admit) -> None:
    ward = await admit()
    (node,) = await ward.nodes()
    ward.sim.world.run_pods(ward.cluster_id, node.name, grace_s=20, behaviour=Dawdles(15))
    asked = await ward.asks(node, Mode.VM_ONLY)
    assert (asked.state, asked.trigger) == (State.PENDING, Trigger.MANUAL)
    await ward.passes(5)
    assert (await ward.state(asked)).state is State.RUNNING
    assert (await ward.see()).phase is ClusterPhase.DEGRADED
    await ward.passes(120)
    done = await ward.state(asked)
    assert (done.state, done.error_message) == (State.SUCCEEDED, None)
    (new,) = await ward.nodes()
    assert (new.uid != node.uid, new.phase) == (True, Phase.RUNNING)
    seen = await ward.see()
    assert seen.phase is ClusterPhase.READY
    (old,) = seen.deleted_nodes
    assert old.end_reason is EndReason.REMEDIATED
    assert old.remediation is not None
    assert old.remediation.id == asked.id
    assert len(ward.sim.world.facts(what=What.EXITED, node_uid=node.uid)) == 1
    assert [event.reason for event in seen.events if event.node_uid == node.uid][1:] == [
        "EbbtideNodeRemediated"
    ]


async def test_in_a_full_fleet_the_old_host_serves_again(admit: Admit) -> None:
    ward = await admit(1)
    (node,) = await ward.nodes()
    asked = await ward.asks(node, Mode.VM_ONLY)
    await ward.passes(120)
    assert (await ward.state(asked)).state is State.SUCCEEDED
    assert [one.host_name for one in await ward.nodes()] == [node.host_name]


async def test_on_another_host_and_the_old_one_is_cordoned(admit: Admit) -> None:
    ward = await admit(2)
    (node,) = await ward.nodes()
    asked = await ward.asks(node, Mode.HOST_AWARE)
    await ward.passes(120)
    assert (await ward.state(asked)).state is State.SUCCEEDED
    (new,) = await ward.nodes()
    assert new.host_name != node.host_name
    assert await ward.host(node.host_name) == "cordoned"


async def test_without_another_host_it_waits_and_disturbs_nobody(admit: Admit) -> None:
    ward = await admit(1)
    (node,) = await ward.nodes()
    asked = await ward.asks(node, Mode.HOST_AWARE)
    await ward.passes(90)
    waiting = await ward.state(asked)
    assert waiting.state is State.PENDING
    assert waiting.outcome is not None
    assert waiting.outcome.startswith("waiting for another host")
    assert [one.phase for one in await ward.nodes()] == [Phase.RUNNING]
    assert await ward.host(node.host_name) == "available"
    assert (await ward.reviews(asked, Review.CANCEL, ward.tenant)).state is State.CANCELLED


async def test_a_preemptible_node_makes_way_for_a_replacement(admit: Admit) -> None:
    ward = await admit(2, target=8)
    (node,) = await ward.nodes()
    asked = await ward.asks(node, Mode.HOST_AWARE)
    await ward.passes(400)
    assert (await ward.state(asked)).state is State.SUCCEEDED
    assert len(await ward.nodes()) == 1
    assert await ward.nodes(ComputeClass.PREEMPTIBLE) == []


async def test_evicted_and_not_replaced(admit: Admit) -> None:
    ward = await admit(4, gpus=16, target=8)
    first, second = await ward.nodes()
    asked = await ward.asks(first, Mode.EVICT_WITHOUT_REPLACEMENT)
    (lent,) = await ward.nodes(ComputeClass.PREEMPTIBLE)
    also = await ward.asks(lent, Mode.EVICT_WITHOUT_REPLACEMENT)
    await ward.passes(120)
    seen = await ward.see()
    assert {(await ward.state(each)).state for each in (asked, also)} == {State.SUCCEEDED}
    assert (seen.num_gpus, seen.desired_preemptible_gpus, seen.phase) == (8, 0, ClusterPhase.READY)
    assert [node.uid for node in seen.nodes] == [second.uid]
    with pytest.raises(Conflict, match="last standard node"):
        await ward.asks(second, Mode.EVICT_WITHOUT_REPLACEMENT)


async def test_two_evictions_never_leave_a_cluster_without_a_standard_node(admit: Admit) -> None:
    ward = await admit(4, gpus=16)
    asked = [await ward.asks(node, Mode.EVICT_WITHOUT_REPLACEMENT) for node in await ward.nodes()]
    await ward.passes(120)
    ended = [await ward.state(each) for each in asked]
    assert [each.state for each in ended] == [State.SUCCEEDED, State.FAILED]
    assert "last standard node" in (ended[1].error_message or "")
    assert len(await ward.nodes()) == 1


@pytest.mark.parametrize("mode", [Mode.REBOOT_VM, Mode.HOST_POWER_CYCLE])
async def test_a_restart_keeps_the_node_and_is_credited(admit: Admit, mode: Mode) -> None:
    ward = await admit()
    (node,) = await ward.nodes()
    ward.sim.world.run_pods(ward.cluster_id, node.name, grace_s=20, behaviour=Dawdles(15), reschedule=True)
    ward.sim.world.set_behaviour(RestartReplyLost(2), node_uid=node.uid)
    asked = await ward.asks(node, mode)
    await ward.passes(200)
    done = await ward.state(asked)
    assert done.state is State.SUCCEEDED, done
    assert len(ward.sim.world.facts(what=What.RESTARTED, node_uid=node.uid)) == 1
    (same,) = await ward.nodes()
    assert (same.uid, same.host_name, same.phase) == (node.uid, node.host_name, Phase.RUNNING)
    (shown,) = ward.sim.world.nodes(ward.cluster_id)
    assert (shown.ready, shown.cordoned, shown.workload_pods) == (True, False, 1), "work came back"
    assert len(ward.sim.world.facts(what=What.EXITED, node_uid=node.uid)) == 1
    (credit,) = ward.watch.ask("SELECT gpu_seconds, microdollars, ref FROM ledger_entries")
    down = ward.sim.world.facts(what=What.RESTARTED)[0].at
    assert done.ended_at is not None
    away_s = int((done.ended_at - down).total_seconds())
    assert away_s >= (40 if mode is Mode.HOST_POWER_CYCLE else 10)
    assert credit["ref"] == f"restart/{asked.id}"
    assert abs(credit["gpu_seconds"] - away_s * 8) <= 8 * 8
    assert credit["microdollars"] == -credit["gpu_seconds"] * 1000
    (open_,) = ward.watch.ask("SELECT count(*) AS n FROM intervals WHERE end_s IS NULL")
    assert open_["n"] == 1, "billed on all the while"
    (lost,) = ward.watch.ask("SELECT count(*) AS n FROM nodes WHERE end_reason = 'lost'")
    assert lost["n"] == 0


async def test_a_machine_that_does_not_come_back_has_its_host_quarantined(admit: Admit) -> None:
    ward = await admit(settings=replace(CALM, restart_limit_s=120))
    (node,) = await ward.nodes()
    ward.sim.world.set_behaviour(RestartHangs(), node_uid=node.uid)
    asked = await ward.asks(node, Mode.REBOOT_VM)
    await ward.passes(100)
    assert (await ward.state(asked)).state is State.RUNNING
    await ward.passes(200)
    ended = await ward.state(asked)
    assert (ended.state, ended.error_message) == (
        State.QUARANTINED,
        "the machine was restarted and is not back after 120 s",
    )
    assert ended.outcome == "its host is quarantined"
    assert await ward.host(node.host_name) == "quarantined"
    (new,) = await ward.nodes()
    assert (new.host_name != node.host_name, new.phase) == (True, Phase.RUNNING)
    (billed,) = ward.watch.ask("SELECT end_s FROM intervals WHERE node_uid = %s", node.uid)
    down = ward.sim.world.facts(what=What.RESTARTED)[0].at
    assert abs(billed["end_s"] - down.timestamp()) <= 1, "not billed from then on"


async def test_a_node_that_left_before_needs_nothing(admit: Admit) -> None:
    ward = await admit(settings=replace(CALM, remediation_approval="REBOOT_VM"), target=8)
    (lent,) = await ward.nodes(ComputeClass.PREEMPTIBLE)
    held = await ward.asks(lent, Mode.REBOOT_VM)
    assert held.state is State.PENDING_APPROVAL
    change = ClusterChange(num_preemptible_gpus=0)
    await ward.sim.system.services.clusters.update(ward.tenant, ward.cluster_id, change)
    with pytest.raises(Conflict, match="only a running node"):
        await ward.asks(lent, Mode.VM_ONLY)
    await ward.passes(70)
    ended = await ward.state(held)
    assert ended.state is State.AUTO_RESOLVED
    assert "scaled_down" in (ended.error_message or "")


async def test_a_restarting_node_that_is_taken_is_not_held_up(admit: Admit) -> None:
    ward = await admit(2, target=8)
    (lent,) = await ward.nodes(ComputeClass.PREEMPTIBLE)
    ward.sim.world.set_behaviour(RestartHangs(), node_uid=lent.uid)
    asked = await ward.asks(lent, Mode.REBOOT_VM)
    await ward.passes(60)
    order = ClusterOrder("other", "eu-1", "H100_SXM", 8)
    other = await ward.sim.caller("beta")
    await ward.sim.system.services.clusters.create(other, order, Replay("o"))
    await ward.passes(60)
    assert (await ward.state(asked)).state is State.AUTO_RESOLVED
    (gone,) = (await ward.see()).deleted_nodes
    assert (gone.end_reason, gone.phase) == (EndReason.PREEMPTED, Phase.REMOVED)


@pytest.mark.parametrize("how", ["taken", "deleted", "lost"])
async def test_time_down_is_credited_when_the_node_goes_before_it_is_back(admit: Admit, how: str) -> None:
    ward = await admit(2, target=8)
    (lent,) = await ward.nodes(ComputeClass.PREEMPTIBLE)
    ward.sim.world.set_behaviour(RestartHangs(), node_uid=lent.uid)
    asked = await ward.asks(lent, Mode.REBOOT_VM)
    await ward.passes(90)
    if how == "taken":
        order = ClusterOrder("other", "eu-1", "H100_SXM", 8)
        other = await ward.sim.caller("beta")
        await ward.sim.system.services.clusters.create(other, order, Replay("o"))
    elif how == "deleted":
        await ward.sim.system.services.clusters.delete(ward.tenant, ward.cluster_id)
    else:
        ward.sim.world.vanish(lent.host_name or "")
    await ward.passes(1_200)
    down = ward.sim.world.facts(what=What.RESTARTED)[0].at
    (billed,) = ward.watch.ask("SELECT max(end_s) AS end_s FROM intervals WHERE node_uid = %s", lent.uid)
    given = ward.watch.ask("SELECT gpu_seconds, ref FROM ledger_entries WHERE node_uid = %s", lent.uid)
    down_s = max(0, billed["end_s"] - int(down.timestamp()))
    assert (down_s > 80) is (how != "lost"), "a lost node's bill ends at its last good look"
    assert [one["gpu_seconds"] for one in given] == ([down_s * 8] if down_s else [])
    assert {one["ref"] for one in given} <= {f"restart/{asked.id}"}


async def test_what_the_operator_holds_back_the_operator_reviews(admit: Admit) -> None:
    ward = await admit(settings=replace(CALM, remediation_approval="HOST_POWER_CYCLE,REBOOT_VM"))
    (node,) = await ward.nodes()
    held = await ward.asks(node, Mode.HOST_POWER_CYCLE)
    await ward.passes(90)
    assert (await ward.state(held)).state is State.PENDING_APPROVAL
    with pytest.raises(Conflict, match="not over yet"):
        await ward.asks(node, Mode.VM_ONLY)
    for review in (Review.APPROVE, Review.REJECT):
        with pytest.raises(Forbidden, match="operator"):
            await ward.reviews(held, review, ward.tenant)
    rejected = await ward.reviews(held, Review.REJECT, ward.operator)
    assert (rejected.state, rejected.review_comment) == (State.CANCELLED, "seen")
    assert rejected.reviewed_by == ward.operator.key_id
    for review in Review:
        with pytest.raises(Conflict, match="is CANCELLED"):
            await ward.reviews(held, review, ward.operator)
    second = await ward.asks(node, Mode.REBOOT_VM)
    with pytest.raises(BadInput, match="HOST_POWER_CYCLE"):
        await ward.reviews(second, Review.APPROVE, ward.operator, Mode.HOST_POWER_CYCLE)
    approved = await ward.reviews(second, Review.APPROVE, ward.operator, Mode.VM_ONLY)
    assert (approved.state, approved.mode) == (State.PENDING, Mode.VM_ONLY)
    await ward.passes(120)
    assert (await ward.state(second)).state is State.SUCCEEDED
    (new,) = await ward.nodes()
    direct = await ward.asks(new, Mode.REBOOT_VM, ward.operator)
    assert direct.state is State.PENDING
    assert await ward.listed() == [direct.id, second.id, held.id]


async def test_lists_are_filtered_ordered_and_paged(admit: Admit) -> None:
    ward = await admit(gpus=24)
    nodes = await ward.nodes()
    made = []
    for number in range(7):
        modes = list(Mode)
        asked = await ward.asks(nodes[number % 3], modes[number % 5])
        await ward.reviews(asked, Review.CANCEL, ward.tenant)
        made.append(asked)
    ids = [each.id for each in made]
    assert await ward.listed() == ids[::-1]
    assert await ward.listed(order_by="create_time") == ids
    assert await ward.listed(modes=(Mode.VM_ONLY,), order_by="create_time asc") == [ids[0], ids[5]]
    assert await ward.listed(states=(State.RUNNING,)) == []
    assert await ward.listed(states=(State.RUNNING, State.CANCELLED), triggers=(Trigger.MANUAL,)) == ids[::-1]
    assert await ward.listed(triggers=(Trigger.AUTOMATED,)) == []
    service = ward.sim.system.services.remediations
    for order in ("", "create_time", "update_time desc", "mode asc", "state", "instance_name desc"):
        token, found = "", []
        for _ in range(10):
            asked_for = Asked(order_by=order, page_size=2, page_token=token)
            page = await service.list(ward.tenant, ward.cluster_id, "-", asked_for)
            found += [each.id for each in page.items]
            token = page.next_page_token
            if not token:
                break
        assert sorted(found) == sorted(ids), order
        assert found == await ward.listed(order_by=order)
    one = nodes[0].instance_id or ""
    mine = await service.list(ward.tenant, ward.cluster_id, one, Asked())
    assert [each.id for each in mine.items] == [ids[6], ids[3], ids[0]]
    for order in ("price", "mode up", "mode asc asc", "\0"):
        with pytest.raises(BadInput, match="order_by"):
            await ward.listed(order_by=order)
    first = await service.list(ward.tenant, ward.cluster_id, "-", Asked(page_size=1))
    for token in ("nonsense", "\0", "é", "W10", first.next_page_token[:-3], first.next_page_token + "A"):
        with pytest.raises(BadInput, match="page_token"):
            await ward.listed(page_token=token)
    with pytest.raises(BadInput, match="page_token"):
        await ward.listed(page_token=first.next_page_token, order_by="mode")


async def test_whose_it_is(admit: Admit) -> None:
    ward = await admit()
    (node,) = await ward.nodes()
    asked = await ward.asks(node, Mode.HOST_AWARE)
    stranger = await ward.sim.caller("beta")
    service = ward.sim.system.services.remediations
    with pytest.raises(NotFound):
        await service.retrieve(stranger, ward.cluster_id, "-", asked.id)
    with pytest.raises(NotFound):
        await service.list(stranger, ward.cluster_id, "-", Asked())
    with pytest.raises(NotFound):
        await ward.asks(node, Mode.VM_ONLY, stranger)
    with pytest.raises(NotFound):
        await ward.reviews(asked, Review.CANCEL, stranger)
    for instance, remediation in (("another", asked.id), ("-", "nonsense"), ("-", "\0")):
        with pytest.raises(NotFound):
            await service.retrieve(ward.tenant, ward.cluster_id, instance, remediation)
    with pytest.raises(NotFound, match="no instance"):
        await service.list(ward.tenant, ward.cluster_id, "another", Asked())
    again = Replay("r-1", is_retry=True)
    twin = await service.create(
        ward.tenant, ward.cluster_id, node.instance_id or "", Mode.HOST_AWARE, "it is sick", again
    )
    assert twin.id == asked.id


@pytest.mark.parametrize("mode", [Mode.HOST_AWARE, Mode.REBOOT_VM])
async def test_killed_after_each_call_it_ends_the_same(admit: Admit, mode: Mode) -> None:
    """One ward; each remediation meets its death one call later than the one before."""
    flaky = Flaky()
    ward = await admit(6, gpus=8, settings=replace(CALM, observe_every_s=600), flaky=flaky)
    strike, calls = 0, 0
    while strike <= calls:
        (node,) = await ward.nodes()
        before, deaths = len(flaky.calls), ward.deaths
        if strike:
            flaky.strike(strike, Killed(), after=True)
        asked = await ward.asks(node, mode)
        await ward.passes(45)
        assert (await ward.state(asked)).state is State.SUCCEEDED, (await ward.state(asked)).outcome
        (new,) = await ward.nodes()
        if mode is Mode.REBOOT_VM:
            assert new.uid == node.uid
            assert len(ward.sim.world.facts(what=What.RESTARTED)) == strike + 1
            (credited,) = ward.watch.ask("SELECT count(*) AS n FROM ledger_entries")
            assert credited["n"] == strike + 1
        else:
            assert new.uid != node.uid
            await ward.uncordons(node)
        assert ward.deaths == deaths + (1 if strike else 0)
        calls = calls or len(flaky.calls) - before
        strike += 1
        if strike > 8:
            break
    assert calls >= 4
