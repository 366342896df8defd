"""Volumes over HTTP, by the official client in strict mode, and by its command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import together
from together.types.clusters import ClusterStorage

from .conftest import error_of
from .living import Living, living
from .stories import CREATE, Story
from .test_tg import DRIVER, NAMED, Run, refused, tg, told

__all__ = ["tg"]

VOLUMES = "/v1/compute/clusters/storage/volumes"
CLUSTERS = "/v1/compute/clusters"
DATA = {"region": "local-1", "volume_name": "demo-data", "size_tib": 2}
NOBODYS = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"


@pytest.fixture(scope="module")
def server(postgres_server: Any, _database_template: str) -> Iterator[Living]:
    """One Ebbtide for all tests of this page; each uses names of its own."""
    from tests.conftest import _administer, _with_database

    _administer(postgres_server, f"CREATE DATABASE storage_tests TEMPLATE {_database_template}")
    with living(_with_database(postgres_server.url, "storage_tests")) as running:
        yield running
    _administer(postgres_server, "DROP DATABASE storage_tests WITH (FORCE)")


def strictly(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    ClusterStorage.model_validate_json(answer.content, strict=True)
    body: dict[str, Any] = answer.json()
    assert set(body) == {"volume_id", "volume_name", "size_tib", "status"}
    return body


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    for _ in range(100):
        seen = look()
        if holds(seen):
            return seen
        time.sleep(0.1)
    raise AssertionError(seen)


async def test_a_volume_over_http(story: Story) -> None:
    made = strictly(await story.tenant.post(VOLUMES, json=DATA))
    await story.simulated.run_for(15)
    one = f"{VOLUMES}/{made['volume_id']}"
    assert strictly(await story.tenant.get(one))["status"] == "available"
    grown = {"volume_id": made["volume_id"], "size_tib": 3}
    assert strictly(await story.tenant.put(VOLUMES, json=grown))["size_tib"] == 3
    whole = {**DATA, **grown, "is_lifecycle_independent": False, "project_id": story.project}
    assert strictly(await story.tenant.put(VOLUMES, json=whole))["size_tib"] == 3
    assert strictly(await story.tenant.put(VOLUMES, json={"volume_id": made["volume_id"]}))["size_tib"] == 3
    for query in ({}, {"projectId": story.project}, {"project_id": story.project}):
        listed = (await story.tenant.get(VOLUMES, params=query)).json()
        assert [each["volume_id"] for each in listed["volumes"]] == [made["volume_id"]]
        assert (await story.other.get(VOLUMES, params=query)).json() == {"volumes": []}
    for method, kind in (("GET", "not_found_error"), ("DELETE", "not_found_error")):
        assert error_of(await story.other.request(method, one))["type"] == kind
    assert (await story.tenant.delete(one)).json() == {"success": True}


async def test_a_cluster_shows_its_volume_and_keeps_it(story: Story) -> None:
    cluster = await story.create(shared_volume=DATA)
    (volume,) = cluster["volumes"]
    assert (volume["volume_name"], volume["status"]) == ("demo-data", "scheduled")
    await story.simulated.run_for(60)
    shown = await story.operator.get(f"/v1/playground/clusters/{cluster['cluster_id']}/volumes")
    (manifest,) = shown.json()["volumes"]
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("PersistentVolume", "demo-data")
    seen = await story.see(cluster)
    assert (seen["status"], seen["volumes"][0]["status"]) == ("Ready", "bound")
    answer = await story.tenant.delete(f"{VOLUMES}/{volume['volume_id']}")
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert error_of(answer)["code"] == "volume_attached"
    same = {"volume_id": volume["volume_id"], "shared_volume": DATA}
    path = f"{CLUSTERS}/{cluster['cluster_id']}"
    assert (await story.tenant.put(path, json=same)).status_code == 200
    for changed in ({"volume_id": NOBODYS}, {"shared_volume": {**DATA, "volume_name": "x"}}):
        answer = await story.tenant.put(path, json=changed)
        assert (answer.status_code, error_of(answer)["param"]) == (400, next(iter(changed)))
    for size in (9, "2", True):
        wrong = await story.tenant.put(path, json={"shared_volume": {**DATA, "size_tib": size}})
        assert (wrong.status_code, error_of(wrong)["param"]) == (400, "shared_volume.size_tib")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "region"),
        ({**DATA, "size_tib": 0}, "size_tib"),
        ({**DATA, "size_tib": -1}, "size_tib"),
        ({**DATA, "size_tib": "2"}, "size_tib"),
        ({**DATA, "size_tib": 1.5}, "size_tib"),
        ({**DATA, "size_tib": True}, "size_tib"),
        ({**DATA, "size_tib": 10**30}, "size_tib"),
        ({**DATA, "size_tib": 5000}, "size_tib"),
        ({**DATA, "volume_name": "a\0b"}, "volume_name"),
        ({**DATA, "volume_name": ""}, "volume_name"),
        ({**DATA, "volume_name": "x" * 10_000}, "volume_name"),
        ({**DATA, "volume_name": "Not_A_Name"}, "volume_name"),
        ({**DATA, "volume_name": ["a"]}, "volume_name"),
        ({**DATA, "region": "mars"}, "region"),
        ({**DATA, "instance_cluster_id": "nope"}, "instance_cluster_id"),
        ({**DATA, "is_lifecycle_independent": "yes"}, "is_lifecycle_independent"),
    ],
)
async def test_bad_orders_are_400_with_the_field(story: Story, body: dict[str, Any], param: str) -> None:
    answer = await story.tenant.post(VOLUMES, json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert (await story.tenant.get(VOLUMES)).json() == {"volumes": []}


async def test_what_a_cluster_order_may_say_of_volumes(story: Story) -> None:
    made = strictly(await story.tenant.post(VOLUMES, json={**DATA, "volume_name": "there"}))
    for wrong, param in (
        ({"shared_volume": DATA, "volume_id": made["volume_id"]}, "volume_id"),
        ({"shared_volume": {**DATA, "region": "mars"}}, "shared_volume.region"),
        ({"shared_volume": {"region": "local-1"}}, "shared_volume.volume_name"),
        ({"shared_volume": "demo"}, "shared_volume"),
        ({"volume_id": "nope"}, "volume_id"),
        ({"volume_id": NOBODYS}, "volume_id"),
    ):
        answer = await story.tenant.post(CLUSTERS, json={**CREATE, **wrong})
        assert (answer.status_code, error_of(answer)["param"]) == (400, param), wrong
    answer = await story.other.post(CLUSTERS, json={**CREATE, "volume_id": made["volume_id"]})
    assert answer.status_code == 400, "another's volume is as good as none"
    assert (await story.tenant.get(CLUSTERS)).json() == {"clusters": []}
    answer = await story.tenant.post(CLUSTERS, json={**CREATE, "shared_volume": None, "volume_id": None})
    assert answer.status_code == 200


async def test_unknown_ids_and_wrong_changes(story: Story) -> None:
    for name in (NOBODYS, "nope", "a%00b", "é"):
        assert (await story.tenant.get(f"{VOLUMES}/{name}")).status_code == 404
        assert (await story.tenant.delete(f"{VOLUMES}/{name}")).status_code == 404
    assert (await story.tenant.put(VOLUMES, json={"size_tib": 1})).status_code == 400
    assert (await story.tenant.put(VOLUMES, json={"volume_id": "nope"})).status_code == 404
    made = strictly(await story.tenant.post(VOLUMES, json=DATA))
    for change in ({"size_tib": 1}, {"region": "mars"}, {"volume_name": "other"}):
        answer = await story.tenant.put(VOLUMES, json={"volume_id": made["volume_id"], **change})
        assert (answer.status_code, error_of(answer)["param"]) == (400, next(iter(change)))


def test_the_official_client_in_strict_mode(server: Living) -> None:
    with together.Together(
        base_url=server.url, api_key=server.member, _strict_response_validation=True, timeout=20
    ) as client:
        storage = client.clusters.storage
        made = storage.create(region="local-1", volume_name="sdk-data", size_tib=1)
        seen = until(lambda: storage.retrieve(made.volume_id), lambda each: each.status == "available")
        assert (seen.volume_name, seen.size_tib) == ("sdk-data", 1)
        assert storage.update(volume_id=made.volume_id, size_tib=2).size_tib == 2
        assert made.volume_id in [each.volume_id for each in storage.list().volumes]
        assert storage.list(project_id="another").volumes == []
        cluster = client.clusters.create(
            billing_type="ON_DEMAND",
            cluster_name="with-data",
            gpu_type="H100_SXM",
            region="local-1",
            nvidia_version_id="local-1-570-128",
            num_gpus=8,
            volume_id=made.volume_id,
        )
        assert [each.volume_id for each in cluster.volumes] == [made.volume_id]
        with pytest.raises(together.ConflictError, match="attached"):
            storage.delete(made.volume_id)
        with pytest.raises(together.BadRequestError, match="only grows"):
            storage.update(volume_id=made.volume_id, size_tib=1)
        with pytest.raises(together.NotFoundError):
            storage.retrieve(NOBODYS)
        client.clusters.delete(cluster.cluster_id)
        until(lambda: storage.retrieve(made.volume_id), lambda each: each.status == "available")
        assert storage.delete(made.volume_id).success is True


def test_tg_storage_in_json_and_in_text(tg: Run, server: Living) -> None:
    wanted = ["--region", "local-1", "--size-tib", "1", "--volume-name"]
    made = told(tg("storage", "create", *wanted, "tg-data", "--is-lifecycle-independent", "--json"))
    volume = str(made["volume_id"])
    assert (made["volume_name"], made["size_tib"]) == ("tg-data", 1)
    assert told(tg("storage", "update", volume, "--size-tib", "4", "--json"))["size_tib"] == 4
    assert told(tg("storage", "update", volume, "--json"))["size_tib"] == 4
    assert volume in json.dumps(json.loads(tg("storage", "list", "--json").stdout))
    text = tg("storage", "list", "--non-interactive")
    assert text.returncode == 0
    assert "tg-data" in text.stdout
    refused(tg("storage", "create", *wanted, "tg-data", "--json"), "already")
    refused(tg("storage", "create", *wanted, "No_Name", "--non-interactive"), "lower-case")
    refused(tg("storage", "update", volume, "--size-tib", "2", "--non-interactive"), "only grows")
    refused(tg("storage", "retrieve", NOBODYS, "--json"), "no volume")
    assert told(tg("storage", "delete", volume, "--force", "--json"))["success"] is True


def test_tg_gives_a_volume_to_a_cluster(tg: Run, server: Living) -> None:
    wanted = ["--region", "local-1", "--size-tib", "1", "--volume-name"]
    made = tg("storage", "create", *wanted, "tg-shared", "--non-interactive")
    assert made.returncode == 0, made.stdout + made.stderr
    with together.Together(base_url=server.url, api_key=server.member) as client:
        named = {each.volume_name: each.volume_id for each in client.clusters.storage.list().volumes}
        volume = named["tg-shared"]
        order = [*NAMED, *DRIVER, "--num-gpus", "8", "--volume", volume, "--json"]
        cluster = str(told(tg("create", *order))["cluster_id"])
        seen = until(lambda: client.clusters.retrieve(cluster), lambda each: each.status == "Ready")
        assert [each.volume_id for each in seen.volumes] == [volume]
        refused(tg("create", *order), "attached to")
        refused(tg("storage", "delete", volume, "--force", "--non-interactive"), "attached")
        client.clusters.delete(cluster)
