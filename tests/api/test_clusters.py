"""Create, list, retrieve, update, delete: form, echoes, features that are not offered."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ebbtide.api.wire_answers import Cluster
from ebbtide.services.details import Replay

from .conftest import CREATE, error_of
from .doubles import Doubles
from .stories import client_of

CLUSTERS = "/v1/compute/clusters"
AN_ID = "7b0f3d52-3f1c-4c59-9a55-0d6a9b1d8a01"
ADD_ON = {"add_on_type": "headlamp", "name": "headlamp", "config": {"headlamp": {"enabled": True}}}
OIDC = {
    "issuer_url": "https://dex.example",
    "client_id": "c",
    "username_claim": "sub",
    "username_prefix": "oidc:",
    "group_claim": "groups",
    "group_prefix": "oidc:",
}


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post(CLUSTERS, json={**CREATE, **fields})
    assert answer.status_code == 200, answer.text
    Cluster.model_validate_json(answer.content)
    body: dict[str, Any] = answer.json()
    return body


async def test_a_create_answers_with_the_whole_cluster_at_once(member: httpx.AsyncClient) -> None:
    cluster = await created(member, num_preemptible_gpus=16, project_id="proj-1")
    assert cluster["status"] == "WaitingForDataPlaneNodes"
    assert (
        cluster["num_gpus"],
        cluster["desired_preemptible_gpus"],
        cluster["allocated_preemptible_gpus"],
    ) == (8, 16, 0)
    assert cluster["kube_config"] == ""
    assert cluster["project_id"] == "proj-1"
    assert cluster["nvidia_driver_version_id"] == "local-1-570-128"


async def test_nulls_are_not_given_and_unknown_fields_are_ignored(
    member: httpx.AsyncClient, services: Doubles
) -> None:
    sent = {
        **CREATE,
        "nvidia_version_id": None,
        "cuda_version": "12.8",
        "nvidia_driver_version": "570",
        "cluster_type": None,
        "duration_days": None,
        "num_preemptible_gpus": None,
        "project_id": None,
        "volume_id": None,
        "auto_scaled": False,
        "driver_version": "1",
        "gpu_node_failover_enabled": True,
        "add_ons": None,
    }
    cluster = await created(member, **sent)
    assert cluster["cluster_type"] == "KUBERNETES"
    order, _ = services.clusters.orders[0]
    assert (order.num_preemptible_gpus, order.nvidia_version_id, dict(order.echo)) == (0, None, {})


@pytest.mark.parametrize("field", ["billing_type", "cluster_name", "gpu_type", "num_gpus", "region"])
@pytest.mark.parametrize("how", ["absent", "null"])
async def test_what_is_required_is_asked_for_by_name(member: httpx.AsyncClient, field: str, how: str) -> None:
    body: dict[str, Any] = {**CREATE, field: None}
    if how == "absent":
        del body[field]
    answer = await member.post(CLUSTERS, json=body)
    assert answer.status_code == 400
    error = error_of(answer)
    assert error == {
        "message": f"{field} is required; add it",
        "type": "invalid_request_error",
        "param": field,
        "code": None,
    }


async def test_all_missing_fields_are_told_at_once(member: httpx.AsyncClient) -> None:
    error = error_of(await member.post(CLUSTERS, json={}))
    assert (
        error["message"] == "billing_type, cluster_name, gpu_type, num_gpus and region are required; add them"
    )


@pytest.mark.parametrize("field", ["num_gpus", "num_preemptible_gpus"])
@pytest.mark.parametrize(
    "value", [True, "8", 8.5, 8.0, -8, [8], {"n": 8}, 2**31, 2**63, 2**64, 10**400, 1e308]
)
async def test_a_gpu_count_is_a_whole_sane_number(
    member: httpx.AsyncClient, field: str, value: object
) -> None:
    for method, path in (("POST", CLUSTERS), ("PUT", f"{CLUSTERS}/{AN_ID}")):
        answer = await member.request(
            method, path, content=json.dumps({**CREATE, "project_id": "proj-1", field: value})
        )
        assert answer.status_code == 400, answer.text
        assert error_of(answer)["param"] == field


async def test_at_least_one_standard_node_is_kept(member: httpx.AsyncClient) -> None:
    made = await created(member)
    for method, path in (("POST", CLUSTERS), ("PUT", f"{CLUSTERS}/{made['cluster_id']}")):
        error = error_of(await member.request(method, path, json={**CREATE, "num_gpus": 0}))
        assert error["message"] == "num_gpus must be at least 8, got 0"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"billing_type": "RESERVED", "duration_days": 3}, "billing_type"),
        ({"billing_type": "SCHEDULED_CAPACITY"}, "billing_type"),
        ({"cluster_type": "SLURM"}, "cluster_type"),
        ({"auto_scale": True}, "auto_scale"),
        ({"auto_scale_max_gpus": 16}, "auto_scale_max_gpus"),
        ({"capacity_pool_id": "p"}, "capacity_pool_id"),
        ({"num_capacity_pool_gpus": 8}, "num_capacity_pool_gpus"),
        ({"num_reserved_gpus": 8}, "num_reserved_gpus"),
        ({"reservation_start_time": "2026-01-02T03:04:05Z"}, "reservation_start_time"),
        ({"reservation_end_time": "2026-01-02T03:04:05Z"}, "reservation_end_time"),
        ({"slurm_image": "i"}, "slurm_image"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name_never_ignored(
    member: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await member.post(CLUSTERS, json={**CREATE, **fields})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert "not offered" in str(error["message"])


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_scale": False, "auto_scale_max_gpus": 0},
        {"num_reserved_gpus": 0, "num_capacity_pool_gpus": 0},
        {"duration_days": 3},
        {"cluster_type": "KUBERNETES"},
        {"acceptance_tests_params": {"enabled": True, "dcgm_diag_level": "DCGM_DIAG_LEVEL_LONG"}},
    ],
)
async def test_harmless_values_of_those_fields_are_welcome(
    member: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    await created(member, **fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"billing_type": "FREE"}, "billing_type"),
        ({"cluster_type": "NOMAD"}, "cluster_type"),
        ({"duration_days": 0}, "duration_days"),
        ({"duration_days": 91}, "duration_days"),
        ({"reservation_end_time": "tomorrow"}, "reservation_end_time"),
        ({"reservation_end_time": "2026-01-02T03:04:05"}, "reservation_end_time"),
        ({"install_traefik": "yes"}, "install_traefik"),
        ({"add_ons": {}}, "add_ons"),
        ({"add_ons": [{"name": "headlamp"}]}, "add_ons.0.add_on_type"),
        ({"add_ons": [ADD_ON | {"config": {"headlamp": 1}}]}, "add_ons.0.config.headlamp"),
        ({"add_ons": [{"name": "h", "add_on_type": "headlamp"}] * 33}, "add_ons"),
        ({"cluster_config": {"ingress": {}}}, "cluster_config.load_balancer"),
        ({"cluster_config": {"load_balancer": "HAPROXY"}}, "cluster_config.load_balancer"),
        ({"oidc_config": {"issuer_url": "https://dex.example"}}, "oidc_config.client_id"),
        ({"oidc_config": {**OIDC, "ca_cert": "x" * 65_537}}, "oidc_config.ca_cert"),
        ({"acceptance_tests_params": {"dcgm_diag_level": "ALL"}}, "acceptance_tests_params.dcgm_diag_level"),
        ({"slurm_shm_size_gib": "64"}, "slurm_shm_size_gib"),
        ({"shared_volume": "v"}, "shared_volume"),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_400_and_names_its_place(
    member: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await member.post(CLUSTERS, json={**CREATE, **fields})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert param in str(error["message"])


async def test_one_driver_selection_is_needed(member: httpx.AsyncClient) -> None:
    bare = {name: value for name, value in CREATE.items() if name != "nvidia_version_id"}
    assert error_of(await member.post(CLUSTERS, json=bare))["param"] == "nvidia_version_id"
    half = await member.post(CLUSTERS, json={**bare, "cuda_version": "12.8"})
    assert error_of(half)["param"] == "nvidia_driver_version"
    other = await member.post(CLUSTERS, json={**CREATE, "nvidia_driver_version": "570"})
    assert error_of(other)["param"] == "cuda_version"


async def test_a_preemptible_target_needs_a_project_and_it_must_be_ones_own(
    member: httpx.AsyncClient, operator: httpx.AsyncClient
) -> None:
    without = await member.post(CLUSTERS, json={**CREATE, "num_preemptible_gpus": 8})
    assert without.status_code == 400
    assert error_of(without)["param"] == "project_id"
    assert "proj-1" in str(error_of(without)["message"])
    foreign = await member.post(CLUSTERS, json={**CREATE, "project_id": "proj-2"})
    assert foreign.status_code == 403
    assert error_of(foreign)["type"] == "permission_error"
    assert (await created(operator, project_id="proj-2"))["project_id"] == "proj-2"
    assert (await created(member, num_preemptible_gpus=0))["project_id"] == "proj-1"


async def test_what_the_creator_set_comes_back_verbatim_and_nothing_else_does(
    member: httpx.AsyncClient,
) -> None:
    add_on = {"add_on_type": "headlamp", "name": "mine", "config": {"headlamp": {"enabled": True}}}
    off = {"add_on_type": "ingress", "name": "off", "config": {"ingress": {"enabled": False}}}
    config = {"load_balancer": "TRAEFIK", "ingress": {}, "jumphost_enabled": False}
    full = await created(
        member,
        add_ons=[add_on, off],
        cluster_config=config,
        oidc_config=OIDC,
        slurm_shm_size_gib=64,
        install_traefik=True,
        cuda_version="12.8-ubuntu",
        nvidia_driver_version="570.1",
    )
    assert full["add_ons"] == [{**add_on, "state": {"headlamp": {}}}]
    assert full["cluster_config"] == config
    assert full["oidc_config"] == OIDC
    assert full["slurm_shm_size_gib"] == 64
    assert full["install_traefik"] is True
    assert (full["cuda_version"], full["nvidia_driver_version"]) == ("12.8-ubuntu", "570.1")
    plain = await created(member)
    assert plain["add_ons"] == []
    assert plain["install_traefik"] is False
    absent = {
        "cluster_config",
        "oidc_config",
        "slurm_shm_size_gib",
        "capacity_pool_id",
        "reservation_start_time",
    }
    assert not absent & set(plain)
    assert None not in plain.values()


async def test_out_of_stock_is_409_that_no_client_repeats(member: httpx.AsyncClient) -> None:
    answer = await member.post(CLUSTERS, json={**CREATE, "num_gpus": 128})
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert error_of(answer)["code"] == "out_of_stock"


async def test_a_create_says_what_makes_it_a_repetition(member: httpx.AsyncClient, services: Doubles) -> None:
    async def replay(body: dict[str, Any], **headers: str) -> Replay:
        answer = await member.post(
            CLUSTERS, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        assert answer.status_code == 200
        return services.clusters.orders[-1][1]

    first = await replay(CREATE, x_stainless_retry_count="0")
    turned = dict(reversed(CREATE.items()))
    again = await replay({**turned, "duration_days": None}, x_stainless_retry_count="1")
    other = await replay({**CREATE, "num_gpus": 16}, idempotency_key="k-1")
    odd = await replay(CREATE, x_stainless_retry_count="1x")
    assert (first.is_retry, again.is_retry, odd.is_retry) == (False, True, False)
    assert first.body_hash == again.body_hash != other.body_hash
    assert (first.token, other.token) == (None, "k-1")
    bad = await member.post(CLUSTERS, json=CREATE, headers={"idempotency-key": "x" * 256})
    assert error_of(bad)["param"] == "Idempotency-Key"


async def test_lists_show_the_callers_own_and_no_kubeconfig(member: httpx.AsyncClient, app: Any) -> None:
    mine = await created(member)
    async with client_of(app, "other-key") as other, client_of(app, "operator-key") as operator:
        theirs = await created(other)
        everything = (await operator.get(CLUSTERS)).json()["clusters"]
        assert {each["cluster_id"] for each in everything} == {mine["cluster_id"], theirs["cluster_id"]}
        one = (await operator.get(CLUSTERS, params={"projectId": "proj-2"})).json()["clusters"]
        assert [each["cluster_id"] for each in one] == [theirs["cluster_id"]]
        assert one == (await operator.get(CLUSTERS, params={"project_id": "proj-2"})).json()["clusters"]
    listed = (await member.get(CLUSTERS)).json()["clusters"]
    assert [each["cluster_id"] for each in listed] == [mine["cluster_id"]]
    assert listed[0]["kube_config"] == ""
    assert (await member.get(CLUSTERS, params={"projectId": "proj-2"})).json() == {"clusters": []}
    assert (await member.get(CLUSTERS, params={"projectId": "a\0b"})).status_code == 400


async def test_retrieve_update_and_delete(member: httpx.AsyncClient) -> None:
    made = await created(member)
    path = f"{CLUSTERS}/{made['cluster_id']}"
    assert (await member.get(path)).json() == made
    raised = (await member.put(path, json={"num_preemptible_gpus": 32})).json()
    assert raised["desired_preemptible_gpus"] == 32
    deleted = await member.request("DELETE", path, headers={"content-type": "application/json"}, content=b"")
    assert deleted.json() == {"cluster_id": made["cluster_id"]}
    assert (await member.get(path)).status_code == 404
    assert (await member.delete(path)).status_code == 404


@pytest.mark.parametrize(
    "cluster",
    [
        AN_ID,
        AN_ID.upper(),
        AN_ID.replace("-4", "-1"),
        "storage",
        "x",
        "a%2Fb",
        "%00",
        "%ff",
        "..%2F..",
        "0" * 4000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_an_id_that_is_not_there_is_404(member: httpx.AsyncClient, cluster: str, method: str) -> None:
    answer = await member.request(method, f"{CLUSTERS}/{cluster}", json={} if method == "PUT" else None)
    assert answer.status_code == 404
    error_of(answer)


async def test_an_update_without_fields_or_with_nulls_changes_nothing(
    member: httpx.AsyncClient, services: Doubles
) -> None:
    """L3: omitted means unchanged, explicit 0 means 0."""
    made = await created(member, num_preemptible_gpus=16, project_id="proj-1")
    path = f"{CLUSTERS}/{made['cluster_id']}"
    for body in ({}, {"num_preemptible_gpus": None, "num_gpus": None}, {"cluster_name": "demo"}):
        assert (await member.put(path, json=body)).json() == made
        assert services.clusters.changes[-1].num_preemptible_gpus is None
    assert (await member.put(path, json={"num_preemptible_gpus": 0})).json()["desired_preemptible_gpus"] == 0


async def test_what_terraform_sends_on_every_apply_is_accepted(
    member: httpx.AsyncClient, services: Doubles
) -> None:
    """Immutable fields go along to be compared by the service; set-at-creation objects may only be equal."""
    made = await created(
        member, add_ons=[ADD_ON], cluster_config={"load_balancer": "NGINX"}, project_id="proj-1"
    )
    path = f"{CLUSTERS}/{made['cluster_id']}"
    sent = {
        **CREATE,
        "auto_scaled": False,
        "install_traefik": False,
        "num_preemptible_gpus": None,
        "project_id": "proj-1",
        "add_ons": [ADD_ON],
        "cluster_config": {"load_balancer": "NGINX"},
        "num_gpus": 16,
    }
    answer = await member.put(path, json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.json()["num_gpus"] == 16
    assert dict(services.clusters.changes[-1].immutable) == {
        name: sent[name]
        for name in ("billing_type", "cluster_name", "gpu_type", "region", "nvidia_version_id", "project_id")
    }
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"add_ons": [{"name": "other", "config": {}}]}, "add_ons.0.name"),
        ({"add_ons": [{"name": "headlamp", "add_on_type": "ingress"}]}, "add_ons.0.add_on_type"),
        ({"cluster_config": {"jumphost_enabled": True}}, "cluster_config.load_balancer"),
        ({"install_traefik": True}, "install_traefik"),
        ({"oidc_config": OIDC}, "oidc_config"),
        ({"slurm_shm_size_gib": 64}, "slurm_shm_size_gib"),
        ({"shared_volume": {"size_tib": 1}}, "shared_volume.volume_name"),
    ]
    for changed, param in refusals:
        refused = await member.put(path, json=changed)
        assert refused.status_code == 400
        assert error_of(refused)["param"] == param
    assert (await member.get(path)).json() == answer.json()


async def test_add_ons_and_configuration_are_merged(member: httpx.AsyncClient) -> None:
    """Contract 4.2: an add-on is found by its name, its config merged; so is the cluster's configuration."""
    made = await created(
        member,
        add_ons=[ADD_ON, {"add_on_type": "ingress", "name": "way-in"}],
        cluster_config={"load_balancer": "NGINX", "ingress": {"enabled": True}},
    )
    path = f"{CLUSTERS}/{made['cluster_id']}"
    off = {"add_ons": [{"name": "headlamp", "config": {"headlamp": {"enabled": False}}}]}
    assert [each["name"] for each in (await member.put(path, json=off)).json()["add_ons"]] == ["way-in"]
    on = {"add_ons": [{"name": "headlamp", "config": {"headlamp": {"enabled": True}, "dashboard": {}}}]}
    back = (await member.put(path, json=on)).json()["add_ons"]
    assert [each["name"] for each in back] == ["headlamp", "way-in"]
    assert back[0]["config"] == {"headlamp": {"enabled": True}, "dashboard": {}}
    wish = {"cluster_config": {"load_balancer": "TRAEFIK", "jumphost_enabled": True}}
    merged = (await member.put(path, json=wish)).json()
    assert merged["cluster_config"] == {
        "load_balancer": "TRAEFIK",
        "ingress": {"enabled": True},
        "jumphost_enabled": True,
    }
    assert (await member.put(path, json={"add_ons": []})).json() == merged
    bare = await created(member)
    given = await member.put(
        f"{CLUSTERS}/{bare['cluster_id']}", json={"cluster_config": {"load_balancer": "NONE"}}
    )
    assert given.json()["cluster_config"] == {"load_balancer": "NONE"}


@pytest.mark.parametrize(
    "fields",
    [
        {"num_reserved_gpus": 8},
        {"num_capacity_pool_gpus": 8},
        {"reservation_end_time": "2026-01-02T03:04:05Z"},
        {"cluster_type": "SLURM"},
    ],
)
async def test_an_update_refuses_what_is_not_offered(
    member: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    made = await created(member)
    answer = await member.put(f"{CLUSTERS}/{made['cluster_id']}", json=fields)
    assert answer.status_code == 400
    assert "not offered" in str(error_of(answer)["message"])
