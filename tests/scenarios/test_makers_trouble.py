"""When what makes machines does not answer, or says that it never will: no host is held for ever for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from ebbtide.providers.base import Instance, InstanceOrder, Permanent, Provider, Transient
from tests.scenarios.story import STANDARD, Story, fleet

JOIN_LIMIT_S = 900


class Refuses:
    """Does not start machines on some hosts, or does not say what became of them."""

    def __init__(self, plain: Provider, *, hosts: set[str] | None = None, status: bool = False) -> None:
        self._plain = plain
        self._hosts = hosts  # None: all
        self._status = status

    async def create(self, order: InstanceOrder) -> Instance:
        if not self._status and (self._hosts is None or order.host_name in self._hosts):
            raise Transient("no route to the management network")
        return await self._plain.create(order)

    async def status(self, node_uid: str) -> Instance | None:
        found = await self._plain.status(node_uid)
        if self._status and found is not None and found.host_name in (self._hosts or {found.host_name}):
            raise Permanent("this image does not exist")
        return found

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        verbs: Callable[..., Awaitable[Any]] = getattr(self._plain, verb)
        return verbs


def a_story(database_url: str, **trouble: Any) -> Story:
    return Story(database_url, provider=lambda plain: cast(Provider, Refuses(plain, **trouble)))


async def test_an_outage_gives_hosts_back_and_quarantines_none(database_url: str) -> None:
    story = await a_story(database_url).begin(fleet(2))
    cluster = await story.orders()
    await story.passes(3 * JOIN_LIMIT_S + 300)
    details = await cluster.details()
    ended = [node for node in details.deleted_nodes if node.end_reason == "failed"]
    assert len(ended) == 3
    assert "no route to the management network; given up after 900 s" in (ended[0].why or "")
    assert [host.state for host in await story.hosts()] == ["available", "available"]
    await story.end()


async def test_a_host_that_alone_cannot_be_reached_is_quarantined(database_url: str) -> None:
    """Others of its pool come up meanwhile, so it is the host."""
    bad = "eu-h100-b0-001"
    story = await a_story(database_url, hosts={bad}).begin(fleet(2))
    waits = await story.orders("acme", "waits")
    await story.passes(60)
    (node,) = await waits.nodes(STANDARD)
    assert node.host_name == bad
    other = await story.orders("zeta", "before")
    for number in range(3):
        await story.passes(100)
        await other.is_deleted()
        await story.passes(100)
        other = await story.orders("zeta", f"passing-{number}")  # on the other host, the only free one
        await story.passes(JOIN_LIMIT_S - 200 + 30)
        assert await other.running_standard()
    (host,) = [one for one in await story.hosts() if one.name == bad]
    assert host.state == "quarantined"
    assert "no route to the management network" in (host.state_reason or "")
    await story.end()


async def test_never_while_booting_gives_the_node_up_at_once(database_url: str) -> None:
    story = await a_story(database_url, status=True).begin(fleet(1))
    cluster = await story.orders()
    await story.passes(300)
    details = await cluster.details()
    assert "this image does not exist" in (details.deleted_nodes[0].why or "")
    told = [event.message for event in details.events if event.reason == "EbbtideNodeFailed"]
    assert told
    assert set(told) == {"the node was given up: its machine did not come up"}  # how is the operator's matter
    (host,) = await story.hosts()
    assert host.state == "quarantined"
    await story.end()
