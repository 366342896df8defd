"""Webhooks: one delivery per event under one id, signed, tried again; a way out, never a way in (H3)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ebbtide import assembly
from ebbtide.errors import BadInput, Conflict, NotFound
from ebbtide.services.details import ClusterOrder, Replay, Role
from ebbtide.services.fleet_file import parse
from ebbtide.settings import Settings
from ebbtide.simulation import Simulation
from ebbtide.store.seal import new_key
from ebbtide.store.visits import Loop
from ebbtide.workers.webhook_sender import DELIVERY, SIGNATURE, HttpSender, NotDelivered, signature

FLEET = """
regions:
  eu-1: {}
pools:
  eu-h100: {region: eu-1, gpu_type: H100_SXM, boot_s: 30, turn_over_s: 20, blocks: {b1: 4}}
"""


class Receiver:
    """Keeps what it was sent. `down`: so many requests are refused first."""

    def __init__(self, down: int = 0) -> None:
        self.down = down
        self.tries: list[tuple[str, bytes, dict[str, str]]] = []
        self.taken: list[dict[str, Any]] = []

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        self.tries.append((url, body, dict(headers)))
        if self.down:
            self.down -= 1
            raise NotDelivered("answered 503")
        self.taken.append(json.loads(body))
        return 200


async def _story(database_url: str, receiver: Receiver) -> Simulation:
    simulated = Simulation(database_url, sender=receiver)
    await simulated.begin(parse(FLEET))
    return simulated


def _order(target: int) -> ClusterOrder:
    return ClusterOrder("demo", "eu-1", "H100_SXM", 8, num_preemptible_gpus=target)


async def test_every_event_arrives_once_under_one_id(database_url: str) -> None:
    receiver = Receiver(down=3)
    simulated = await _story(database_url, receiver)
    services = simulated.system.services
    acme, beta = await simulated.caller("acme"), await simulated.caller("beta")
    made = await services.webhooks.create(acme, "https://hooks.example/ebbtide", None)
    await services.webhooks.create(beta, "https://other.example/", None)
    cluster = await services.clusters.create(acme, _order(16), Replay("a"))
    await simulated.run_for(600)
    events = await services.clusters.events(acme, cluster.id)
    assert [told["number"] for told in receiver.taken] == [event.number for event in events] == [1, 2, 3]
    assert {url for url, _, _ in receiver.tries} == {"https://hooks.example/ebbtide"}
    # Retries repeat the id and the very bytes.
    first = [(body, headers[DELIVERY]) for _, body, headers in receiver.tries[:4]]
    assert len(set(first)) == 1
    _, body, headers = receiver.tries[0]
    at_s = headers[SIGNATURE].split(",")[0].removeprefix("t=")
    expected = hmac.new(made.secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers[SIGNATURE] == f"t={at_s},v1={expected}" == signature(made.secret, int(at_s), body)
    deliveries = await services.webhooks.deliveries(acme, made.details.id)
    assert [(one.number, one.tries) for one in deliveries] == [(3, 1), (2, 1), (1, 4)]
    assert all(one.delivered_at and one.next_try_at is None for one in deliveries)
    await simulated.system.close()


async def test_three_triggers_of_one_end_are_one_webhook(database_url: str) -> None:
    receiver = Receiver()
    simulated = await _story(database_url, receiver)
    services = simulated.system.services
    acme, operator = await simulated.caller("acme"), await simulated.caller("ops", Role.OPERATOR)
    await services.webhooks.create(acme, "https://hooks.example/", ["TogetherPreempted"])
    await services.clusters.create(acme, _order(24), Replay("a"))
    await simulated.run_for(120)
    for attempt in ("first", "second", "third"):
        await services.claims.create(operator, "eu-h100", 1, "order-1", "web shop")
        await services.claims.retrieve(operator, "order-1")
        assert attempt
    await simulated.restart()
    await simulated.run_for(600)
    assert [told["type"] for told in receiver.taken] == ["TogetherPreempted"]
    assert receiver.taken[0]["deadline"]
    await simulated.system.close()


async def test_a_receiver_that_stays_away_is_given_up_in_the_end(database_url: str) -> None:
    receiver = Receiver(down=1_000)
    simulated = Simulation(database_url, sender=receiver, settings=replace(Settings(), webhook_give_up_s=600))
    await simulated.begin(parse(FLEET))
    services = simulated.system.services
    acme = await simulated.caller("acme")
    made = await services.webhooks.create(acme, "https://hooks.example/", None)
    await services.clusters.create(acme, _order(0), Replay("a"))
    await simulated.run_for(1_500)
    (delivery,) = await services.webhooks.deliveries(acme, made.details.id)
    assert delivery.delivered_at is None
    assert delivery.next_try_at is None
    assert delivery.last_answer == "answered 503"
    assert delivery.tries == 8  # after 0, 5, 15, 35, 75, 155, 315 and 635 s
    await simulated.system.close()


async def test_deliveries_are_kept_for_a_month(database_url: str) -> None:
    simulated = await _story(database_url, Receiver())
    services = simulated.system.services
    acme = await simulated.caller("acme")
    made = await services.webhooks.create(acme, "https://hooks.example/", None)
    await services.clusters.create(acme, _order(0), Replay("a"))
    await simulated.run_for(60)
    simulated.clock.advance(29 * 86_400)
    await simulated.system.runner.step(Loop.RETENTION)
    assert len(await services.webhooks.deliveries(acme, made.details.id)) == 1
    simulated.clock.advance(2 * 86_400)
    await simulated.system.runner.step(Loop.RETENTION)
    assert await services.webhooks.deliveries(acme, made.details.id) == ()
    await simulated.system.close()


async def test_secrets_are_sealed_and_can_be_sealed_again(database_url: str) -> None:
    old, new = new_key(), new_key()
    system = assembly.build(Simulation(database_url).settings, database_url, secret_keys=[old])
    key = await system.first_key(Role.MEMBER, "acme", "Acme")
    acme = await system.services.access.authenticate(key.secret)
    await system.services.webhooks.create(acme, "https://hooks.example/", None)
    await system.close()
    assert await assembly.reseal(database_url, [new, old]) == 1
    assert await assembly.reseal(database_url, [new]) == 1


async def test_who_may_and_what_is_refused(database_url: str) -> None:
    simulated = await _story(database_url, Receiver())
    webhooks = simulated.system.services.webhooks
    acme, beta = await simulated.caller("acme"), await simulated.caller("beta")
    made = await webhooks.create(acme, "https://hooks.example/", None)
    with pytest.raises(NotFound):
        await webhooks.delete(beta, made.details.id)
    with pytest.raises(NotFound):
        await webhooks.deliveries(beta, made.details.id)
    assert await webhooks.list(beta) == ()
    for url in (
        "ftp://x/",
        "https://",
        "nonsense",
        "https://user:pw@x/",
        "https://x:0/",
        "https://x/#y",
        "http://[",
    ):
        with pytest.raises(BadInput):
            await webhooks.create(acme, url, None)
    with pytest.raises(BadInput, match="TogetherPreempted"):
        await webhooks.create(acme, "https://hooks.example/", ["Preempted"])
    await webhooks.delete(acme, made.details.id)
    assert await webhooks.list(acme) == ()
    await simulated.system.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "https://hooks.localhost/",
        "http://[::1]:9/",
        "http://10.1.2.3/x",
        "http://192.168.0.1/",
        "http://169.254.169.254/latest",
        "http://[fd00::1]/",
    ],
)
async def test_an_address_inside_is_refused_when_it_is_given_unless_it_is_allowed(
    database_url: str, url: str
) -> None:
    for allowed in (False, True):
        settings = replace(Settings(), webhook_private=allowed)
        simulated = Simulation(database_url, sender=Receiver(), settings=settings)
        acme = await simulated.caller("acme")
        if allowed:
            assert (await simulated.system.services.webhooks.create(acme, url, None)).details.url == url
        else:
            with pytest.raises(BadInput, match="no public address"):
                await simulated.system.services.webhooks.create(acme, url, None)
        await simulated.system.close()


async def test_twenty_are_twenty_also_at_once(database_url: str) -> None:
    simulated = await _story(database_url, Receiver())
    acme, webhooks = await simulated.caller("acme"), simulated.system.services.webhooks
    answers = await asyncio.gather(
        *(webhooks.create(acme, f"https://hooks.example/{number}", None) for number in range(26)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Conflict) for one in answers) == 6
    assert len(await webhooks.list(acme)) == 20
    await simulated.system.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://localhost:9/", "http://[::1]:9/"])
async def test_private_addresses_are_not_spoken_to(url: str) -> None:
    sender = HttpSender(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    with pytest.raises(NotDelivered, match="EBBTIDE_WEBHOOK_PRIVATE"):
        await sender.post(url, b"{}", {})
    await sender.close()


async def test_the_name_that_was_asked_for_is_kept() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(
            204 if len(asked) == 1 else 302, headers={"location": "http://elsewhere.example/"}
        )

    sender = HttpSender(private_allowed=True, transport=httpx.MockTransport(answer))
    assert await sender.post("http://localhost:8080/hook?x=1", b"{}", {"a": "b"}) == 204
    assert asked[0].headers["host"] == "localhost:8080"
    assert asked[0].url.host in ("127.0.0.1", "::1")
    with pytest.raises(NotDelivered, match="302"):
        await sender.post("http://localhost:8080/hook", b"{}", {})
    await sender.close()


@pytest.mark.parametrize("url", ["https://a..localhost/", "http://127.0.0.1/\x01"])
async def test_a_url_that_cannot_be_used_is_a_try_that_failed(url: str) -> None:
    sender = HttpSender(private_allowed=True)
    with pytest.raises(NotDelivered, match="malformed"):
        await sender.post(url, b"{}", {})
    await sender.close()


async def test_an_answer_without_end_is_not_read() -> None:
    chunks: list[int] = []
    most = 1_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while len(chunks) < most and not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            try:
                await writer.drain()
            except ConnectionError:
                break
            chunks.append(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sender = HttpSender(private_allowed=True)
    port = server.sockets[0].getsockname()[1]
    assert await sender.post(f"http://127.0.0.1:{port}/", b"{}", {}) == 200
    assert len(chunks) < most
    await sender.close()
    server.close()


class Leaver:
    """Refuses what it is sent, and its owner deletes it while it does."""

    def __init__(self) -> None:
        self.leave: Callable[[], Awaitable[None]] | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        assert self.leave is not None
        await self.leave()
        raise NotDelivered("answered 503")


async def test_a_webhook_deleted_amid_a_try_is_not_visited_for_ever(database_url: str) -> None:
    receiver = Leaver()
    simulated = Simulation(database_url, sender=receiver)
    await simulated.begin(parse(FLEET))
    services = simulated.system.services
    acme = await simulated.caller("acme")
    made = await services.webhooks.create(acme, "https://hooks.example/", None)
    receiver.leave = lambda: services.webhooks.delete(acme, made.details.id)
    await services.clusters.create(acme, _order(0), Replay("a"))
    await simulated.run_for(120)  # raises Stuck if a visit is due again and again
    await simulated.system.close()
