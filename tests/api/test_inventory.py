"""Inventory from elsewhere and wipes over HTTP, on a whole system."""

from __future__ import annotations

from tests.api.stories import Story

SYNC = "/v1/fleet/sync"


async def test_an_inventory_is_tried_applied_and_refused(story: Story) -> None:
    pool = (await story.operator.get("/v1/fleet/pools")).json()["pools"][0]["name"]
    listed = [f"extra-{number}" for number in range(4)]
    tried = await story.operator.post(SYNC, params={"pool": pool, "dry_run": True}, json=listed)
    assert tried.status_code == 200, tried.text
    assert tried.json()["dry_run"] is True
    applied = await story.operator.post(SYNC, params={"pool": pool}, json={"hosts": listed})
    assert applied.json() == {**tried.json(), "dry_run": False}
    assert "4 hosts added (extra-0, extra-1, extra-2, extra-3)" in applied.json()["done"][0]
    names = {host["name"] for host in (await story.operator.get("/v1/fleet/hosts")).json()["hosts"]}
    assert set(listed) <= names
    refused = await story.operator.post(SYNC, params={"pool": pool}, json=[])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "too_many_removed"
    emptied = await story.operator.post(SYNC, params={"pool": pool, "most_removed_percent": 100}, json=[])
    assert len(emptied.json()["done"]) == 4
    wrong = await story.operator.post(SYNC, params={"pool": pool, "most_removed_percent": 101}, json=[])
    assert wrong.status_code == 400
    nowhere = await story.operator.post(SYNC, params={"pool": "nowhere"}, json=[])
    assert nowhere.status_code == 404
    assert (await story.tenant.post(SYNC, json=[])).status_code == 403


async def test_who_wiped_what_can_be_asked(story: Story) -> None:
    cluster = await story.create(story.tenant, cluster_name="wiped")
    await story.simulated.run_for(60)
    await story.tenant.delete(f"/v1/compute/clusters/{cluster['cluster_id']}")
    await story.simulated.run_for(120)
    found = (await story.operator.get("/v1/fleet/wipes")).json()
    assert found["carrying"] == []
    assert {wipe["wiped_by"] for wipe in found["wipes"]} == {"the simulated fleet"}
    host, node = found["wipes"][0]["host"], found["wipes"][0]["node"]
    by_host = (await story.operator.get("/v1/fleet/wipes", params={"host": host})).json()
    by_node = (await story.operator.get("/v1/fleet/wipes", params={"node": node})).json()
    assert by_host["wipes"] == by_node["wipes"] == found["wipes"][:1]
    assert (await story.tenant.get("/v1/fleet/wipes")).status_code == 403
