"""What holds on every path: keys, ids, error shapes, odd base URLs, bodies that are no bodies."""

from __future__ import annotations

import json

import httpx
import pytest
import structlog
from fastapi import FastAPI
from starlette.types import Message

from ebbtide.api.middleware import normal_path

from .conftest import CREATE, error_of
from .doubles import Doubles

CLUSTERS = "/v1/compute/clusters"


@pytest.mark.parametrize(
    "path", ["/v3/whoami", CLUSTERS, "/v1/compute/regions", "/v1/fleet/pools", "/v1/usage"]
)
async def test_without_a_key_everything_is_401_in_the_shape_that_the_cli_reads(
    stranger: httpx.AsyncClient, path: str
) -> None:
    answer = await stranger.get(path)
    assert answer.status_code == 401
    assert error_of(answer)["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer",
        "Bearer ",
        "Basic member-key",
        "member-key",
        "Bearer " + "x" * 5000,
        "Bearer ü",
    ],
)
async def test_a_bad_key_is_401(stranger: httpx.AsyncClient, header: str) -> None:
    answer = await stranger.get(CLUSTERS, headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    error_of(answer)


async def test_the_key_is_checked_before_the_body(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.post(CLUSTERS, content=b"{not json")).status_code == 401


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("/v1/compute/clusters", "/v1/compute/clusters"),
        ("/v1/v1/compute/clusters", "/v1/compute/clusters"),
        ("/compute/clusters/x", "/v1/compute/clusters/x"),
        ("/v1/v3/whoami", "/v3/whoami"),
        ("/v1/v1/v3/whoami", "/v3/whoami"),
        ("/v1/compute/clusters/", "/v1/compute/clusters"),
        ("/v1/v1/fleet/pools", "/v1/fleet/pools"),
        ("/", "/"),
        ("/docs", "/docs"),
        ("/clusters/", "/clusters/"),
    ],
)
def test_the_same_routes_answer_under_every_base_url_that_clients_use(asked: str, known: str) -> None:
    assert normal_path(asked) == known


@pytest.mark.parametrize("prefix", ["/v1", "/v1/v1", ""])
async def test_lists_answer_under_each_prefix(member: httpx.AsyncClient, prefix: str) -> None:
    answer = await member.get(f"{prefix}/compute/clusters")
    assert (answer.status_code, answer.json()) == (200, {"clusters": []})


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nope", "/v2/compute/clusters", "/v1/compute/clusters/a/b", "/x\u00e9"]
)
async def test_unknown_paths_are_404_in_the_standard_shape(member: httpx.AsyncClient, path: str) -> None:
    answer = await member.get(path)
    assert answer.status_code == 404
    assert "base URL" in str(error_of(answer)["message"])


async def test_a_wrong_method_is_405_and_says_which_are_right(member: httpx.AsyncClient) -> None:
    answer = await member.patch(CLUSTERS)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert "GET, POST" in str(error_of(answer)["message"])
    one = await member.post(f"{CLUSTERS}/7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01")
    assert one.headers["allow"] == "GET, PUT, DELETE"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"17",
        b"\xff\xfe\x00",
        b'{"num_gpus": NaN}',
        b'{"num_gpus": Infinity}',
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"num_gpus": ' + b"9" * 10_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
async def test_what_is_no_json_object_is_400(member: httpx.AsyncClient, raw: bytes) -> None:
    answer = await member.post(CLUSTERS, content=raw)
    assert answer.status_code == 400
    error_of(answer)


async def test_a_body_over_the_limit_is_413_announced_or_not(member: httpx.AsyncClient) -> None:
    async def drip() -> object:
        for _ in range(40):
            yield b" " * 50_000

    announced = await member.post(CLUSTERS, content=b" " * 1_048_577)
    dripped = await member.post(CLUSTERS, content=drip())  # type: ignore[arg-type]  # httpx takes any async iterator
    absurd = await member.post(CLUSTERS, content=b"{}", headers={"content-length": "9" * 20})
    for answer in (announced, dripped, absurd):
        assert answer.status_code == 413
        error_of(answer)


@pytest.mark.parametrize("field", ["cluster_name", "region", "gpu_type", "project_id", "nvidia_version_id"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 256, "", "a\nb", "   "])
async def test_text_that_no_database_or_terminal_takes_is_400_and_names_the_field(
    member: httpx.AsyncClient, field: str, text: str
) -> None:
    answer = await member.post(CLUSTERS, content=json.dumps({**CREATE, field: text}))
    assert answer.status_code == 400
    assert error_of(answer)["param"] == field


async def test_every_answer_carries_a_request_id_and_a_given_one_is_kept(member: httpx.AsyncClient) -> None:
    first, second = await member.get("/healthz"), await member.get("/healthz")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    kept = await member.get("/healthz", headers={"x-request-id": "mine-1"})
    assert kept.headers["x-request-id"] == "mine-1"
    refused = await member.get("/healthz", headers={"x-request-id": "a b\tc"})
    assert refused.headers["x-request-id"] != "a b\tc"


async def test_a_fault_of_ours_is_500_with_the_request_id_and_without_its_secrets(
    member: httpx.AsyncClient, services: Doubles
) -> None:
    services.clusters.broken = RuntimeError("password=hunter2")
    with structlog.testing.capture_logs() as logged:
        answer = await member.post(CLUSTERS, json=CREATE)
    assert logged[0]["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError" in logged[0]["exception"]
    assert "member-key" not in str(logged)
    assert answer.status_code == 500
    error = error_of(answer)
    assert error["type"] == "internal_error"
    assert answer.headers["x-request-id"] in str(error["message"])
    assert "hunter2" not in answer.text


async def test_a_client_that_goes_away_is_no_fault_of_ours(app: FastAPI) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer member-key")]
    scope = {"type": "http", "method": "POST", "path": CLUSTERS, "query_string": b"", "headers": headers}
    with structlog.testing.capture_logs() as logged:
        await app(scope, receive, send)
    assert sent == []
    assert [each["log_level"] for each in logged] == ["info", "debug"]


async def test_health_readiness_and_metrics_need_no_key(
    stranger: httpx.AsyncClient, services: Doubles
) -> None:
    assert (await stranger.get("/healthz")).json() == {"status": "ok"}
    assert (await stranger.get("/readyz")).json() == {"status": "ready"}
    services.clusters.broken = ConnectionError("no server")
    away = await stranger.get("/readyz")
    assert away.status_code == 503
    assert error_of(away)["type"] == "service_unavailable_error"
    await stranger.get("/nowhere/at/all")
    metrics = (await stranger.get("/metrics")).text
    assert 'ebbtide_http_requests_total{method="GET",route="/readyz",status="503"}' in metrics
    assert 'route="unmatched",status="404"' in metrics
    assert "nowhere" not in metrics


async def test_the_cluster_routes_are_measured_by_their_template(member: httpx.AsyncClient) -> None:
    await member.get(f"{CLUSTERS}/7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01")
    metrics = (await member.get("/metrics")).text
    assert 'route="/v1/compute/clusters/{cluster_id}",status="404"' in metrics
