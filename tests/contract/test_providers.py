"""What every provider must do. One suite for all; see `rigs.py` for what stands behind each."""

from __future__ import annotations

import pytest
import yaml

from ebbtide.providers.base import InstanceOrder, InstanceState
from tests.contract.rigs import POOL, PROVIDERS, WITHOUT_CONTROL_PLANES, ProviderRig, eventually

NAME = "training"


@pytest.fixture(params=sorted(PROVIDERS))
def rig(request: pytest.FixtureRequest) -> ProviderRig:
    return PROVIDERS[request.param]()


@pytest.fixture(params=sorted(PROVIDERS.keys() - WITHOUT_CONTROL_PLANES))
def maker(request: pytest.FixtureRequest) -> ProviderRig:
    """A provider that makes control planes, too."""
    return PROVIDERS[request.param]()


async def _up(rig: ProviderRig, host_name: str) -> InstanceOrder:
    order = rig.order(host_name)
    await rig.provider.create(order)
    await eventually(rig, lambda: _is(rig, order.node_uid, InstanceState.UP))
    return order


async def _is(rig: ProviderRig, node_uid: str, state: InstanceState) -> bool:
    instance = await rig.provider.status(node_uid)
    return instance is not None and instance.state is state


async def _gone(rig: ProviderRig, node_uid: str) -> bool:
    return (await rig.provider.delete(node_uid)).gone


async def test_a_repeated_create_finds_the_same_instance(rig: ProviderRig) -> None:
    order = rig.order("h1")
    first = await rig.provider.create(order)
    again = await rig.provider.create(order)
    assert (again.instance_id, again.node_uid, again.host_name) == (first.instance_id, order.node_uid, "h1")
    assert len(await rig.provider.list(POOL)) == 1


async def test_an_instance_comes_up_and_says_where(rig: ProviderRig) -> None:
    order = await _up(rig, "h1")
    instance = await rig.provider.status(order.node_uid)
    assert instance is not None
    assert instance.node_uid == order.node_uid
    assert instance.host_name == "h1"
    assert instance.address


async def test_what_was_never_created_is_not_found(rig: ProviderRig) -> None:
    unknown = rig.new_id()
    assert await rig.provider.status(unknown) is None
    assert await rig.provider.stop(unknown)
    assert (await rig.provider.delete(unknown)).gone


async def test_a_confirmed_stop_shows_and_can_be_repeated(rig: ProviderRig) -> None:
    order = await _up(rig, "h1")
    await eventually(rig, lambda: rig.provider.stop(order.node_uid))
    assert await _is(rig, order.node_uid, InstanceState.STOPPED)
    assert await rig.provider.stop(order.node_uid)


async def test_delete_is_repeated_until_gone_and_wiped(rig: ProviderRig) -> None:
    order = await _up(rig, "h1")
    await eventually(rig, lambda: _gone(rig, order.node_uid))
    last = await rig.provider.delete(order.node_uid)
    assert (last.gone, last.wiped) == (True, True)
    assert await rig.provider.status(order.node_uid) is None
    assert await rig.provider.list(POOL) == []


async def test_an_instance_that_is_not_gone_is_listed(rig: ProviderRig) -> None:
    order = await _up(rig, "h1")
    progress = await rig.provider.delete(order.node_uid)
    listed = [instance.node_uid for instance in await rig.provider.list(POOL)]
    assert listed == ([] if progress.gone else [order.node_uid])


async def test_deleting_an_old_node_does_not_touch_the_new_one_on_its_host(rig: ProviderRig) -> None:
    old = await _up(rig, "h1")
    await eventually(rig, lambda: _gone(rig, old.node_uid))
    new = await _up(rig, "h1")
    assert (await rig.provider.delete(old.node_uid)).gone
    assert await rig.provider.stop(old.node_uid)
    assert await _is(rig, new.node_uid, InstanceState.UP)


async def test_an_instance_is_deleted_before_it_is_up(rig: ProviderRig) -> None:
    order = rig.order("h1")
    await rig.provider.create(order)
    await eventually(rig, lambda: _gone(rig, order.node_uid))
    await rig.pass_time(300)
    assert await rig.provider.status(order.node_uid) is None


async def test_list_knows_its_pool_only(rig: ProviderRig) -> None:
    ours = await _up(rig, "h1")
    other = rig.order("x1", pool="another")
    await rig.provider.create(other)
    assert [instance.node_uid for instance in await rig.provider.list(POOL)] == [ours.node_uid]
    assert [instance.node_uid for instance in await rig.provider.list("another")] == [other.node_uid]
    assert await rig.provider.list("never-heard-of") == []


async def test_a_control_plane_comes_with_a_kubeconfig_that_clients_can_merge(maker: ProviderRig) -> None:
    cluster_id = maker.new_id()
    await maker.provider.create_control_plane(cluster_id, NAME)
    await maker.provider.create_control_plane(cluster_id, NAME)
    await eventually(maker, lambda: _ready(maker, cluster_id))
    made = await maker.provider.control_plane(cluster_id)
    assert made is not None
    config = yaml.safe_load(made.kubeconfig or "")
    assert [entry["name"] for entry in config["clusters"]] == [NAME]
    assert [entry["name"] for entry in config["contexts"]] == [NAME]
    assert [entry["name"] for entry in config["users"]] == [f"{cluster_id}-admin"]
    assert config["contexts"][0]["context"] == {"cluster": NAME, "user": f"{cluster_id}-admin"}
    assert config["current-context"] == NAME
    assert await maker.provider.list_control_planes() == [cluster_id]


async def _ready(maker: ProviderRig, cluster_id: str) -> bool:
    made = await maker.provider.control_plane(cluster_id)
    return made is not None and made.ready


async def test_a_control_plane_is_deleted_until_nothing_is_left(maker: ProviderRig) -> None:
    cluster_id = maker.new_id()
    await maker.provider.create_control_plane(cluster_id, NAME)
    await eventually(maker, lambda: maker.provider.delete_control_plane(cluster_id))
    assert await maker.provider.delete_control_plane(cluster_id)
    assert await maker.provider.control_plane(cluster_id) is None
    assert await maker.provider.list_control_planes() == []
