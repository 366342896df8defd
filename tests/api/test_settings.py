"""Settings over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from ebbtide.api.wire_settings import SettingList

from .conftest import error_of
from .stories import Story, tell
from .test_hosts import FLEET

SETTINGS = "/v1/fleet/settings"


@pytest.fixture
async def story(database_url: str) -> AsyncIterator[Story]:
    async with tell(database_url, FLEET) as told:
        yield told


def _values(answer: httpx.Response) -> dict[str, object]:
    assert answer.status_code == 200, answer.text
    return {one.name: one.value for one in SettingList.model_validate_json(answer.content).settings}


async def test_a_change_counts_for_the_next_request(story: Story) -> None:
    before = _values(await story.operator.get(SETTINGS))
    assert before["rate_limit_burst"] == 500
    change = {"set": {"rate_limit_burst": 50, "rate_limit_per_s": 1}}
    assert _values(await story.operator.patch(SETTINGS, json=change))["rate_limit_burst"] == 50
    answer = await story.tenant.get("/v3/whoami")
    assert answer.headers["x-ratelimit-limit"] == "50"
    again = {"reset": ["rate_limit_burst", "rate_limit_per_s"]}
    assert _values(await story.operator.patch(SETTINGS, json=again)) == before


async def test_what_is_wrong_is_said(story: Story) -> None:
    for body, param in (
        ({"set": {"mood": 1}}, "mood"),
        ({"set": {"lease_s": 1}}, "lease_s"),
        ({"set": {"cooldown_s": 1.5}}, None),
        ({"set": {"cooldown_s": 10**12}}, "cooldown_s"),
        ({"set": []}, "set"),
        ({"reset": "cooldown_s"}, "reset"),
    ):
        answer = await story.operator.patch(SETTINGS, json=body)
        assert answer.status_code == 400, body
        assert param is None or error_of(answer)["param"] == param
    assert (await story.tenant.get(SETTINGS)).status_code == 403
    assert (await story.tenant.patch(SETTINGS, json={})).status_code == 403
