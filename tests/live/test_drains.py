"""Drains of a whole system on a real control plane: themes 1 to 4 and 8, as far as they show there.

One wave takes nine nodes at once, each with another difficulty, and everything is looked at a few times a
second; the tests read what was seen. So all of it takes as long as one drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
import pytest_asyncio

from ebbtide.core import marks
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.drivers.base import NodeRef
from tests.live.drains import PODS, Json, Place
from tests.live.system import DETACH_S, WINDOW_S, Live, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

EPSILON_S = 6
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DEAF = {"ebbtide/obeys": "false"}
LEISURELY = {"ebbtide/exits-after-s": "3"}  # long enough to be seen on its way out
EVERYTHING = [{"operator": "Exists"}]
CONTAINER = {"name": "main", "image": "none"}


@dataclass
class Wave:
    """What one claim took, by difficulty. t0: the notice; told: what each node's pod is called."""

    live: Live
    nodes: dict[str, NodeRef]
    pods: dict[str, str]
    t0: datetime

    def after(self, at: datetime | None) -> float:
        assert at is not None
        return (at - self.t0).total_seconds()

    def told_at(self, what: str) -> datetime:
        """When the pod was first seen to be told to go."""
        seen = self.live.pod_seen(self.pods[what])
        told = [at for at, pod in seen if "deletionTimestamp" in pod["metadata"]]
        assert told, f"nobody saw {what} on its way out"
        return told[0]

    def node_gone_s(self, what: str) -> float:
        return self.after(self.live.node_seen(self.nodes[what])[-1][0])


def _template(app: str, spec: Json) -> Json:
    return {
        "selector": {"matchLabels": {"app": app}},
        "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [CONTAINER], **spec}},
    }


async def _prepare(live: Live, nodes: dict[str, NodeRef]) -> dict[str, str]:
    """Put onto each node what makes it difficult. The names of the pods."""
    place = live.place
    shipper = _template(
        "shipper", {"nodeSelector": {marks.LABEL_CLASS: "preemptible"}, "tolerations": EVERYTHING}
    )
    await place.admin.create(DAEMON_SETS, {"metadata": {"name": "shipper"}, "spec": shipper})
    where = {"nodeSelector": {marks.LABEL_NODE_UID: nodes["returns"].uid}, "tolerations": EVERYTHING}
    await place.admin.create(
        DEPLOYMENTS, {"metadata": {"name": "returns"}, "spec": {"replicas": 1, **_template("returns", where)}}
    )
    job = _template("training", {"nodeSelector": {marks.LABEL_NODE_UID: nodes["job"].uid}})
    job["template"]["spec"]["restartPolicy"] = "Never"
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    body = {"template": job["template"], "backoffLimit": 0, "podFailurePolicy": {"rules": [ignore]}}
    await place.admin.create(JOBS, {"metadata": {"name": "training"}, "spec": body})
    await place.budget("keep", "budget")
    for name in ("one", "two"):
        await place.budget(name, "twice")
    slow = {"ebbtide/exits-after-s": "6"}
    await place.attachment(nodes["detaches"], "detaches")
    await place.attachment(nodes["attached"], "attached")
    mirror = {"metadata": {"generateName": "static-", "annotations": {"kubernetes.io/config.mirror": "x"}}}
    made = await asyncio.gather(
        place.pod(nodes["budget"], "budget", grace_s=300, notes=LEISURELY),
        place.pod(nodes["twice"], "twice", grace_s=300, notes=LEISURELY),
        place.pod(nodes["dead"], "dead", grace_s=300),
        place.pod(nodes["daemons"], "slow", grace_s=300, notes=slow),
        place.pod(nodes["deaf"], "deaf", grace_s=300, notes=DEAF),
        place.pod(nodes["vanishes"], "vanishes", grace_s=300, notes=DEAF),
        place.pod(nodes["daemons"], "static", **mirror),
    )
    names = [pod["metadata"]["name"] for pod in made]
    return dict(zip(["budget", "twice", "dead", "daemons", "deaf", "vanishes", "static"], names, strict=True))


async def _by_app(place: Place, app: str, node: NodeRef) -> Json | None:
    found = [pod for pod in await place.pods_on(node) if pod["metadata"].get("labels", {}).get("app") == app]
    return found[0] if found else None


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(place: Place, module_database_url: str) -> AsyncIterator[Live]:
    async with running(place, module_database_url, hosts=10, target=9) as one:
        yield one
    for path in (DAEMON_SETS, DEPLOYMENTS, JOBS):
        for thing in (await place.admin.list(path)).items:
            await place.admin.delete(f"{path}/{thing['metadata']['name']}", propagation="Background")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wave(live: Live) -> Wave:
    """Nine nodes are taken at once, and have gone."""
    kinds = ["budget", "twice", "dead", "daemons", "detaches", "attached", "deaf", "job", "vanishes"]
    nodes = dict(zip(kinds, await live.whole(len(kinds)), strict=True))
    nodes["returns"] = nodes["deaf"]
    pods = await _prepare(live, nodes)

    async def all_run() -> bool:
        daemons = [await _by_app(live.place, "shipper", node) for node in nodes.values()]
        others = [
            await _by_app(live.place, "returns", nodes["returns"]),
            await _by_app(live.place, "training", nodes["job"]),
        ]
        return all(pod and pod["status"].get("phase") == "Running" for pod in (*daemons, *others))

    await live.until(all_run)
    training = await _by_app(live.place, "training", nodes["job"])
    assert training is not None
    pods["job"] = training["metadata"]["name"]
    await live.place.kubelet_dies(nodes["dead"])
    await live.claims(len(kinds), "wave")
    t0 = live.now
    await asyncio.sleep(3)
    await live.place.power_off(nodes["vanishes"])
    await asyncio.sleep(2)
    await live.place.detach("detaches")

    async def all_gone() -> bool:
        return len(await live.nodes(Phase.REMOVED)) == len(kinds)

    await live.until(all_gone, WINDOW_S + DETACH_S + 20)
    return Wave(live, nodes, pods, t0)


async def test_a1_a2_a_budget_that_allows_nothing_delays_no_sigterm_and_is_named(wave: Wave) -> None:
    assert wave.after(wave.told_at("budget")) < 4
    assert (await wave.live.receipt(wave.nodes["budget"])).budgets_overridden == ("default/keep",)
    assert "EbbtideBudgetOverridden" in await wave.live.reasons(wave.nodes["budget"].uid)
    assert wave.node_gone_s("budget") < WINDOW_S


async def test_a3_two_budgets_over_one_pod_hold_up_nothing(wave: Wave) -> None:
    assert wave.after(wave.told_at("twice")) < 4
    assert wave.node_gone_s("twice") < WINDOW_S


async def test_a4_a_dead_kubelet_is_waited_for_until_the_deadline_at_most(wave: Wave) -> None:
    assert wave.node_gone_s("dead") < WINDOW_S + EPSILON_S
    assert await wave.live.place.pods_on(wave.nodes["dead"]) == []
    stopped_at = (await wave.live.receipt(wave.nodes["dead"])).stopped_at
    last = wave.live.pod_seen(wave.pods["dead"])[-1][0]
    assert stopped_at is not None
    # Its pod was there until the machine was off: no replacement could write beside it.
    assert (stopped_at - last).total_seconds() < 1


async def test_a_pod_gets_the_condition_and_its_grace_cut_to_what_is_left(wave: Wave) -> None:
    told = [pod for _, pod in wave.live.pod_seen(wave.pods["deaf"]) if "deletionTimestamp" in pod["metadata"]]
    assert told
    for pod in told:
        (mark,) = [one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
        assert mark["status"] == "True"
        assert WINDOW_S - 5 <= pod["metadata"]["deletionGracePeriodSeconds"] <= WINDOW_S - 2


async def test_a7_an_emptied_node_leaves_before_its_machine_stops_and_another_after(wave: Wave) -> None:
    """So no replacement writes to a volume beside a pod that still runs, and nobody sees a NotReady node."""
    for what, emptied in (("budget", True), ("detaches", True), ("attached", False)):
        receipt = await wave.live.receipt(wave.nodes[what])
        assert receipt.stopped_at is not None
        assert receipt.out_of_cluster_at is not None
        assert (receipt.out_of_cluster_at <= receipt.stopped_at) is emptied, what


async def test_b1_daemons_are_not_told_before_the_last_workload_pod_is_gone(wave: Wave) -> None:
    last = wave.live.pod_seen(wave.pods["daemons"])[-1][0]
    assert wave.after(last) >= 5
    (daemon,) = {
        name
        for glance in wave.live.glances
        for name, pod in glance.pods.items()
        if pod["metadata"].get("labels", {}).get("app") == "shipper"
        and pod["spec"].get("nodeName") == wave.nodes["daemons"].name
    }
    early = [at for at, pod in wave.live.pod_seen(daemon) if "deletionTimestamp" in pod["metadata"]]
    assert all(at >= last for at in early)


async def test_b2_static_pods_hold_up_nothing_and_are_not_told(wave: Wave) -> None:
    assert wave.node_gone_s("daemons") < WINDOW_S
    last = wave.live.pod_seen(wave.pods["daemons"])[-1][0]
    seen = wave.live.pod_seen(wave.pods["static"])
    assert not [at for at, pod in seen if "deletionTimestamp" in pod["metadata"] and at < last]


async def test_b3_pods_that_tolerate_everything_come_again_get_what_is_left_and_are_named(wave: Wave) -> None:
    node = wave.nodes["returns"]
    graces = {
        name: pod["metadata"]["deletionGracePeriodSeconds"]
        for glance in wave.live.glances
        for name, pod in glance.pods.items()
        if name.startswith("returns-") and pod["metadata"].get("deletionGracePeriodSeconds")
        if pod["spec"].get("nodeName") == node.name
    }
    assert len(graces) >= 2
    assert max(graces.values()) <= WINDOW_S - 2
    assert "EbbtidePodArrived" in await wave.live.reasons(node.uid)
    details = await wave.live.node(node.uid)
    assert details.deadline is not None
    assert wave.after(details.deadline) <= WINDOW_S


async def test_a_pod_that_ignores_sigterm_ends_with_its_grace(wave: Wave) -> None:
    last = wave.live.pod_seen(wave.pods["deaf"])[-1][0]
    assert WINDOW_S - 5 <= wave.after(last) <= WINDOW_S + EPSILON_S


async def test_c1_a_host_that_vanishes_in_mid_drain_is_removed_soon(wave: Wave) -> None:
    assert 2 <= wave.node_gone_s("vanishes") <= WINDOW_S
    assert "EbbtideNodeLost" in await wave.live.reasons(wave.nodes["vanishes"].uid)


async def test_c4_an_emptied_node_is_never_seen_not_ready(wave: Wave) -> None:
    for what in ("budget", "twice", "daemons", "detaches", "job"):
        for at, node in wave.live.node_seen(wave.nodes[what]):
            (ready,) = [one for one in node["status"]["conditions"] if one["type"] == "Ready"]
            assert ready["status"] == "True", (what, at)


async def test_c8_a_volume_that_is_still_attached_is_waited_for(wave: Wave) -> None:
    assert 5 <= wave.node_gone_s("detaches") < WINDOW_S


async def test_c9_a_volume_that_never_detaches_is_waited_for_a_while_and_no_longer(wave: Wave) -> None:
    assert WINDOW_S - 1 <= wave.node_gone_s("attached") <= WINDOW_S + DETACH_S + EPSILON_S
    late = [node for at, node in wave.live.node_seen(wave.nodes["attached"]) if wave.after(at) > WINDOW_S + 2]
    assert late
    assert "node.kubernetes.io/out-of-service" in {taint["key"] for taint in late[-1]["spec"]["taints"]}


async def test_c10_nothing_is_left_behind(wave: Wave) -> None:
    admin = wave.live.place.admin
    gone = {node.name for node in wave.nodes.values()}
    bound = [
        pod["metadata"]["name"]
        for pod in (await admin.list("/api/v1/pods")).items
        if pod["spec"].get("nodeName") in gone
    ]
    assert bound == []
    leases = await admin.list("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
    assert not gone & {lease["metadata"]["name"] for lease in leases.items}
    secrets = await admin.list("/api/v1/namespaces/kube-system/secrets")
    tokens = [one for one in secrets.items if one.get("type") == "bootstrap.kubernetes.io/token"]
    assert not {node.uid for node in wave.nodes.values()} & {
        one["metadata"].get("labels", {}).get(marks.LABEL_NODE_UID) for one in tokens
    }


async def test_d1_every_node_was_cordoned_before_its_first_pod_was_told(wave: Wave) -> None:
    for what in ("budget", "twice", "daemons", "deaf"):
        at = wave.told_at(what)
        earlier = [node for seen, node in wave.live.node_seen(wave.nodes[what]) if seen >= at]
        assert all(node["spec"].get("unschedulable") for node in earlier), what


async def test_h1_each_node_had_the_notice_its_alias_and_one_closing_event(wave: Wave) -> None:
    for what in ("budget", "twice", "daemons", "detaches", "deaf", "job", "attached"):
        events = await wave.live.place.events_on(wave.nodes[what])
        joined = {"TogetherScaledUp", "TogetherNodeAdded"}
        reasons = [event["reason"] for event in events if event["reason"] not in joined]
        wanted = ["EbbtideNodeDrained", "TogetherPreempted", "TogetherPreemptionNotified"]
        assert sorted(reasons) == wanted, what
        assert {event["count"] for event in events} == {1}


async def test_a_job_that_may_not_fail_once_survives(wave: Wave) -> None:
    job = await wave.live.place.admin.get(f"{JOBS}/training")
    assert job["status"].get("failed", 0) == 0
    assert [one for one in job["status"].get("conditions", []) if one["type"].startswith("Fail")] == []
    assert job["status"].get("active", 0) == 1


async def test_the_hosts_are_free_in_time_and_every_end_is_a_preemption(wave: Wave) -> None:
    for details in await wave.live.nodes(Phase.REMOVED):
        assert details.end_reason is EndReason.PREEMPTED
        assert details.deadline is not None
        assert timedelta(0) <= details.deadline - wave.t0 <= timedelta(seconds=WINDOW_S)


# -- the tenant gives back


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def given_back(wave: Wave) -> Wave:
    """After the wave: the nodes came again, and their tenant deleted three of them in the cluster."""
    live, place = wave.live, wave.live.place
    await live.gives_back("wave")
    nodes = dict(zip(["plain", "refused", "refused twice"], (await live.whole(9))[:3], strict=True))
    await place.budget("tight", "tight")
    for name in ("three", "four"):
        await place.budget(name, "both")
    made = await asyncio.gather(
        place.pod(nodes["plain"], "plain", grace_s=30, notes=LEISURELY),
        place.pod(nodes["refused"], "tight", grace_s=3, notes=DEAF),
        place.pod(nodes["refused twice"], "both", grace_s=3, notes=DEAF),
    )
    pods = dict(zip(nodes, [pod["metadata"]["name"] for pod in made], strict=True))
    t0 = live.now
    for node in nodes.values():
        await place.admin.delete(f"/api/v1/nodes/{node.name}")

    async def all_gone() -> bool:
        return {node.uid for node in nodes.values()} <= {one.uid for one in await live.nodes(Phase.REMOVED)}

    await live.until(all_gone, WINDOW_S + 15)
    return Wave(live, nodes, pods, t0)


async def test_c2_c3_a_node_that_its_tenant_deletes_is_cordoned_emptied_and_gone(given_back: Wave) -> None:
    node = given_back.nodes["plain"]
    seen = [one for at, one in given_back.live.node_seen(node) if at > given_back.t0]
    assert all("deletionTimestamp" in one["metadata"] for one in seen)
    told = given_back.told_at("plain")
    assert given_back.after(told) < 5
    after = [one for at, one in given_back.live.node_seen(node) if at >= told]
    assert all(one["spec"].get("unschedulable") for one in after)
    assert given_back.node_gone_s("plain") < WINDOW_S - 3
    assert (await given_back.live.node(node.uid)).end_reason is EndReason.SCALED_DOWN
    assert (await given_back.live.reasons(node.uid)).count("TogetherScaledDown") == 1


async def test_a_deleted_node_comes_again_because_the_target_stands(given_back: Wave) -> None:
    assert len(await given_back.live.whole(9)) == 9


@pytest.mark.parametrize(
    ("what", "said"), [("refused", "budget tight"), ("refused twice", "more than one PodDisruptionBudget")]
)
async def test_a3_a_release_asks_and_signals_when_it_must(given_back: Wave, what: str, said: str) -> None:
    assert given_back.after(given_back.told_at(what)) >= WINDOW_S - 3 - 2 - 1
    assert given_back.node_gone_s(what) < WINDOW_S + EPSILON_S
    receipt = await given_back.live.receipt(given_back.nodes[what])
    assert said in str(receipt.budgets_refused) + str(receipt.pods)


async def test_c7_a_kubelet_that_registers_again_is_cordoned_and_removed(given_back: Wave) -> None:
    """With a pod that got onto it."""
    node, place, live = given_back.nodes["plain"], given_back.live.place, given_back.live
    again = {
        "metadata": {"name": node.name, "labels": {marks.LABEL_NODE_UID: node.uid}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    await place.root.create("/api/v1/nodes", again)
    body = {"metadata": {"name": "stray"}, "spec": {"nodeName": node.name, "containers": [CONTAINER]}}
    await place.admin.create(PODS, body)

    async def is_gone() -> bool:
        return await place.node_now(node) is None and not await place.pods_on(node)

    await live.until(is_gone, 15)
    assert (await live.node(node.uid)).phase is Phase.REMOVED
