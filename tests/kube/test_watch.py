"""Following objects through all that happens to a connection: theme 6 of the scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from ebbtide.kube import watch as watch_module
from ebbtide.kube.client import KubeClient, Object
from ebbtide.kube.watch import Change, Mirror, News
from tests.kube.misbehaving import Misbehaving, Reply, answer, hang_up, says, silence, status_object, stream

PATH = "/api/v1/pods"


def pod(name: str, phase: str = "Running", version: str = "1") -> Object:
    metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": version}
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


def listed(*pods: Object, version: str = "10", following: str = "") -> Reply:
    metadata = {"resourceVersion": version, **({"continue": following} if following else {})}
    return answer({"kind": "PodList", "metadata": metadata, "items": list(pods)})


def event(kind: str, thing: Object) -> dict[str, Any]:
    return {"type": kind, "object": thing}


def bookmark(version: str) -> dict[str, Any]:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": version}})


EXPIRED_WITHIN = event("ERROR", status_object(410, "Expired", "too old resource version: 10 (99)"))


def slim(thing: Object) -> tuple[str, str] | None:
    name = thing["metadata"]["name"]
    return None if name.startswith("ignored") else (name, thing["status"]["phase"])


class Waits:
    """Waits are over at once, but for those that a test holds."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        await asyncio.sleep(0)


class Following:
    """A mirror, and its news one after the other."""

    def __init__(self, mirror: Mirror[tuple[str, str]], waits: Waits) -> None:
        self.mirror = mirror
        self.waits = waits
        self._news: asyncio.Queue[News[tuple[str, str]]] = asyncio.Queue()

    async def pump(self) -> None:
        async with aclosing(self.mirror.follow()) as all_news:
            async for news in all_news:
                self._news.put_nowait(news)

    async def next(self) -> News[tuple[str, str]]:
        return await asyncio.wait_for(self._news.get(), 5)

    async def changes(self) -> list[tuple[str | None, str | None]]:
        """The phases, before and after, of the next news."""
        return [_phases(change) for change in (await self.next()).changes]

    async def names(self) -> list[str]:
        return [(change.after or change.before or ("", ""))[0] for change in (await self.next()).changes]

    @property
    def quiet(self) -> bool:
        return self._news.empty()


def _phases(change: Change[tuple[str, str]]) -> tuple[str | None, str | None]:
    return change.before and change.before[1], change.after and change.after[1]


Follow = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick_ends_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers here end a watch when they have said all."""
    monkeypatch.setattr(watch_module, "_AT_ONCE_S", 0.0)


@asynccontextmanager
async def following(server: Misbehaving, watch_s: int = 5) -> AsyncIterator[Following]:
    waits = Waits()
    client = KubeClient(server.kubeconfig(), limit_s=2, wait=waits)
    one = Following(
        Mirror(lambda: client, PATH, slim, wait=waits, watch_s=watch_s, fieldSelector="spec.nodeName!="),
        waits,
    )
    task = asyncio.create_task(one.pump())
    try:
        yield one
    finally:
        assert not task.done(), "following ends by nothing but being cancelled"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def asked(server: Misbehaving) -> list[str]:
    """What came in: `list`, or the version that a watch began at."""
    return [each.query["resourceVersion"] if "watch" in each.query else "list" for each in server.asked]


FOREVER = stream(close=False)


async def test_list_then_watch_from_the_lists_version() -> None:
    replies = (
        listed(pod("a", version="3"), following="next"),
        listed(pod("b", version="4"), pod("ignored"), version="10"),
        stream(
            event("ADDED", pod("c", version="11")),
            event("MODIFIED", pod("a", "Succeeded", version="12")),
            event("MODIFIED", pod("b", version="13")),  # a heartbeat: nothing that we keep
            event("DELETED", pod("b", version="14")),
            event("ADDED", pod("ignored-2", version="15")),
            close=False,
        ),
    )
    async with Misbehaving(*replies) as server, following(server) as one:
        first = await one.next()
        assert first == News((), first=True)
        assert await one.changes() == [(None, "Running")]
        assert await one.changes() == [("Running", "Succeeded")]
        assert await one.changes() == [("Running", None)]
        assert one.mirror.items == {"u-a": ("a", "Succeeded"), "u-c": ("c", "Running")}
        assert one.quiet
    assert asked(server) == ["list", "list", "10"]
    assert all(each.query["fieldSelector"] == "spec.nodeName!=" for each in server.asked)


async def test_what_was_there_is_no_news() -> None:
    """F2: neither at the start nor after a version that is no longer kept."""
    old = [pod(f"old-{at}") for at in range(500)]
    replies = (listed(*old), stream(EXPIRED_WITHIN), listed(*old, version="99"), FOREVER)
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        again = await one.next()
        assert again == News((), first=False)
        assert len(one.mirror.items) == 500
    assert asked(server)[:3] == ["list", "10", "list"]


@pytest.mark.parametrize("gone", [stream(EXPIRED_WITHIN), says(410, "Gone")], ids=["in a 200", "as status"])
async def test_an_expired_version_is_listed_anew_and_compared(gone: Reply) -> None:
    """F1: and what went while nobody looked is told as gone."""
    replies = (
        listed(pod("stays"), pod("went"), pod("ends")),
        gone,
        listed(pod("stays"), pod("ends", "Failed"), pod("came"), version="99"),
        stream(event("DELETED", pod("came", version="100")), close=False),
    )
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        news = await one.next()
        told = {(change.before or change.after or ("", ""))[0]: _phases(change) for change in news.changes}
        assert told == {"went": ("Running", None), "ends": ("Running", "Failed"), "came": (None, "Running")}
        assert await one.changes() == [("Running", None)]
        assert one.waits.waited == [], "an expiry is no trouble"
    assert asked(server) == ["list", "10", "list", "99"]


@pytest.mark.parametrize("before", [(), (bookmark("20"),)], ids=["at once", "after an event"])
async def test_a_version_that_expires_again_and_again_does_not_keep_us_busy(
    before: Sequence[dict[str, Any]],
) -> None:
    expires = stream(*before, EXPIRED_WITHIN)
    async with (
        Misbehaving(*[listed(pod("a")), expires] * 6, listed(pod("a")), FOREVER) as server,
        following(server) as one,
    ):
        for _ in range(7):
            await one.next()
        assert one.waits.waited == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert asked(server)[:4] == ["list", "10", "list", "10"]


@pytest.mark.parametrize(
    "ends",
    [(), (bookmark("20"),), (event("MODIFIED", pod("a", version="15")), bookmark("20"))],
    ids=["nothing said", "bookmark", "event and bookmark"],
)
async def test_a_watch_that_ends_goes_on_from_where_it_was(ends: Sequence[dict[str, Any]]) -> None:
    replies = (listed(pod("a")), stream(*ends), stream(event("DELETED", pod("a", version="21")), close=False))
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert await one.changes() == [("Running", None)]
    assert asked(server) == ["list", "10", "20" if ends else "10"]


async def test_a_version_of_an_object_is_where_to_go_on_but_never_where_to_begin() -> None:
    replies = (
        listed(pod("a", version="3"), version="10"),
        stream(event("ADDED", pod("b", version="17"))),
        FOREVER,
    )
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert await one.names() == ["b"]
        while len(server.asked) < 3:  # noqa: ASYNC110  # no event of the server's says so
            await asyncio.sleep(0.01)
    assert asked(server) == ["list", "10", "17"]


@pytest.mark.parametrize(
    "trouble", [hang_up, says(500, "InternalError"), stream([])], ids=["cut", "500", "junk"]
)
async def test_trouble_is_waited_out_and_nothing_is_listed_anew_for_it(trouble: Reply) -> None:
    replies = (
        listed(pod("a")),
        trouble,
        trouble,
        stream(event("DELETED", pod("a", version="12")), close=False),
    )
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert await one.changes() == [("Running", None)]
        assert one.waits.waited == [0.5, 1.0]
    assert asked(server) == ["list", "10", "10", "10"]


async def test_a_server_that_cannot_serve_the_version_is_listed_anew() -> None:
    """One restored from a backup, say: our version is of a future that it does not know."""
    future = says(504, "Timeout", "Too large resource version: 10, current: 4")
    replies = (listed(pod("a"), pod("b")), future, future, future, listed(pod("b"), version="4"), FOREVER)
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert await one.changes() == [("Running", None)]
    assert asked(server)[:5] == ["list", "10", "10", "10", "list"]


async def test_a_server_that_is_away_is_asked_less_and_less() -> None:
    async with Misbehaving(*[hang_up] * 16, listed(pod("a")), FOREVER) as server, following(server) as one:
        assert (await one.next()).first
        between = [wait for wait in one.waits.waited if wait != 0.2]  # 0.2: a read's own second try
        assert between == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


async def test_a_right_that_is_missing_is_asked_for_less_and_less() -> None:
    replies = (*[says(422, "Invalid")] * 9, listed(pod("a")), FOREVER)
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert one.waits.waited == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


async def test_a_watch_that_ends_at_once_each_time_does_not_keep_us_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "_AT_ONCE_S", 1.0)
    replies = (listed(pod("a")), stream(), stream(), stream(event("DELETED", pod("a")), close=False))
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert await one.changes() == [("Running", None)]
        assert one.waits.waited == [0.5, 1.0]


async def test_a_list_that_expires_between_its_pages_begins_anew() -> None:
    replies = (
        listed(pod("a"), pod("went"), following="next"),
        says(410, "Expired"),
        listed(pod("a"), version="12"),
        FOREVER,
    )
    async with Misbehaving(*replies) as server, following(server) as one:
        assert (await one.next()).first
        assert one.mirror.items == {"u-a": ("a", "Running")}
    assert asked(server)[:3] == ["list", "list", "list"]


async def test_a_silent_watch_is_left_and_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F4: the connection is half open; the pod went meanwhile."""
    monkeypatch.setattr("ebbtide.kube.client._WATCH_SLACK_S", 0.1)
    went = stream(event("DELETED", pod("a", version="11")), close=False)
    async with Misbehaving(listed(pod("a")), silence, went) as server, following(server, 1) as one:
        assert (await one.next()).first
        assert await one.changes() == [("Running", None)]
    assert asked(server) == ["list", "10", "10"]
    assert server.asked[1].connection != server.asked[2].connection
