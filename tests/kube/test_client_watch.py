"""One watch's connection, against servers that misbehave."""

from __future__ import annotations

import asyncio
import json

import pytest

from ebbtide.clock import monotonic
from ebbtide.kube import client as client_module
from ebbtide.kube.client import KubeClient
from ebbtide.kube.errors import KubeError
from tests.kube.misbehaving import Misbehaving, Reply, answer, says, status_object, stream
from tests.kube.test_client import PLAIN_REFUSAL, POD


def event(kind: str, name: str, version: str) -> dict[str, object]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


async def watched(server: Misbehaving, largest: int = 10_000) -> list[tuple[str, str | None]]:
    """The events of one connection, and an error's name at its end."""
    client = KubeClient(server.kubeconfig(), largest=largest)
    seen: list[tuple[str, str | None]] = []
    try:
        async for each in client.watch("/api/v1/nodes", resource_version="5", watch_s=1, labelSelector="x"):
            seen.append((each.kind, each.resource_version))
    except KubeError as error:
        seen.append((type(error).__name__, None))
    assert client.busy == 0
    await client.close()
    return seen


async def test_a_watch() -> None:
    events = [event("ADDED", "a", "6"), event("DELETED", "a", "7"), event("BOOKMARK", "", "9")]
    async with Misbehaving(stream(*events)) as server:
        assert await watched(server) == [("ADDED", "6"), ("DELETED", "7"), ("BOOKMARK", "9")]
    assert server.asked[0].query == {
        "labelSelector": "x",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "1",
    }


async def test_a_watch_is_told_within_the_stream_that_its_version_expired() -> None:
    """F1: 410 as an event inside a 200."""
    error = {"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")}
    async with Misbehaving(stream(event("ADDED", "a", "6"), error)) as server:
        assert await watched(server) == [("ADDED", "6"), ("Expired", None)]
    async with Misbehaving(says(410, "Gone")) as server:
        assert await watched(server) == [("Expired", None)]


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (stream({"type": "ERROR", "object": status_object(500, "InternalError")}), "Unreachable"),
        (stream({"type": "ERROR", "object": {}}), "Unreachable"),
        (stream({"type": "ADDED"}), "Unreachable"),
        (stream([]), "Unreachable"),
        (stream(tail=b"no json\n"), "Unreachable"),
        (stream(tail=b"x" * 20_000), "Unreachable"),
        (says(403, "Forbidden"), "Forbidden"),
        (PLAIN_REFUSAL, "Unreachable"),
    ],
)
async def test_a_watch_that_goes_wrong(reply: Reply, named: str) -> None:
    async with Misbehaving(reply) as server:
        assert await watched(server) == [(named, None)]


async def test_half_an_event_at_the_end_of_a_watch_is_no_event() -> None:
    half = json.dumps(event("DELETED", "a", "8"))[:-9].encode()
    async with Misbehaving(stream(event("ADDED", "a", "6"), tail=half)) as server:
        assert await watched(server) == [("ADDED", "6")]


async def test_an_event_in_small_pieces_is_whole() -> None:
    text = (
        json.dumps(event("ADDED", "a", "6")) + "\n\n" + json.dumps(event("DELETED", "a", "7")) + "\n"
    ).encode()

    async def in_pieces(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for at in range(0, len(text), 9):
            writer.write(text[at : at + 9])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with Misbehaving(in_pieces) as server:
        assert await watched(server) == [("ADDED", "6"), ("DELETED", "7")]


async def test_a_watch_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """F4: a half-open connection. The server was told to end the watch after a second; it does not."""
    monkeypatch.setattr(client_module, "_WATCH_SLACK_S", 0.2)
    async with Misbehaving(stream(event("ADDED", "a", "6"), close=False)) as server:
        began = monotonic()
        assert await watched(server) == [("ADDED", "6"), ("Unreachable", None)]
        assert monotonic() - began < 5


async def test_watches_take_no_place_of_requests() -> None:
    async with Misbehaving(stream(close=False), answer({"kind": "Pod"})) as server:
        client = KubeClient(server.kubeconfig(), in_flight=1)

        async def follow() -> None:
            async for _ in client.watch("/api/v1/nodes", resource_version="5"):
                pass

        task = asyncio.create_task(follow())
        await server.arrived.wait()
        assert await client.get(POD) == {"kind": "Pod"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert client.busy == 0
        await client.close()
