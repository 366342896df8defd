"""A cluster whose own rules stand in a drain's way, on real servers: what then?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import pytest_asyncio

from ebbtide.clock import AnchoredClock
from ebbtide.core.drain import PodOrder
from ebbtide.drivers.base import DriverError, Notice
from ebbtide.kube.errors import NotFound
from tests.live.drains import EVENTS, PODS, Json, KwokDriverRig, Place

pytestmark = pytest.mark.asyncio(loop_scope="session")

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest_asyncio.fixture(loop_scope="session")
async def rig(place: Place) -> AsyncIterator[KwokDriverRig]:
    await place.clear()
    one = KwokDriverRig(place)
    yield one
    await one.close()


@asynccontextmanager
async def refusing(place: Place, operation: str, resource: str) -> AsyncIterator[None]:
    """A webhook that is asked about everything of the kind and never answers: so all of it is refused."""
    rule = {"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}
    hook = {
        "name": "no.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
        # Else kwok cannot end pods, and controllers cannot work either.
        "matchConditions": [{"name": "ours", "expression": "request.userInfo.username == 'ebbtide'"}],
    }
    await place.root.create(WEBHOOKS, {"metadata": {"name": "no"}, "webhooks": [hook]})
    await asyncio.sleep(1.5)  # until the API server has heard of it
    try:
        yield
    finally:
        await place.root.delete(f"{WEBHOOKS}/no")
        await asyncio.sleep(0.5)


def _order(pod: Json, grace_s: int = 20, *, shorten: bool = False) -> PodOrder:
    meta = pod["metadata"]
    return PodOrder(meta["uid"], meta["name"], grace_s, shorten, meta["namespace"])


async def test_pods_that_may_not_be_deleted_are_an_error_that_names_the_webhook(rig: KwokDriverRig) -> None:
    """Their SIGTERM comes with the machine's stop; the Node object is not kept by them for ever."""
    node = await rig.add_node()
    pod = await rig.place.pod(node)
    async with refusing(rig.place, "DELETE", "pods"):
        with pytest.raises(DriverError, match=r"cluster tidal: .*webhook.*no\.example\.com"):
            await rig.driver.signal(rig.cluster, node, [_order(pod)])
        (told,) = await rig.place.pods_on(node)
        assert [one["type"] for one in told["status"]["conditions"] if one["type"] == "DisruptionTarget"]
        await rig.power_off(node)
        with pytest.raises(DriverError, match=r"no\.example\.com"):
            await rig.driver.remove(rig.cluster, node)
        assert await rig.place.node_now(node) is not None
        await rig.driver.remove(rig.cluster, node, patient=False)
        assert await rig.place.node_now(node) is None


async def test_where_the_condition_is_refused_sigterm_comes_all_the_same(rig: KwokDriverRig) -> None:
    node = await rig.add_node()
    pod = await rig.place.pod(node, notes={"ebbtide/obeys": "false"})
    async with refusing(rig.place, "UPDATE", "pods/status"):
        (result,) = await rig.driver.signal(rig.cluster, node, [_order(pod)])
    assert result.refused is None
    (told,) = await rig.place.pods_on(node)
    assert told["metadata"]["deletionGracePeriodSeconds"] == 20


async def test_an_eviction_that_a_webhook_stops_is_a_refusal_with_its_name(rig: KwokDriverRig) -> None:
    node = await rig.add_node()
    pod = await rig.place.pod(node)
    async with refusing(rig.place, "CREATE", "pods/eviction"):
        (result,) = await rig.driver.evict(rig.cluster, node, [_order(pod)])
    assert "no.example.com" in (result.refused or "")


async def test_a_cordon_that_is_refused_is_an_error_and_an_event_that_is_refused_is_none(
    rig: KwokDriverRig,
) -> None:
    node = await rig.add_node()
    notice = Notice("TogetherPreempted", "for beta", AnchoredClock().now() + timedelta(seconds=300))
    async with refusing(rig.place, "UPDATE", "nodes"):
        with pytest.raises(DriverError, match=r"no\.example\.com"):
            await rig.driver.notify(rig.cluster, node, notice)
    async with refusing(rig.place, "CREATE", "events"):
        await rig.driver.notify(rig.cluster, node, notice)
    found = await rig.place.node_now(node)
    assert found is not None
    assert found["spec"]["unschedulable"]
    assert await rig.notices(node) == 0


async def test_a_pod_with_somebody_elses_finalizer_keeps_the_node_until_patience_is_over(
    rig: KwokDriverRig,
) -> None:
    node = await rig.add_node()
    pod = await rig.place.pod(node, metadata={"generateName": "held-", "finalizers": ["test.invalid/held"]})
    await rig.power_off(node)
    assert not await rig.driver.remove(rig.cluster, node)
    assert await rig.place.node_now(node) is not None
    await rig.driver.remove(rig.cluster, node, patient=False)
    assert await rig.place.node_now(node) is None
    path = f"{PODS}/{pod['metadata']['name']}"
    left = await rig.place.admin.get(path)
    assert left["metadata"]["finalizers"] == ["test.invalid/held"]
    assert left["status"]["phase"] == "Failed"
    await rig.place.admin.patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await rig.place.admin.get(path)


async def test_a_grace_is_shortened_as_seen_from_now(rig: KwokDriverRig) -> None:
    """The API server counts from the first SIGTERM."""
    node = await rig.add_node()
    pod = await rig.place.pod(node, grace_s=900, notes={"ebbtide/obeys": "false"})
    await rig.driver.signal(rig.cluster, node, [_order(pod, 900)])
    await asyncio.sleep(4)
    await rig.driver.signal(rig.cluster, node, [_order(pod, 60, shorten=True)])
    (seen,) = (await rig.driver.pods(rig.cluster, node)).pods
    assert seen.ends_by is not None
    left_s = (seen.ends_by - AnchoredClock().now()).total_seconds()
    assert 57 <= left_s <= 61


async def test_a_token_is_a_secret_as_kubeadm_makes_them(rig: KwokDriverRig) -> None:
    node = await rig.place.node()
    first = await rig.driver.join_data(rig.cluster, node)
    assert first == await rig.driver.join_data(rig.cluster, node)
    identity, secret = first["token"].split(".")
    assert (len(identity), len(secret)) == (6, 16)
    assert first["server"].startswith("https://127.0.0.1:")
    assert first["ca"].startswith("-----BEGIN CERTIFICATE-----")
    path = f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{identity}"
    assert (await rig.place.root.get(path))["type"] == "bootstrap.kubernetes.io/token"
    await rig.driver.admit(rig.cluster, node)
    with pytest.raises(NotFound):
        await rig.place.root.get(path)


async def test_h2_a_node_with_many_events_gets_its_notice_all_the_same(rig: KwokDriverRig) -> None:
    node = await rig.add_node()
    found = await rig.place.node_now(node)
    assert found is not None
    about = {"kind": "Node", "name": node.name, "uid": found["metadata"]["uid"]}
    for number in range(60):
        body = {"metadata": {"name": f"chatter-{number}"}, "involvedObject": about, "reason": "Chatter"}
        await rig.place.admin.create(EVENTS, body)
    notice = Notice("TogetherPreempted", "for beta", AnchoredClock().now() + timedelta(seconds=300))
    await rig.driver.notify(rig.cluster, node, notice)
    assert await rig.notices(node) == 1
