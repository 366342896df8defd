"""The Kubernetes driver against an API server in memory: order of calls, repeats, refusals, interruptions."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ebbtide.core import marks
from ebbtide.core.drain import PodOrder
from ebbtide.core.nodes import ComputeClass
from ebbtide.drivers.base import ClusterRef, DriverError, NodeRef, OrderResult
from ebbtide.drivers.kubernetes.driver import KubernetesDriver
from ebbtide.drivers.kubernetes.fresh import Fresh
from ebbtide.errors import BadInput
from ebbtide.kube.errors import KubeError, Unreachable
from tests.drivers.fake_api import EVENTS, NODES, PODS, SECRETS, Call, Json, refusal
from tests.drivers.kubernetes_rig import BUSY, CLUSTER, NODE, PATH, WEBHOOK, Rig, go_on, stop_at


@pytest.fixture
def rig() -> Rig:
    return Rig()


# -- joining


async def test_a_node_that_joins_loses_its_taint_and_is_held(rig: Rig) -> None:
    await rig.driver.admit(CLUSTER, NODE)
    assert rig.node["spec"]["taints"] == []
    assert rig.node["metadata"]["finalizers"] == [marks.FINALIZER]
    assert rig.api.reasons(NODE.name) == ["TogetherScaledUp", "TogetherNodeAdded"]
    await rig.driver.admit(CLUSTER, NODE)
    assert len(rig.api.sent("PATCH")) == 1
    assert len(rig.api.reasons(NODE.name)) == 2


async def test_a_node_whose_taint_went_has_joined_whatever_else_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work may come from then on: it must be known to run, or nobody is billed and nobody is told."""
    _joining(monkeypatch)
    await rig.driver.join_data(CLUSTER, NODE)
    rig.refuse("POST", "/events", BUSY)
    await rig.driver.admit(CLUSTER, NODE)
    assert rig.node["spec"]["taints"] == []
    rig.refuse("DELETE", SECRETS, BUSY)
    await rig.driver.admit(CLUSTER, NODE)


async def test_standard_nodes_are_not_held(rig: Rig) -> None:
    rig.api.node("u-2", "gpu-dp-1", ComputeClass.STANDARD)
    await rig.driver.admit(CLUSTER, NodeRef("u-2", "gpu-dp-1"))
    assert "finalizers" not in rig.api.things[f"{NODES}/gpu-dp-1"]["metadata"]


async def test_others_who_write_to_the_node_meanwhile_lose_nothing(rig: Rig) -> None:
    others = iter(["gpu-driver", "network"])

    def meanwhile(call: Call) -> None:
        if call.what.startswith("PATCH") and (key := next(others, None)):
            rig.node["spec"]["taints"].append({"key": key, "effect": "NoSchedule"})
            rig.api.put(PATH, rig.node)

    rig.api.before = meanwhile
    await rig.driver.admit(CLUSTER, NODE)
    assert [taint["key"] for taint in rig.node["spec"]["taints"]] == ["gpu-driver", "network"]


async def test_a_node_of_another_uid_under_the_name_is_not_touched(rig: Rig) -> None:
    stranger = NodeRef("another", NODE.name)
    await rig.driver.admit(CLUSTER, stranger)
    await rig.driver.notify(CLUSTER, stranger, rig.notice)
    assert await rig.driver.remove(CLUSTER, stranger)
    assert PATH in rig.api.things
    assert "unschedulable" not in rig.node["spec"]


def _joining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.kube.way_in.address", lambda text: ("https://here:6443", "PEM"))


async def test_a_token_is_the_same_until_it_ends_and_its_life_goes_on_while_it_is_asked_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _joining(monkeypatch)
    first = await rig.driver.join_data(CLUSTER, NODE)
    assert first["server"] == "https://here:6443"
    assert first["ca"] == "PEM"
    rig.clock.advance(2000)
    assert await rig.driver.join_data(CLUSTER, NODE) == first
    (secret,) = [thing for path, thing in rig.api.things.items() if path.startswith(SECRETS)]
    assert _text(secret, "expiration") == "2026-01-01T01:33:20Z"
    assert first["token"] == f"{_text(secret, 'token-id')}.{_text(secret, 'token-secret')}"
    assert secret["type"] == "bootstrap.kubernetes.io/token"
    rig.api.things.clear()  # what Kubernetes does with tokens that have ended
    assert (await rig.driver.join_data(CLUSTER, NODE))["token"] != first["token"]


async def test_two_workers_make_one_token(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _joining(monkeypatch)
    first, second = await asyncio.gather(*(rig.driver.join_data(CLUSTER, NODE) for _ in range(2)))
    assert first == second


async def test_a_node_that_has_joined_has_no_token(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _joining(monkeypatch)
    await rig.driver.join_data(CLUSTER, NODE)
    await rig.driver.admit(CLUSTER, NODE)
    assert rig.api.names(SECRETS) == set()


def _text(secret: Json, key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()


# -- notices


async def test_a_notice_cordons_first_and_says_until_when(rig: Rig) -> None:
    await rig.notify()
    first, *_ = [call for call in rig.api.calls if call.what.startswith(("PATCH", "POST"))]
    assert first.what == f"PATCH {PATH}"
    assert first.body["spec"] == {"unschedulable": True}
    assert rig.node["metadata"]["annotations"] == {
        marks.ANNOTATION_DEADLINE: "2026-01-01T00:05:00Z",
        marks.ANNOTATION_REASON: "TogetherPreempted: for beta",
    }
    (mark,) = [one for one in rig.node["status"]["conditions"] if one["type"] == marks.CONDITION_DRAINING]
    assert (mark["status"], mark["reason"]) == ("True", "TogetherPreempted")
    assert mark["message"] == "for beta; its pods have until 2026-01-01T00:05:00Z"
    assert rig.api.reasons(NODE.name) == ["TogetherPreempted", "TogetherPreemptionNotified"]


async def test_a_deadline_that_was_said_is_not_said_again(rig: Rig) -> None:
    rig.notice = replace(rig.notice, message="gone at 2026-01-01T00:05:00Z at the latest")
    await rig.notify()
    said = {one["message"] for path, one in rig.api.things.items() if path.startswith(EVENTS)}
    assert said == {rig.notice.message}


async def test_h4_a_cordon_that_fails_once_is_an_error_and_nothing_was_announced(rig: Rig) -> None:
    rig.refuse("PATCH", PATH, BUSY, times=1)
    with pytest.raises(DriverError, match=r"cluster tidal.*timed out"):
        await rig.notify()
    assert rig.api.reasons(NODE.name) == []
    await rig.notify()
    assert rig.node["spec"]["unschedulable"]
    assert len(rig.api.reasons(NODE.name)) == 2


async def test_a_notice_interrupted_anywhere_is_sent_once(rig: Rig) -> None:
    await rig.notify()
    total = len(rig.api.calls)
    for number in range(1, total + 1):
        for moment in ("before", "after"):
            again = Rig()
            stop_at(again.api, number, moment)
            with pytest.raises(DriverError):
                await again.notify()
            go_on(again.api)
            await again.notify()
            assert sorted(again.api.reasons(NODE.name)) == ["TogetherPreempted", "TogetherPreemptionNotified"]
            assert again.node["spec"]["unschedulable"]


async def test_an_event_that_the_cluster_refuses_holds_nothing_up(rig: Rig) -> None:
    for error in (WEBHOOK, refusal(403, "exceeded quota", "Forbidden")):
        rig.refuse("POST", "/events", error)
        await rig.notify()
        assert rig.node["spec"]["unschedulable"]


async def test_an_event_that_was_not_heard_is_sent_again(rig: Rig) -> None:
    rig.refuse("POST", "/events", BUSY, times=1)
    with pytest.raises(DriverError):
        await rig.notify()
    await rig.notify()
    assert len(rig.api.reasons(NODE.name)) == 2


async def test_what_is_taken_back_is_what_was_announced_under_that_reason(rig: Rig) -> None:
    await rig.notify()
    await rig.driver.take_back(CLUSTER, NODE, "EbbtideNodeRestarting")
    assert rig.node["spec"]["unschedulable"]
    await rig.driver.take_back(CLUSTER, NODE, "TogetherPreempted")
    assert "unschedulable" not in rig.node["spec"]
    assert rig.node["metadata"]["annotations"] == {}
    assert [one["type"] for one in rig.node["status"]["conditions"]] == ["Ready"]


async def test_the_tenants_own_cordon_is_not_taken_back(rig: Rig) -> None:
    rig.node["spec"]["unschedulable"] = True
    await rig.driver.take_back(CLUSTER, NODE, "TogetherPreempted")
    assert rig.node["spec"]["unschedulable"]


async def test_a_drain_has_three_events_at_most(rig: Rig) -> None:
    for _ in range(3):
        await rig.notify()
        await rig.driver.conclude(CLUSTER, NODE, "EbbtideNodeDrained", "all pods left")
    assert len(rig.api.reasons(NODE.name)) == 3


async def test_pods_have_events_of_their_own_only_where_it_is_wanted_and_up_to_a_cap() -> None:
    rig = Rig(pod_events=2)
    for name in ("a", "b", "c"):
        rig.api.pod(NODE.name, name)
    await rig.notify()
    for _ in range(2):
        await rig.driver.signal(CLUSTER, NODE, [rig.order(name) for name in ("a", "b", "c")])
    told = [rig.api.reasons(name) for name in ("a", "b", "c")]
    assert told == [["TogetherPreempted"], ["TogetherPreempted"], []]


# -- telling pods


async def test_each_pod_gets_the_condition_and_then_sigterm(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a", grace_s=300)
    await rig.driver.signal(CLUSTER, NODE, [rig.order("a", 297)])
    pod = rig.api.things[f"{PODS}/a"]
    (mark,) = pod["status"]["conditions"]
    assert (mark["type"], mark["status"], mark["lastTransitionTime"]) == (
        "DisruptionTarget",
        "True",
        "2026-01-01T00:00:00Z",
    )
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 297
    writes = [what for what in rig.api.sent() if not what.startswith("LIST")]
    assert writes == [f"PATCH {PODS}/a/status", f"DELETE {PODS}/a"]


async def test_one_pod_that_is_refused_keeps_no_other_from_its_sigterm(rig: Rig) -> None:
    names = ["a", "b", "c"]
    for name in names:
        rig.api.pod(NODE.name, name)
    orders = [rig.order(name) for name in names]
    for bad in names:
        rig.refuse("DELETE", f"/{bad}", WEBHOOK)
        with pytest.raises(DriverError, match=r"webhook.*no\.example\.com"):
            await rig.driver.signal(CLUSTER, NODE, orders)
    assert all("deletionTimestamp" in rig.api.things[f"{PODS}/{name}"]["metadata"] for name in names)


async def test_where_the_condition_is_refused_sigterm_comes_all_the_same(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a")
    rig.refuse("PATCH", "/status", WEBHOOK)
    assert await rig.driver.signal(CLUSTER, NODE, [rig.order("a")]) == [OrderResult(rig.order("a").uid)]
    assert "deletionTimestamp" in rig.api.things[f"{PODS}/a"]["metadata"]


async def test_where_the_condition_was_not_heard_it_is_tried_again_before_sigterm(rig: Rig) -> None:
    """Else a Job that may not fail would."""
    rig.api.pod(NODE.name, "a")
    rig.refuse("PATCH", "/status", BUSY, times=1)
    with pytest.raises(DriverError):
        await rig.driver.signal(CLUSTER, NODE, [rig.order("a")])
    assert "deletionTimestamp" not in rig.api.things[f"{PODS}/a"]["metadata"]


async def test_another_pod_under_the_name_is_not_told(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a")
    old = PodOrder("old-uid", "a", 30, namespace="default")
    assert await rig.driver.signal(CLUSTER, NODE, [old]) == [OrderResult("old-uid")]
    assert await rig.driver.evict(CLUSTER, NODE, [old]) == [OrderResult("old-uid")]
    assert rig.api.things[f"{PODS}/a"]["metadata"].get("deletionTimestamp") is None
    assert "conditions" not in rig.api.things[f"{PODS}/a"]["status"]


async def test_a_grace_is_shortened_to_end_at_the_deadline_and_not_before(rig: Rig) -> None:
    """The API server counts a shorter grace from the first SIGTERM on."""
    rig.api.pod(NODE.name, "a", grace_s=900, exits_after_s=None)
    await rig.driver.signal(CLUSTER, NODE, [rig.order("a", 900)])
    rig.clock.advance(100)
    await rig.driver.signal(CLUSTER, NODE, [rig.order("a", 197, shorten=True)])
    (pod,) = (await rig.driver.pods(CLUSTER, NODE)).pods
    assert pod.ends_by == rig.clock.now() + timedelta(seconds=197)


async def test_budgets_that_were_not_asked_are_named_and_trouble_with_them_holds_nothing_up(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a")
    rig.api.budget("keep", "a")
    (result,) = await rig.driver.signal(CLUSTER, NODE, [rig.order("a")])
    assert result.overrode == "default/keep"
    rig.refuse("LIST", "/poddisruptionbudgets", refusal(403, "no right", "Forbidden"))
    (result,) = await rig.driver.signal(CLUSTER, NODE, [rig.order("a")])
    assert result.overrode is None


async def test_a_refused_eviction_says_by_what(rig: Rig) -> None:
    for name in ("free", "held", "twice"):
        rig.api.pod(NODE.name, name)
    rig.api.budget("keep", "held")
    rig.api.budget("one", "twice", allowed=1)
    rig.api.budget("two", "twice", allowed=1)
    orders = [rig.order(name) for name in ("free", "held", "twice")]
    free, held, twice = await rig.driver.evict(CLUSTER, NODE, orders)
    assert free.refused is None
    assert held.refused == "The disruption budget keep needs more"
    assert twice.refused is not None
    assert "more than one PodDisruptionBudget" in twice.refused


@pytest.mark.parametrize(
    "error", [BUSY, refusal(429, "too many requests, please try again later", "TooManyRequests")]
)
async def test_an_eviction_without_an_answer_is_no_refusal(rig: Rig, error: KubeError) -> None:
    rig.api.pod(NODE.name, "a")
    rig.refuse("POST", "/eviction", error)
    with pytest.raises(DriverError):
        await rig.driver.evict(CLUSTER, NODE, [rig.order("a")])


async def test_an_eviction_that_a_webhook_refuses_is_a_refusal(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a")
    for error in (WEBHOOK, refusal(403, "admission webhook denied the request", "Forbidden")):
        rig.refuse("POST", "/eviction", error)
        (result,) = await rig.driver.evict(CLUSTER, NODE, [rig.order("a")])
        assert "webhook" in (result.refused or "")


# -- errors, and reads that are shared


CALLS: list[Callable[[Rig], object]] = [
    lambda rig: rig.driver.observe(CLUSTER),
    lambda rig: rig.driver.pods(CLUSTER, NODE),
    lambda rig: rig.driver.admit(CLUSTER, NODE),
    lambda rig: rig.notify(),
    lambda rig: rig.driver.take_back(CLUSTER, NODE, "r"),
    lambda rig: rig.driver.conclude(CLUSTER, NODE, "r", "m"),
    lambda rig: rig.driver.signal(CLUSTER, NODE, [PodOrder("u", "a", 1)]),
    lambda rig: rig.driver.evict(CLUSTER, NODE, [PodOrder("u", "a", 1)]),
    lambda rig: rig.driver.remove(CLUSTER, NODE),
    lambda rig: rig.driver.join_data(CLUSTER, NODE),
    lambda rig: rig.driver.put_volume(CLUSTER, {"metadata": {"name": "v"}}),
    lambda rig: rig.driver.drop_volume(CLUSTER, "v"),
    lambda rig: rig.driver.missing_rights(CLUSTER),
    lambda rig: rig.driver.standard(CLUSTER, "a=b"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
async def test_a_silent_cluster_is_always_an_error_that_names_it(rig: Rig, number: int) -> None:
    rig.refuse("", "", Unreachable("no answer in time"))
    with pytest.raises(DriverError, match="cluster tidal: no answer in time"):
        await CALLS[number](rig)  # type: ignore[misc]  # each answers something to await


async def test_a_cluster_without_a_way_in_or_with_a_bad_one_is_an_error(rig: Rig) -> None:
    with pytest.raises(DriverError, match="no kubeconfig"):
        await rig.driver.observe(ClusterRef("c-1", "tidal"))

    class Bad:
        def of(self, cluster_id: str, kubeconfig: str) -> None:
            raise BadInput("it is no YAML")

    driver = KubernetesDriver(Bad(), rig.clock)  # type: ignore[arg-type]  # all it needs
    with pytest.raises(DriverError, match="no YAML"):
        await driver.observe(CLUSTER)


async def test_fifty_who_look_at_once_cost_two_looks(rig: Rig) -> None:
    looks = await asyncio.gather(*(rig.driver.observe(CLUSTER) for _ in range(50)))
    assert {seen.uid for look in looks for seen in look} == {NODE.uid}
    assert rig.api.sent("LIST").count(f"LIST {NODES}") <= 2
    assert len({id(look) for look in looks}) == 50


async def test_a_client_that_nobody_uses_any_more_is_not_kept(rig: Rig) -> None:
    await rig.driver.observe(CLUSTER)
    await rig.driver.pods(CLUSTER, NODE)
    assert len(rig.driver._shared) == 1
    rig.forget_api()
    gc.collect()
    assert len(rig.driver._shared) == 0


async def test_a_shared_read_begins_after_it_was_asked_for() -> None:
    begun, gate = [], asyncio.Event()

    async def read() -> int:
        begun.append(len(begun))
        await gate.wait()
        return begun[-1]

    fresh = Fresh(read)
    first = asyncio.create_task(fresh())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(fresh()) for _ in range(50)]
    await asyncio.sleep(0)
    gate.set()
    assert await first == 0
    assert {await task for task in later} == {1}
    assert len(begun) == 2


async def test_who_is_cancelled_takes_no_other_along_and_errors_reach_all() -> None:
    gate = asyncio.Event()

    async def read() -> int:
        await gate.wait()
        raise Unreachable("gone")

    fresh = Fresh(read)
    one, two = asyncio.create_task(fresh()), asyncio.create_task(fresh())
    await asyncio.sleep(0)
    one.cancel()
    gate.set()
    with pytest.raises(Unreachable):
        await two
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_a_rule_of_the_clusters_is_told_apart_from_silence(rig: Rig) -> None:
    for error, refused in ((WEBHOOK, True), (refusal(403, "no right", "Forbidden"), True), (BUSY, False)):
        rig.refuse("PATCH", PATH, error)
        with pytest.raises(DriverError) as raised:
            await rig.notify()
        assert raised.value.refused is refused
