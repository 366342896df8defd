"""The client against servers that misbehave, each in one way. Theme 6 of the scenarios rests on these."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ebbtide.clock import monotonic
from ebbtide.kube import client as client_module
from ebbtide.kube.client import KubeClient, PatchKind
from ebbtide.kube.errors import (
    BudgetRefused,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Rejected,
    Unauthorized,
    Unreachable,
)
from tests.kube.misbehaving import (
    Misbehaving,
    Reply,
    a_list,
    answer,
    hang_up,
    http,
    raw,
    says,
    silence,
)

POD = "/api/v1/namespaces/default/pods/p"
PLAIN_REFUSAL = raw(
    http(429, b"Too many requests, please try again later.\n", "Content-Type: text/plain", "Retry-After: 1")
)


class Waits:
    """Waits that are over at once."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)


async def call(
    server: Misbehaving,
    act: Callable[[KubeClient], Awaitable[object]],
    *,
    waits: Waits | None = None,
    limit_s: float = 5.0,
    largest: int = 10_000,
) -> object:
    client = KubeClient(server.kubeconfig(), limit_s=limit_s, wait=waits or Waits(), largest=largest)
    try:
        return await act(client)
    finally:
        assert client.busy == 0
        await client.close()


async def fails(act: Awaitable[object]) -> KubeError:
    with pytest.raises(KubeError) as caught:
        await act
    return caught.value


async def test_what_is_sent() -> None:
    async with Misbehaving(answer({"kind": "Pod"})) as server:

        async def act(client: KubeClient) -> None:
            await client.get(POD, pretty=False, fieldSelector="spec.nodeName=a b", nothing=None)
            await client.create("/api/v1/nodes", {"n": 1}, dryRun="All")
            await client.patch(POD, {"s": "é"})
            await client.patch(POD, [{"op": "remove"}], kind=PatchKind.JSON)
            await client.patch(POD, {}, kind=PatchKind.APPLY, fieldManager="ebbtide", force=True)
            await client.put(POD, {})
            await client.delete(POD, uid="u-1", grace_s=297, propagation="Background")
            await client.delete(POD)

        await call(server, act)
    asked = server.asked
    assert [each.method for each in asked] == [
        *("GET", "POST", "PATCH", "PATCH", "PATCH", "PUT", "DELETE", "DELETE")
    ]
    assert asked[0].query == {"pretty": "false", "fieldSelector": "spec.nodeName=a b"}
    assert (asked[1].path, asked[1].query, asked[1].json) == ("/api/v1/nodes", {"dryRun": "All"}, {"n": 1})
    assert [each.headers["content-type"] for each in asked[1:6]] == [
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
        "application/json",
    ]
    assert asked[2].json == {"s": "é"}
    assert asked[4].query == {"fieldManager": "ebbtide", "force": "true"}
    assert asked[6].json == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u-1"},
        "gracePeriodSeconds": 297,
        "propagationPolicy": "Background",
    }
    assert asked[7].json == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert {each.connection for each in asked} == {0}


async def test_lists_follow_their_pages() -> None:
    async with Misbehaving(a_list("ab", "7", "next"), a_list("c", "7")) as server:
        found = await call(server, lambda client: client.list("/api/v1/nodes", page=2, labelSelector="x"))
    assert isinstance(found, client_module.KubeList)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b", "c"]
    assert found.resource_version == "7"
    assert server.asked[0].query == {"limit": "2", "labelSelector": "x"}
    assert server.asked[1].query == {"limit": "2", "labelSelector": "x", "continue": "next"}


async def test_a_list_whose_version_expires_begins_again_once() -> None:
    gone = says(410, "Expired")
    async with Misbehaving(a_list("ab", "7", "n"), gone, a_list("a", "9", "m"), a_list("z", "9")) as server:
        found = await call(server, lambda client: client.list("/api/v1/nodes"))
    assert isinstance(found, client_module.KubeList)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "z"]
    assert found.resource_version == "9"

    async with Misbehaving(a_list("a", "7", "n"), gone, a_list("a", "9", "m"), gone) as server:
        error = await fails(call(server, lambda client: client.list("/api/v1/nodes")))
    assert isinstance(error, Expired)
    assert len(server.asked) == 4


async def test_a_list_without_an_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_it(client: KubeClient) -> object:
        return await client.list("/api/v1/nodes")

    async with Misbehaving(a_list("a", "7", "same")) as server:
        error = await fails(call(server, all_of_it))
    assert type(error) is Unreachable
    assert "no end" in error.message
    assert len(server.asked) == 2, "the same page is not read a third time"

    anew = [a_list("ab", "7", f"token-{at}") for at in range(10)]
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "_MOST_LISTED", 6)
        async with Misbehaving(*anew) as server:
            assert type(await fails(call(server, all_of_it))) is Unreachable
        assert len(server.asked) == 3
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "LISTING_S", 0.0)
        async with Misbehaving(*anew) as server:
            assert type(await fails(call(server, all_of_it))) is Unreachable
        assert len(server.asked) == 1


async def test_a_list_that_is_kept_whole_has_a_size() -> None:
    pages = [a_list("a" * 100, "7", f"token-{at}") for at in range(20)]
    async with Misbehaving(*pages, a_list("a", "7")) as server:
        error = await fails(call(server, lambda client: client.list("/api/v1/nodes")))
    assert type(error) is Unreachable
    assert "larger than 20000 bytes" in error.message
    assert 3 <= len(server.asked) < 20


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", Rejected),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", Conflict),
        (410, "Expired", Expired),
        (422, "Invalid", Invalid),
    ],
)
async def test_refusals_have_types(status: int, reason: str, kind: type[Rejected]) -> None:
    async with Misbehaving(says(status, reason, "because", ["Cause"])) as server:
        error = await fails(call(server, lambda client: client.get(POD)))
    assert type(error) is kind
    assert isinstance(error, Rejected)
    assert (error.status, error.reason, error.detail, error.causes) == (status, reason, "because", ("Cause",))
    assert "because" in error.message
    asked = [each.path for each in server.asked]
    assert asked == ([POD, "/readyz", POD] if status == 401 else [POD]), "a refusal is an answer"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("write", [False, True])
async def test_a_server_that_is_starting_refuses_what_it_will_allow(status: int, write: bool) -> None:
    """F5: it has not read its roles yet; whoever believed it would take a right for missing."""

    async def act(client: KubeClient) -> object:
        return await (client.delete(POD) if write else client.get(POD))

    refuses = says(status, "Forbidden", 'pods is forbidden: User "ebbtide" cannot list resource "pods"')
    starting = raw(http(500, b"[-]poststarthook/rbac/bootstrap-roles failed", "Content-Type: text/plain"))
    async with Misbehaving(refuses, starting) as server:
        error = await fails(call(server, act))
    assert type(error) is Unreachable
    assert "starting" in error.message
    assert [each.path for each in server.asked] == [POD, "/readyz"]

    for ready in (raw(http(200, b"ok")), raw(http(404, b"not told"))):
        async with Misbehaving(refuses, ready, refuses) as server:
            assert isinstance(await fails(call(server, act)), Forbidden | Unauthorized)
            assert len(server.asked) == 3
        async with Misbehaving(refuses, ready, answer({"kind": "Pod"})) as server:
            assert await call(server, act) == {"kind": "Pod"}
    async with Misbehaving(refuses, hang_up) as server:
        assert type(await fails(call(server, act))) is Unreachable


async def test_what_a_rule_of_the_clusters_forbids_stays_forbidden() -> None:
    denied = says(403, "Forbidden", 'admission webhook "x" denied the request')
    async with Misbehaving(denied) as server:
        assert isinstance(await fails(call(server, lambda client: client.delete(POD))), Forbidden)
    assert len(server.asked) == 1


async def test_a_budgets_refusal_is_told_from_that_of_a_server_with_too_much_to_do() -> None:
    budget = says(429, "TooManyRequests", "Cannot evict pod", ["DisruptionBudget"])
    async with Misbehaving(budget) as server:
        error = await fails(call(server, lambda client: client.create(f"{POD}/eviction", {})))
    assert isinstance(error, BudgetRefused)

    for other in (says(429, "TooManyRequests", "later"), PLAIN_REFUSAL):
        async with Misbehaving(other) as server:
            error = await fails(call(server, lambda client: client.create(f"{POD}/eviction", {})))
        assert isinstance(error, Unreachable)
        assert error.status == 429
        assert len(server.asked) == 1, "writes are not repeated"


async def test_a_read_is_repeated_once_after_the_time_asked_for() -> None:
    waits = Waits()
    async with Misbehaving(PLAIN_REFUSAL, answer({"kind": "Pod"})) as server:
        assert await call(server, lambda client: client.get(POD), waits=waits) == {"kind": "Pod"}
    assert waits.waited == [1.0]

    waits = Waits()
    late = raw(http(503, b"{}", "Retry-After: 99999"))
    async with Misbehaving(late) as server:
        error = await fails(call(server, lambda client: client.get(POD), waits=waits))
    assert isinstance(error, Unreachable)
    assert error.retry_after_s == 99999
    assert waits.waited == [2.0], "not as long as any server likes"
    assert len(server.asked) == 2


TRUNCATED = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", close=True)
CHUNKS_CUT = raw(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n', close=True)


@pytest.mark.parametrize(
    "reply",
    [
        hang_up,
        TRUNCATED,
        CHUNKS_CUT,
        raw(b"SSH-2.0-OpenSSH\r\n\r\n", close=True),
        says(500, "InternalError", "etcdserver: request timed out"),
        says(504, "Timeout"),
    ],
    ids=["hangs up", "truncated", "chunks cut", "not HTTP", "500", "504"],
)
@pytest.mark.parametrize("write", [False, True])
async def test_troubles_that_pass(reply: Reply, write: bool) -> None:
    """Reads are sent twice, and may then succeed; writes once, and nobody knows what became of them."""

    async def act(client: KubeClient) -> object:
        return await (client.delete(POD) if write else client.get(POD))

    async with Misbehaving(reply) as server:
        error = await fails(call(server, act))
        assert type(error) is Unreachable
        assert len(server.asked) == (1 if write else 2)
    if not write:
        async with Misbehaving(reply, answer({"kind": "Pod"})) as server:
            assert await call(server, act) == {"kind": "Pod"}


@pytest.mark.parametrize(
    "reply",
    [
        raw(http(200, b"<html>Sign in</html>", "Content-Type: text/html")),
        raw(http(200, b"[1]")),
        raw(http(200, b"")),
        raw(http(200, b"[" * 9000)),
        raw(http(403, b"<html>inside of another server</html>", "Content-Type: text/html")),
        raw(http(404, b"404 page not found")),
        raw(http(200, b"{}", "Content-Encoding: gzip").replace(b"{}", b"\x1f\x8b")),
    ],
    ids=["page", "no object", "nothing", "deep", "proxy says no", "no such API", "compressed"],
)
async def test_answers_that_no_api_server_gives(reply: Reply) -> None:
    async with Misbehaving(reply) as server:
        error = await fails(call(server, lambda client: client.get(POD)))
    assert type(error) is Unreachable
    assert "inside" not in error.message, "what other servers say is nobody's business"
    assert len(server.asked) == 1


async def test_redirects_are_not_followed() -> None:
    async with Misbehaving(answer({"secret": True})) as other:
        away = raw(http(307, b"", f"Location: {other.url}/latest/meta-data"))
        async with Misbehaving(away) as server:
            error = await fails(call(server, lambda client: client.get(POD)))
    assert isinstance(error, Unreachable)
    assert error.status == 307
    assert other.asked == []


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_endless_answer_ends(chunked: bool) -> None:
    body = b"x" * 20_000
    announced = http(200, body)
    in_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n" + body + b"\r\n"
    async with Misbehaving(raw(in_chunks if chunked else announced)) as server:
        error = await fails(call(server, lambda client: client.get(POD)))
    assert "larger than 10000 bytes" in error.message


async def test_a_list_without_items_is_none() -> None:
    async with Misbehaving(answer({"kind": "Status"})) as server:
        assert type(await fails(call(server, lambda client: client.list("/api/v1/nodes")))) is Unreachable
    async with Misbehaving(answer({"metadata": {"resourceVersion": "3"}, "items": None})) as server:
        found = await call(server, lambda client: client.list("/api/v1/nodes"))
    assert isinstance(found, client_module.KubeList)
    assert found.items == []


async def test_nobody_listens() -> None:
    async with Misbehaving(silence) as server:
        pass
    error = await fails(call(server, lambda client: client.get(POD)))
    assert type(error) is Unreachable
    assert error.status is None


async def test_silence_ends_after_the_limit_and_condemns_the_connections_beside_it() -> None:
    async with Misbehaving(answer({"kind": "Pod"}), silence, answer({"kind": "Pod"})) as server:
        client = KubeClient(server.kubeconfig(), limit_s=0.3, wait=Waits())
        await client.get(POD)
        began = monotonic()
        assert type(await fails(client.get(POD))) is Unreachable
        assert 0.2 < monotonic() - began < 4
        assert len(server.asked) == 2, "it had all its time: not repeated"
        assert await client.get(POD) == {"kind": "Pod"}
        await client.close()
    assert [each.connection for each in server.asked] == [0, 0, 1]


async def test_a_write_over_a_connection_that_just_broke_is_not_sent_again() -> None:
    async with Misbehaving(answer({"kind": "Pod"}), hang_up) as server:

        async def act(client: KubeClient) -> None:
            await client.get(POD)
            await client.delete(POD)

        assert type(await fails(call(server, act))) is Unreachable
    assert [each.method for each in server.asked] == ["GET", "DELETE"]


async def test_requests_in_flight_are_bounded() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await answer({"kind": "Pod"})(writer)

    async with Misbehaving(slowly) as server:
        client = KubeClient(server.kubeconfig(), in_flight=3)
        await asyncio.gather(*(client.get(POD) for _ in range(12)))
        await client.close()
    assert server.most == 3
    assert len(server.asked) == 12


async def test_a_server_that_hangs_costs_each_caller_one_limit_however_many_wait() -> None:
    async with Misbehaving(silence) as server:
        client = KubeClient(server.kubeconfig(), in_flight=2, limit_s=0.4, wait=Waits())
        began = monotonic()
        ended = await asyncio.gather(*(client.get(POD) for _ in range(40)), return_exceptions=True)
        took = monotonic() - began
        await client.close()
    assert all(type(each) is Unreachable for each in ended)
    assert took < 3, "forty in rows of two would take eight seconds"
    assert len(server.asked) == 2


async def test_waiting_for_a_slow_server_is_no_failure() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await answer({"kind": "Pod"})(writer)

    async with Misbehaving(slowly) as server:
        client = KubeClient(server.kubeconfig(), in_flight=1, limit_s=0.4, wait=Waits())
        await asyncio.gather(*(client.get(POD) for _ in range(6)))  # the last waits for more than its limit
        await client.close()
    assert len(server.asked) == 6


async def test_a_queue_that_is_longer_than_a_deadline_can_bear_is_said() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await answer({"kind": "Pod"})(writer)

    async with Misbehaving(slowly) as server:
        client = KubeClient(server.kubeconfig(), in_flight=1, limit_s=0.5, wait=Waits())
        began = monotonic()
        ended = await asyncio.gather(*(client.get(POD) for _ in range(20)), return_exceptions=True)
        took = monotonic() - began
        late = [each for each in ended if isinstance(each, Unreachable)]
        assert late, "twenty in a row take six seconds"
        assert all("no turn" in each.message for each in late)
        assert len(ended) - len(late) == len(server.asked) >= 1
        assert took < 4
        assert await client.get(POD) == {"kind": "Pod"}, "who left the queue left no place taken"
        assert client.busy == 0
        await client.close()


async def test_a_cancelled_call_gives_its_place_back() -> None:
    async with Misbehaving(silence, answer({"kind": "Pod"})) as server:
        client = KubeClient(server.kubeconfig(), in_flight=1)
        task = asyncio.create_task(client.get(POD))
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.get(POD) == {"kind": "Pod"}
        assert client.busy == 0
        await client.close()
