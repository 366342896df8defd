"""The client: what it sends, and which error each refusal becomes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide import errors
from ebbtide.client import Client, ServerFault, Unreachable
from tests.cli.samples import CLUSTER_ID
from tests.cli.stub import Stub


@pytest.fixture
def client(stub: Stub) -> Iterator[Client]:
    with Client(stub.url, "ebb_k", timeout_s=5) as made:
        yield made


CALLS: list[tuple[str, Callable[[Client], Any], str, Any]] = [
    ("whoami", lambda c: c.whoami(), "GET /v3/whoami", ""),
    ("create", lambda c: c.create_cluster({"a": 1}), "POST /v1/compute/clusters", {"a": 1}),
    ("get", lambda c: c.cluster("x/y"), "GET /v1/compute/clusters/x%2Fy", ""),
    (
        "update",
        lambda c: c.update_cluster("x", {"num_gpus": 8}),
        "PUT /v1/compute/clusters/x",
        {"num_gpus": 8},
    ),
    ("delete", lambda c: c.delete_cluster("x"), "DELETE /v1/compute/clusters/x", ""),
    ("events", lambda c: c.events("x", after=3), "GET /v1/clusters/x/events?after=3&limit=500", ""),
    (
        "reclaim",
        lambda c: c.reclaim("p", 2, "why"),
        "POST /v1/fleet/reclaims",
        {"pool": "p", "hosts": 2, "reason": "why"},
    ),
    (
        "claim",
        lambda c: c.claim("p", 2, "r", "shop"),
        "POST /v1/fleet/claims",
        {"pool": "p", "hosts": 2, "ref": "r", "for": "shop"},
    ),
    ("find claim", lambda c: c.find_claim("a/b"), "GET /v1/fleet/claims/a%2Fb", ""),
    ("give all back", lambda c: c.give_back("r"), "DELETE /v1/fleet/claims/r", ""),
    (
        "give some back",
        lambda c: c.give_back("r", ["h1", "h2"]),
        "DELETE /v1/fleet/claims/r?hosts=h1%2Ch2",
        "",
    ),
    ("cordon", lambda c: c.cordon("h", "old"), "POST /v1/fleet/hosts/h/cordon", {"reason": "old"}),
    ("node", lambda c: c.node("n"), "GET /v1/fleet/nodes/n", ""),
    ("host", lambda c: c.host("h"), "GET /v1/fleet/hosts/h", ""),
    (
        "add host",
        lambda c: c.add_host("h", "p", "b"),
        "POST /v1/fleet/hosts",
        {"name": "h", "pool": "p", "fabric_block": "b"},
    ),
    (
        "drain host",
        lambda c: c.drain_host("h", "why", until="2026-01-02T03:04:05Z", dry_run=True),
        "POST /v1/fleet/hosts/h/drain",
        {"reason": "why", "until": "2026-01-02T03:04:05Z", "dry_run": True},
    ),
    ("return host", lambda c: c.return_host("h"), "POST /v1/fleet/hosts/h/return", {}),
    ("remove host", lambda c: c.remove_host("h"), "DELETE /v1/fleet/hosts/h", ""),
    (
        "change settings",
        lambda c: c.change_settings({"cooldown_s": 9}, ["retry_s"]),
        "PATCH /v1/fleet/settings",
        {"set": {"cooldown_s": 9}, "reset": ["retry_s"]},
    ),
    ("uncordon", lambda c: c.uncordon("h"), "POST /v1/fleet/hosts/h/uncordon", {}),
    ("apply", lambda c: c.apply_fleet_file("regions: {}"), "POST /v1/fleet/file", "regions: {}"),
    (
        "usage",
        lambda c: c.usage(since="2026-01-01T00:00:00Z", by="node"),
        "GET /v1/usage?from=2026-01-01T00%3A00%3A00Z&by=node",
        "",
    ),
    (
        "project",
        lambda c: c.create_project("lab", "Lab"),
        "POST /v1/projects",
        {"slug": "lab", "name": "Lab", "weight": None, "organization": None},
    ),
    (
        "organization",
        lambda c: c.create_organization("Acme"),
        "POST /v1/access/organizations",
        {"name": "Acme"},
    ),
    (
        "change organization",
        lambda c: c.change_organization("Acme", disabled=True),
        "PATCH /v1/access/organizations/Acme",
        {"name": None, "disabled": True},
    ),
    ("key", lambda c: c.create_key("lab", "admin"), "POST /v1/keys", {"project": "lab", "role": "admin"}),
    (
        "project's quotas",
        lambda c: c.set_project("lab", {"standard_gpus_limit": -1}),
        "PATCH /v1/fleet/projects/lab",
        {"standard_gpus_limit": -1},
    ),
    (
        "key with an end",
        lambda c: c.create_key("lab", "admin", name="ci", expires_in_days=9),
        "POST /v1/keys",
        {"project": "lab", "role": "admin", "name": "ci", "expires_in_days": 9},
    ),
    ("rotate", lambda c: c.rotate_key("k", 60), "POST /v1/keys/k/rotate", {"overlap_s": 60}),
    ("rotate as usual", lambda c: c.rotate_key("k"), "POST /v1/keys/k/rotate", {}),
    ("audit", lambda c: c.audit(before=9, limit=2), "GET /v1/audit?before=9&limit=2", ""),
    ("webhook", lambda c: c.create_webhook("http://x"), "POST /v1/webhooks", {"url": "http://x"}),
    ("unsubscribe", lambda c: c.delete_webhook("w"), "DELETE /v1/webhooks/w", ""),
    ("revoke", lambda c: c.revoke_key("k"), "DELETE /v1/keys/k", ""),
    ("pods", lambda c: c.add_pods("x", {"name": "a"}), "POST /v1/playground/clusters/x/pods", {"name": "a"}),
    (
        "delete a node",
        lambda c: c.delete_node("x", "n"),
        "POST /v1/playground/clusters/x/nodes/n/delete",
        {},
    ),
    ("vanish", lambda c: c.vanish("h"), "POST /v1/playground/hosts/h/vanish", {}),
]
LISTS: list[tuple[str, Callable[[Client], Any], str, str]] = [
    ("regions", lambda c: c.regions(), "/v1/compute/regions", "regions"),
    ("clusters", lambda c: c.clusters(), "/v1/compute/clusters", "clusters"),
    ("a project's", lambda c: c.clusters("p"), "/v1/compute/clusters?projectId=p", "clusters"),
    ("pools", lambda c: c.pools(), "/v1/fleet/pools", "pools"),
    ("hosts", lambda c: c.hosts(), "/v1/fleet/hosts", "hosts"),
    ("a pool's hosts", lambda c: c.hosts("p"), "/v1/fleet/hosts?pool=p", "hosts"),
    ("nodes", lambda c: c.nodes("x"), "/v1/fleet/nodes?cluster_id=x", "nodes"),
    ("claims", lambda c: c.claims("p"), "/v1/fleet/claims?pool=p", "claims"),
    ("projects", lambda c: c.projects(), "/v1/projects", "data"),
    ("ownership", lambda c: c.ownership(), "/v1/fleet/ownership", "ownership"),
    ("keys", lambda c: c.keys(), "/v1/keys", "keys"),
    ("webhooks", lambda c: c.webhooks(), "/v1/webhooks", "webhooks"),
    (
        "deliveries",
        lambda c: c.deliveries("w", limit=5),
        "/v1/webhooks/w/deliveries?limit=5",
        "deliveries",
    ),
    ("pods", lambda c: c.pods("x"), "/v1/playground/clusters/x/pods", "pods"),
]


class TestRequests:
    @pytest.mark.parametrize(
        ("call", "request_line", "body"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS]
    )
    def test_each_call_is_its_request(
        self, stub: Stub, client: Client, call: Callable[[Client], Any], request_line: str, body: Any
    ) -> None:
        stub.on(request_line, {"done": True})
        assert call(client) == {"done": True}
        assert stub.last.body == body
        assert stub.last.key == "ebb_k"

    @pytest.mark.parametrize(("call", "path", "name"), [c[1:] for c in LISTS], ids=[c[0] for c in LISTS])
    def test_each_list_is_unwrapped(
        self, stub: Stub, client: Client, call: Callable[[Client], Any], path: str, name: str
    ) -> None:
        stub.on(f"GET {path}", {name: [{"one": 1}]})
        assert call(client) == [{"one": 1}]

    def test_a_token_makes_a_create_repeatable(self, stub: Stub, client: Client) -> None:
        stub.on("POST /v1/compute/clusters", {"cluster_id": CLUSTER_ID})
        client.create_cluster({}, token="t-1")
        assert stub.last.headers["idempotency-key"] == "t-1"
        client.create_cluster({})
        assert "idempotency-key" not in stub.last.headers

    @pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
    def test_the_address_may_end_in_v1(self, stub: Stub, suffix: str) -> None:
        stub.on("GET /v3/whoami", {})
        with Client(stub.url + suffix, "k") as client:
            assert client.whoami() == {}

    def test_no_proxy_gets_requests_to_this_machine(
        self, stub: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        stub.on("GET /v3/whoami", {})
        with Client(stub.url, "k") as client:
            assert client.whoami() == {}


class TestFollowing:
    PATH = "GET /v1/clusters/x/events/stream"

    def test_events_come_until_the_stream_ends(self, stub: Stub, client: Client) -> None:
        stub.on(self.PATH, 'retry: 2000\n\n: quiet\n\nid: 4\nevent: E\ndata: {"number":4}\n\n')
        assert list(client.follow("x", after=3)) == [{"number": 4}]
        assert stub.last.headers["last-event-id"] == "3"

    def test_half_an_event_is_none(self, stub: Stub, client: Client) -> None:
        stub.on(self.PATH, 'data: {"number":4}\n')
        assert list(client.follow("x")) == []

    def test_a_refusal_is_the_servers(self, stub: Stub, client: Client) -> None:
        stub.refuse(self.PATH, 404, "cluster not found")
        with pytest.raises(errors.NotFound, match="cluster not found"):
            list(client.follow("x"))

    def test_a_break_is_told_as_one(self) -> None:
        def cut(request: httpx.Request) -> httpx.Response:
            raise httpx.ReadError("cut", request=request)

        with (
            Client("http://x.example", "k", transport=httpx.MockTransport(cut)) as client,
            pytest.raises(Unreachable, match="broke off"),
        ):
            list(client.follow("x"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, errors.BadInput),
            (401, errors.Unauthenticated),
            (403, errors.Forbidden),
            (404, errors.NotFound),
            (405, errors.BadInput),
            (409, errors.Conflict),
            (413, errors.BadInput),
            (418, errors.EbbtideError),
            (500, ServerFault),
            (503, ServerFault),
        ],
    )
    def test_each_status_is_an_error_of_ours(
        self, stub: Stub, client: Client, status: int, kind: type[errors.EbbtideError]
    ) -> None:
        stub.refuse("GET /v3/whoami", status, "because", code="word")
        with pytest.raises(kind) as caught:
            client.whoami()
        assert type(caught.value) is kind
        assert (caught.value.message, caught.value.code) == ("because", "word")

    @pytest.mark.parametrize("status", [200, 404, 502])
    @pytest.mark.parametrize(
        "body", ["<html>a proxy</html>", "", "[]", '{"error": "text"}', '{"detail": []}']
    )
    def test_another_servers_answer_is_told_apart(
        self, stub: Stub, client: Client, status: int, body: str
    ) -> None:
        stub.on("GET /v1/fleet/pools", body, status=status)
        with pytest.raises(ServerFault):
            client.pools()

    def test_a_missing_list_is_a_fault(self, stub: Stub, client: Client) -> None:
        stub.on("GET /v1/fleet/pools", {"other": []})
        with pytest.raises(ServerFault, match="no list 'pools'"):
            client.pools()

    def test_nobody_there(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            with Client(url, "k") as client, pytest.raises(Unreachable, match="nothing answers at"):
                client.whoami()

    def test_no_answer_in_time(self) -> None:
        def late(request: httpx.Request) -> httpx.Response:
            raise httpx.ReadTimeout("late", request=request)

        transport = httpx.MockTransport(late)
        with (
            Client("http://x.example", "k", transport=transport) as client,
            pytest.raises(Unreachable, match="did not answer in time"),
        ):
            client.whoami()

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost:8080",
            "ftp://x",
            "http://",
            "nonsense",
            "http://[::1",
            "http://x:99999999",
            "http://a\nb",
        ],
    )
    def test_an_address_that_is_none(self, url: str) -> None:
        with pytest.raises(errors.BadInput, match="no address of a server"):
            Client(url, "k")

    @pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
    def test_a_key_that_is_none(self, key: str) -> None:
        with pytest.raises(errors.BadInput, match="no key has"):
            Client("http://x", key)

    @pytest.mark.parametrize("ref", ["", ".", ".."])
    def test_a_name_that_would_be_another_path(self, client: Client, ref: str) -> None:
        with pytest.raises(errors.BadInput, match="no id or name"):
            client.find_claim(ref)

    @given(st.text(), st.text())
    def test_whatever_is_given_it_is_taken_or_refused(self, url: str, key: str) -> None:
        for address in (url, f"http://{url}"):
            with contextlib.suppress(errors.BadInput):
                Client(address, key).close()
