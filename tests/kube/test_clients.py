"""A client for each cluster in use, and none for those that are not."""

from __future__ import annotations

import asyncio

import pytest

from ebbtide.errors import BadInput
from ebbtide.kube.client import Clients, KubeClient
from tests.kube.misbehaving import Misbehaving, answer, silence

A, B = (f'{{"clusters": [], "current-context": "{name}"}}' for name in "ab")


class Double(KubeClient):
    """Opens nothing."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig
        self.busy = 0
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_client_for_a_cluster_and_kubeconfig() -> None:
    clients = Clients(Double)
    one = clients.of("c-1", A)
    assert clients.of("c-1", A) is one
    assert clients.of("c-2", A) is not one, "limits are a cluster's own"
    assert clients.of("c-1", B) is not one, "its way in has changed"
    assert len(clients) == 3
    await clients.close()
    assert len(clients) == 0
    assert isinstance(one, Double)
    assert one.closed


async def test_what_rests_is_closed_and_what_is_busy_is_not() -> None:
    time = Time()
    clients = Clients(Double, idle_s=100, now=time)
    rests, busy, used = (clients.of(name, A) for name in ("rests", "busy", "used"))
    busy.busy = 1
    time.now = 60
    clients.of("used", A)
    time.now = 110
    assert clients.of("used", A) is used
    await settle()
    assert [each.closed for each in (rests, busy, used) if isinstance(each, Double)] == [True, False, False]
    assert clients.of("rests", A) is not rests
    assert clients.of("busy", A) is busy


async def test_a_bad_kubeconfig_leaves_nothing() -> None:
    clients = Clients()
    with pytest.raises(BadInput):
        clients.of("c", "nonsense")
    assert len(clients) == 0


async def test_a_client_may_be_closed_at_any_time_and_used_again() -> None:
    async with Misbehaving(silence, answer({"kind": "Pod"})) as server:
        client = KubeClient(server.kubeconfig())
        asking = asyncio.create_task(client.create("/x", {}))
        await server.arrived.wait()
        await client.close()
        await client.close()
        (ended,) = await asyncio.gather(asking, return_exceptions=True)
        assert type(ended).__name__ == "Unreachable"
        assert await client.create("/x", {}) == {"kind": "Pod"}
        await client.close()
