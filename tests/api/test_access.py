"""Keys, quotas, the audit log and webhooks over HTTP: what is taken, what is refused, what is shown once."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.api.wire_access import AuditPage, IssuedKey, KeyList, Project
from ebbtide.api.wire_webhooks import DeliveryList, IssuedWebhook, WebhookList

from .conftest import error_of
from .stories import CLUSTERS, CREATE, Story


async def test_a_keys_secret_is_shown_once(story: Story) -> None:
    body = {"project": "acme", "role": "member", "name": "ci", "expires_in_days": 9}
    made = await story.operator.post("/v1/keys", json=body)
    issued = IssuedKey.model_validate_json(made.content)
    assert (issued.name, issued.last_used_at, issued.role) == ("ci", None, "member")
    assert issued.expires_at
    assert (issued.expires_at - issued.created_at).days == 9
    listed = await story.operator.get("/v1/keys")
    assert issued.key not in listed.text
    assert issued.id in {key.id for key in KeyList.model_validate_json(listed.content).keys}


async def test_an_overlap_of_an_hour_unless_said_otherwise(story: Story) -> None:
    issued = (await story.operator.post("/v1/keys", json={"project": "acme"})).json()
    turned = await story.operator.post(f"/v1/keys/{issued['id']}/rotate", json={})
    assert turned.json()["key"] != issued["key"]
    bearer = {"authorization": f"Bearer {issued['key']}"}
    story.simulated.clock.advance(3_599)
    assert (await story.tenant.get("/v3/whoami", headers=bearer)).status_code == 200
    story.simulated.clock.advance(1)
    answer = await story.tenant.get("/v3/whoami", headers=bearer)
    assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_api_key")


async def test_a_quota_is_set_kept_and_taken_away(story: Story) -> None:
    path = f"/v1/fleet/projects/{story.project}"
    answer = await story.operator.patch(path, json={"preemptible_gpus_limit": 8, "weight": 2})
    project = Project.model_validate_json(answer.content)
    assert (project.weight, project.standard_gpus_limit, project.preemptible_gpus_limit) == (2, None, 8)
    order = {**CREATE, "num_preemptible_gpus": 16, "project_id": story.project}
    refused = await story.tenant.post(CLUSTERS, json=order)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "quota_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    kept = await story.operator.patch(path, json={"weight": None})
    assert kept.json()["preemptible_gpus_limit"] == 8
    gone = await story.operator.patch("/v1/fleet/projects/acme", json={"preemptible_gpus_limit": -1})
    assert gone.json()["preemptible_gpus_limit"] is None
    assert (await story.tenant.post(CLUSTERS, json=order)).status_code == 200
    answer = await story.tenant.patch(path, json={"weight": 9})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "operator_only")


async def test_an_entry_carries_the_requests_own_id(story: Story) -> None:
    await story.tenant.post(
        "/v1/webhooks", json={"url": "https://x.example/"}, headers={"x-request-id": "r-1"}
    )
    page = AuditPage.model_validate_json((await story.tenant.get("/v1/audit")).content)
    assert [(each.action, each.request_id) for each in page.entries] == [("webhook.create", "r-1")]
    assert page.next_before is None
    theirs = AuditPage.model_validate_json((await story.other.get("/v1/audit")).content)
    assert theirs.entries == []
    first = AuditPage.model_validate_json((await story.operator.get("/v1/audit?limit=1")).content)
    assert first.next_before == first.entries[0].number
    rest = await story.operator.get("/v1/audit", params={"before": first.next_before})
    assert all(each["number"] < first.next_before for each in rest.json()["entries"])


async def test_a_webhooks_secret_is_shown_once(story: Story) -> None:
    made = await story.tenant.post("/v1/webhooks", json={"url": "https://x.example/", "reasons": None})
    issued = IssuedWebhook.model_validate_json(made.content)
    assert issued.reasons is None
    listed = await story.tenant.get("/v1/webhooks")
    assert issued.secret not in listed.text
    assert [each.id for each in WebhookList.model_validate_json(listed.content).webhooks] == [issued.id]
    sent = await story.tenant.get(f"/v1/webhooks/{issued.id}/deliveries")
    assert DeliveryList.model_validate_json(sent.content).deliveries == []
    gone = await story.tenant.delete(f"/v1/webhooks/{issued.id}")
    assert gone.json() == {"id": issued.id, "deleted": True}
    assert (await story.tenant.delete(f"/v1/webhooks/{issued.id}")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "/v1/keys", {"role": "king"}, "role"),
        ("POST", "/v1/keys", {"expires_in_days": 0}, "expires_in_days"),
        ("POST", "/v1/keys", {"expires_in_days": 3_651}, "expires_in_days"),
        ("POST", "/v1/keys/k/rotate", {"overlap_s": -1}, "overlap_s"),
        ("POST", "/v1/keys/k/rotate", {"overlap_s": 604_801}, "overlap_s"),
        ("PATCH", "/v1/fleet/projects/acme", {"weight": 0}, "weight"),
        ("PATCH", "/v1/fleet/projects/acme", {"standard_gpus_limit": "many"}, "standard_gpus_limit"),
        ("POST", "/v1/webhooks", {}, "url"),
        ("POST", "/v1/webhooks", {"url": "x.example"}, "url"),
        ("POST", "/v1/webhooks", {"url": "https://x.example/", "reasons": []}, "reasons"),
        ("POST", "/v1/webhooks", {"url": "https://x.example/", "reasons": ["Nothing"]}, "reasons"),
        ("GET", "/v1/audit?limit=501", None, "limit"),
        ("GET", "/v1/audit?before=0", None, "before"),
        ("GET", "/v1/webhooks/w/deliveries?limit=0", None, "limit"),
    ],
)
async def test_what_cannot_be_right_names_its_field(
    story: Story, method: str, path: str, body: Any, param: str
) -> None:
    answer = await story.operator.request(method, path, json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
