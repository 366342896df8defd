"""What a key may send: a burst, then so many a second; said in headers, and refused with a time to wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI

from ebbtide.api import rate_limit
from ebbtide.api.rate_limit import RateLimit
from ebbtide.errors import TooManyRequests

from .conftest import error_of
from .stories import client_of


class Watch:
    """A stopwatch that tests turn. In quarters of seconds, which floats hold exactly."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def watch() -> Watch:
    return Watch()


def _spends(limit: RateLimit, key: str = "k") -> int:
    """How many requests pass before one is refused."""
    for passed in range(1_000):
        try:
            limit.spend(key)
        except TooManyRequests:
            return passed
    raise AssertionError("nothing is refused")


class TestBucket:
    def test_a_rested_key_may_send_its_burst_at_once(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (2, 5), watch)
        assert [limit.spend("k") for _ in range(5)] == [4, 3, 2, 1, 0]
        with pytest.raises(TooManyRequests, match="more than 2 requests a second; wait 1 s") as caught:
            limit.spend("k")
        assert (caught.value.retry_after_s, caught.value.code) == (1, "rate_limited")

    def test_tokens_come_back_at_the_rate_up_to_the_burst(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (2, 5), watch)
        assert _spends(limit) == 5
        for waited_s, passes in ((0.25, 0), (0.25, 1), (1.0, 2), (1_000.0, 5)):
            watch.s += waited_s
            assert _spends(limit) == passes

    def test_a_refusal_costs_nothing(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (1, 1), watch)
        limit.spend("k")
        passed = []
        for _ in range(4):
            watch.s += 0.25
            passed.append(_spends(limit))
        assert passed == [0, 0, 0, 1]  # a second has passed, however often it was tried meanwhile

    def test_after_the_wait_that_was_told_it_passes(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (1, 3), watch)
        _spends(limit)
        with pytest.raises(TooManyRequests) as caught:
            limit.spend("k")
        watch.s += caught.value.retry_after_s
        limit.spend("k")

    def test_each_key_has_its_own(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (1, 2), watch)
        assert _spends(limit, "a") == 2
        assert _spends(limit, "b") == 2

    def test_0_is_no_limit(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (0, 1), watch)
        assert {limit.spend("k") for _ in range(100)} == {None}

    def test_a_burst_of_0_still_lets_one_through(self, watch: Watch) -> None:
        limit = RateLimit(lambda: (1, 0), watch)
        assert (_spends(limit), limit.burst) == (1, 1)

    def test_rested_keys_are_forgotten_first_and_busy_ones_kept(
        self, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rate_limit, "_MOST_KEYS", 3)
        limit = RateLimit(lambda: (1, 2), watch)
        limit.spend("rested")
        watch.s += 1
        assert _spends(limit, "busy") == 2
        limit.spend("third")
        limit.spend("fourth")  # makes room: only "rested" is full
        assert set(limit._buckets) == {"busy", "third", "fourth"}
        assert _spends(limit, "busy") == 0


class TestHttp:
    @pytest.fixture
    def limited(self, app: FastAPI, watch: Watch) -> FastAPI:
        app.state.context = replace(app.state.context, rate_limit=RateLimit(lambda: (1, 3), watch))
        return app

    @pytest.fixture
    async def tenant(self, limited: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
        async with client_of(limited) as client:
            yield client

    async def test_headers_count_down(self, tenant: httpx.AsyncClient) -> None:
        answers = [await tenant.get("/v3/whoami") for _ in range(3)]
        assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["2", "1", "0"]
        assert {each.headers["x-ratelimit-limit"] for each in answers} == {"3"}

    async def test_a_refusal_is_429_in_the_usual_shape(
        self, tenant: httpx.AsyncClient, limited: FastAPI, watch: Watch
    ) -> None:
        for _ in range(3):
            await tenant.get("/v3/whoami")
        answer = await tenant.get("/v3/whoami")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        error = error_of(answer)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
        async with client_of(limited, "operator-key") as other:
            assert (await other.get("/v3/whoami")).status_code == 200
        watch.s += 1
        assert (await tenant.get("/v3/whoami")).status_code == 200

    async def test_errors_count_and_say_so(self, tenant: httpx.AsyncClient) -> None:
        answer = await tenant.get("/v1/compute/clusters/nonsense")
        assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (404, "2")

    async def test_strangers_learn_nothing_and_probes_are_not_counted(
        self, limited: FastAPI, tenant: httpx.AsyncClient
    ) -> None:
        async with client_of(limited, "no-such-key") as stranger:
            answers = [await stranger.get("/v3/whoami") for _ in range(5)]
        assert {each.status_code for each in answers} == {401}
        assert not any("x-ratelimit-limit" in each.headers for each in answers)
        answers = [await tenant.get("/healthz") for _ in range(5)]
        assert {each.status_code for each in answers} == {200}

    async def test_without_a_limit_there_are_no_headers(self, app: FastAPI, watch: Watch) -> None:
        app.state.context = replace(app.state.context, rate_limit=RateLimit(lambda: (0, 3), watch))
        async with client_of(app) as tenant:
            answers = [await tenant.get("/v3/whoami") for _ in range(5)]
        assert {each.status_code for each in answers} == {200}
        assert not any("x-ratelimit-limit" in each.headers for each in answers)
