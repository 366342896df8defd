"""The official Python client in its strict mode, over a real socket, against the contract's operations."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator

import pytest
import together
from fastapi import FastAPI
from together.types import Cluster

from .living import living

KUBERNETES = {
    "billing_type": "ON_DEMAND",
    "cluster_name": "demo",
    "gpu_type": "H100_SXM",
    "region": "local-1",
    "nvidia_version_id": "local-1-570-128",
}


@pytest.fixture
def sdk(app: FastAPI, serve: Callable[[FastAPI], str]) -> Iterator[together.Together]:
    with together.Together(
        base_url=serve(app), api_key="member-key", _strict_response_validation=True, timeout=20
    ) as client:
        yield client


def test_regions(sdk: together.Together) -> None:
    region = sdk.clusters.list_regions().regions[0]
    assert (region.name, region.driver_versions[0].id) == ("local-1", "local-1-570-128")


def test_a_cluster_from_create_to_delete(sdk: together.Together) -> None:
    made = sdk.clusters.create(**KUBERNETES, num_gpus=8, num_preemptible_gpus=16, project_id="proj-1")
    assert (made.status, made.desired_preemptible_gpus) == ("WaitingForDataPlaneNodes", 16)
    assert sdk.clusters.retrieve(made.cluster_id) == made
    assert sdk.clusters.update(made.cluster_id, num_preemptible_gpus=32).desired_preemptible_gpus == 32
    assert sdk.clusters.update(made.cluster_id).desired_preemptible_gpus == 32
    assert [each.cluster_id for each in sdk.clusters.list().clusters] == [made.cluster_id]
    assert sdk.clusters.list(project_id="proj-2").clusters == []
    assert sdk.clusters.delete(made.cluster_id).cluster_id == made.cluster_id
    with pytest.raises(together.NotFoundError):
        sdk.clusters.retrieve(made.cluster_id)


def test_the_legacy_driver_pair(sdk: together.Together) -> None:
    legacy = {name: value for name, value in KUBERNETES.items() if name != "nvidia_version_id"}
    made = sdk.clusters.create(**legacy, num_gpus=8, cuda_version="12.8", nvidia_driver_version="570")
    assert (made.cuda_version, made.nvidia_driver_version) == ("12.8", "570")


def test_refusals_arrive_as_the_clients_own_exceptions_with_our_words(sdk: together.Together) -> None:
    with pytest.raises(together.BadRequestError, match="multiple of 8") as bad:
        sdk.clusters.create(**KUBERNETES, num_gpus=12)
    assert isinstance(bad.value.body, dict)
    with pytest.raises(together.PermissionDeniedError):
        sdk.clusters.create(**KUBERNETES, num_gpus=8, project_id="proj-2")
    with pytest.raises(together.AuthenticationError):
        sdk.with_options(api_key="wrong").clusters.list()


def test_out_of_stock_is_not_tried_again(sdk: together.Together, services: object, app: FastAPI) -> None:
    tried = []
    create = app.state.context.services.clusters.create

    async def counting(*args: object) -> object:
        tried.append(args)
        return await create(*args)

    app.state.context.services.clusters.create = counting
    with pytest.raises(together.ConflictError, match="not enough"):
        sdk.clusters.create(**KUBERNETES, num_gpus=128)
    assert len(tried) == 1


@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_either_base_url_works(app: FastAPI, serve: Callable[[FastAPI], str], suffix: str) -> None:
    with together.Together(base_url=serve(app) + suffix, api_key="member-key") as client:
        assert client.clusters.list().clusters == []


def test_a_whole_cluster_in_strict_mode(database_url: str) -> None:
    """Against a whole Ebbtide: nodes, events and kubeconfig pass the strict model, and a drain shows."""
    with (
        living(database_url) as server,
        together.Together(
            base_url=server.url, api_key=server.member, _strict_response_validation=True, timeout=20
        ) as client,
    ):
        made = client.clusters.create(
            **KUBERNETES, num_gpus=8, num_preemptible_gpus=16, project_id=server.project_id
        )
        seen = _until(client, made.cluster_id, lambda seen: seen.allocated_preemptible_gpus == 16)
        assert (seen.status, len(seen.gpu_worker_nodes)) == ("Ready", 3)
        assert base64.b64decode(seen.kube_config).startswith(b"#")
        client.clusters.update(made.cluster_id, num_preemptible_gpus=8)
        seen = _until(client, made.cluster_id, lambda seen: seen.allocated_preemptible_gpus == 8)
        assert seen.deleted_gpu_worker_nodes
        assert seen.node_lifecycle_events
        left = seen.deleted_gpu_worker_nodes[0].node_id
        assert "TogetherScaledDown" in {
            event.reason for event in seen.node_lifecycle_events if event.node_id == left
        }
        assert [each.kube_config for each in client.clusters.list().clusters] == [""]
        client.clusters.delete(made.cluster_id)


def _until(client: together.Together, cluster: str, holds: Callable[[Cluster], bool]) -> Cluster:
    for _ in range(100):
        seen = client.clusters.retrieve(cluster)
        if holds(seen):
            return seen
        time.sleep(0.1)
    raise AssertionError(seen)
