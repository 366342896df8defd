"""Whose data a host carries, when it is wiped, and that an auditor can ask who did it (promise 6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ebbtide.core.wipes import WipePolicy
from ebbtide.providers.base import Deletion, Instance, InstanceOrder, InstanceState, Provider
from ebbtide.services.fleet_file import FleetFile
from ebbtide.services.wipes import Wipes
from tests.contract.exec_rig import ExecProviderRig
from tests.scenarios.story import Story, fleet

BETWEEN, ALWAYS, NEVER = WipePolicy.BETWEEN_PROJECTS, WipePolicy.ALWAYS, WipePolicy.NEVER
SETTLED_S = 120


class LeavesData:
    """A provider that wipes a host only before a machine, when it is told to, as between_projects allows."""

    def __init__(self, plain: Provider) -> None:
        self._plain = plain
        self.orders: dict[str, InstanceOrder] = {}
        self.never_up: set[str] = set()  # projects whose machines do not boot

    async def create(self, order: InstanceOrder) -> Instance:
        self.orders[order.node_uid] = order
        return await self._plain.create(order)

    async def status(self, node_uid: str) -> Instance | None:
        found = await self._plain.status(node_uid)
        order = self.orders.get(node_uid)
        if found is None or order is None:
            return found
        if order.project_id in self.never_up:
            return replace(found, state=InstanceState.FAILED, why="the firmware is stuck")
        up = found.state is InstanceState.UP
        return replace(found, wiped_by="nvme format" if up and order.wipe_first else "")

    async def delete(self, node_uid: str) -> Deletion:
        return replace(await self._plain.delete(node_uid), wiped_by="")

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        verbs: Callable[..., Awaitable[Any]] = getattr(self._plain, verb)
        return verbs

    def last(self, project_id: str) -> InstanceOrder:
        return [order for order in self.orders.values() if order.project_id == project_id][-1]


def hosts(number: int, wipe: WipePolicy = ALWAYS) -> FleetFile:
    file = fleet(number)
    return replace(file, pools=tuple(replace(pool, wipe=wipe) for pool in file.pools))


class Told(Story):
    """A story whose provider leaves data behind."""

    def __init__(self, database_url: str) -> None:
        self.made: list[LeavesData] = []

        def wrap(plain: Provider) -> Provider:
            self.made.append(LeavesData(plain))
            return self.made[-1]  # type: ignore[return-value]  # what it does not say itself is the plain one's

        super().__init__(database_url, provider=wrap)

    @property
    def provider(self) -> LeavesData:
        return self.made[-1]

    async def project(self, who: str) -> str:
        return (await self.caller(who)).project_id or ""


async def wipes(story: Story, **query: Any) -> Wipes:
    return await story.sim.system.services.wipes.list(await story.operator(), **query)


async def carried(story: Story) -> dict[str, str]:
    return {one.host: one.project_id for one in (await wipes(story)).carrying}


async def test_by_default_every_stay_ends_with_a_wipe_on_record(database_url: str) -> None:
    story = await Story(database_url).begin(hosts(3))
    cluster = await story.orders(target=8)
    await story.passes(SETTLED_S)
    (node,) = await cluster.running()
    await cluster.changes(target=0)
    await story.passes(SETTLED_S)
    found = await wipes(story, node=node.name)
    assert [(one.moment, one.wiped_by, one.host) for one in found.wipes] == [
        ("after", "the simulated fleet", node.host_name)
    ]
    assert (await wipes(story, host=node.host_name)).wipes[0].node_uid == node.uid
    assert await carried(story) == {}
    why = await story.sim.system.services.why.node(await story.operator(), node.name)
    assert any("wiped after it" in sentence for sentence in why.sentences)
    await story.end()


async def test_between_projects_a_host_is_wiped_for_the_next_one_only(database_url: str) -> None:
    story = Told(database_url)
    await story.begin(hosts(3, BETWEEN))
    acme, zeta = await story.project("acme"), await story.project("zeta")
    cluster = await story.orders("acme", "train", target=8)
    await story.passes(SETTLED_S)
    (node,) = await cluster.running()
    assert not story.provider.last(acme).wipe_first
    await cluster.changes(target=0)
    await story.passes(SETTLED_S)
    assert await carried(story) == {node.host_name: acme}

    # Its own project finds the host as it was.
    await story.sim.system.services.fleet.set_cordon(
        await story.operator(), await _clean(story), cordoned=True
    )
    await cluster.changes(target=8)
    await story.passes(SETTLED_S)
    (again,) = await cluster.running()
    assert again.host_name == node.host_name
    assert not story.provider.last(acme).wipe_first
    await cluster.changes(target=0)
    await story.passes(SETTLED_S)

    # Another one finds it wiped.
    other = await story.orders("zeta", "serve")
    await story.passes(SETTLED_S)
    (theirs,) = await other.running_standard()
    assert theirs.host_name == node.host_name
    assert story.provider.last(zeta).wipe_first
    before = (await wipes(story, node=theirs.uid)).wipes
    assert [(one.moment, one.wiped_by) for one in before] == [("before", "nvme format")]
    assert await carried(story) == {}
    await other.is_deleted()
    await story.passes(SETTLED_S)
    assert await carried(story) == {node.host_name: zeta}
    await story.end()


async def _clean(story: Story) -> str:
    """A free host that carries nobody's data."""
    dirty = await carried(story)
    return next(one.name for one in await story.hosts() if one.bucket == "free" and one.name not in dirty)


async def test_a_boot_that_failed_before_its_wipe_leaves_two_projects_data(database_url: str) -> None:
    """Nobody knows how far it came: the host is wiped for whoever is next, the first owner included."""
    story = Told(database_url)
    await story.begin(hosts(1, BETWEEN))
    acme, zeta = await story.project("acme"), await story.project("zeta")
    first = await story.orders("acme", "train")
    await story.passes(SETTLED_S)
    (node,) = await first.running_standard()
    await first.is_deleted()
    await story.passes(SETTLED_S)
    assert await carried(story) == {node.host_name: acme}
    story.provider.never_up.add(zeta)
    second = await story.orders("zeta", "serve")
    await story.passes(40)
    assert await carried(story) in ({node.host_name: acme}, {node.host_name: "several"})
    await second.is_deleted()
    await story.passes(SETTLED_S)
    assert await carried(story) == {node.host_name: "several"}
    await story.orders("acme", "once-more")
    await story.passes(SETTLED_S)
    assert story.provider.last(acme).wipe_first
    assert await carried(story) == {}
    await story.end()


async def test_never_means_never_until_the_policy_changes(database_url: str) -> None:
    story = Told(database_url)
    await story.begin(hosts(1, NEVER))
    zeta = await story.project("zeta")
    for who in ("acme", "zeta"):
        cluster = await story.orders(who, "train")
        await story.passes(SETTLED_S)
        assert await cluster.running_standard()
        assert not story.provider.last(await story.project(who)).wipe_first
        await cluster.is_deleted()
        await story.passes(SETTLED_S)
    assert set((await carried(story)).values()) == {"several"}
    assert (await wipes(story)).wipes == ()
    await story.sim.system.apply_fleet(hosts(1, ALWAYS))
    await story.orders("zeta", "careful")
    await story.passes(SETTLED_S)
    assert story.provider.last(zeta).wipe_first
    assert await carried(story) == {}
    await story.end()


async def test_a_host_that_was_somebody_elses_is_wiped_before_a_tenant_has_it(database_url: str) -> None:
    """What another system did on a host that it had by a claim, no provider of ours knows."""
    story = Told(database_url)
    await story.begin(hosts(1, BETWEEN))
    await story.claims(1, "order-1")
    await story.passes(SETTLED_S)
    await story.gives_back("order-1")
    await story.passes(SETTLED_S)
    assert list((await carried(story)).values()) == ["several"]
    await story.orders("acme", "train")
    await story.passes(SETTLED_S)
    assert story.provider.last(await story.project("acme")).wipe_first
    await story.end()


class SaysGone(LeavesData):
    """One that lies: gone at once, wiped by nothing, though the policy is to wipe always."""

    async def delete(self, node_uid: str) -> Deletion:
        await self._plain.delete(node_uid)
        why = "the delete program answered gone and named nothing as `wiped_by`"
        return Deletion(gone=True, wiped=False, why=why)


async def test_gone_without_wiped_keeps_the_host_from_everybody(database_url: str) -> None:
    story = Story(database_url, provider=lambda plain: SaysGone(plain))  # type: ignore[arg-type,return-value]  # as above
    await story.begin(hosts(1))
    cluster = await story.orders()
    await story.passes(SETTLED_S)
    (node,) = await cluster.running_standard()
    await cluster.is_deleted()
    await story.passes(600)
    (pool,) = await story.sim.system.services.fleet.pools(await story.operator())
    assert (pool.counts["free"], pool.counts["turning_over"]) == (0, 1)
    why = await story.sim.system.services.why.node(await story.operator(), node.uid)
    assert why.visit is not None
    assert "named nothing as `wiped_by`" in (why.visit.outcome or "")
    await story.passes(900)
    (host,) = await story.hosts()
    assert (host.state, host.bucket) == ("quarantined", "turning_over")
    await story.end()


class ByProgram(LeavesData):
    """Machines are started by a program; what never was is gone for the simulated fleet, too."""

    def __init__(self, plain: Provider, programs: Provider) -> None:
        super().__init__(plain)
        self._programs = programs

    async def create(self, order: InstanceOrder) -> Instance:
        return await self._programs.create(order)


async def test_a_host_for_which_the_program_says_never_is_given_up_at_once_and_quarantined(
    database_url: str,
) -> None:
    rig = ExecProviderRig(
        {verb: ["sh", "-c", "echo the host is not in the rack >&2; exit 78"] for verb in ("create",)}
        | {verb: ["false"] for verb in ("status", "stop", "delete", "list")}
    )
    story = Story(database_url, provider=lambda plain: ByProgram(plain, rig.provider))  # type: ignore[arg-type,return-value]  # as above
    await story.begin(hosts(1))
    cluster = await story.orders()
    await story.passes(600)
    assert not await cluster.running_standard()
    (host,) = await story.hosts()
    assert host.state == "quarantined"
    assert "3 boots in a row failed, the last: the host is not in the rack" in (host.state_reason or "")
    assert [noted.code for _, noted in rig.memory.notes] == [78, 78, 78]  # each tried once
    await story.end()
