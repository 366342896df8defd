"""What Kubernetes' objects mean to a drain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.core.drain import PodKind
from ebbtide.core.events import Reason
from ebbtide.drivers.base import NodeRef
from ebbtide.drivers.kubernetes import budgets, events, nodes, pods, standard, tokens
from ebbtide.kube.server_time import ServerTime

T0 = datetime(2026, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def a_pod(phase: str = "Running", owner: str = "", priority: str = "", notes: Json | None = None) -> Json:
    owners = [{"kind": owner, "controller": True}] if owner else []
    return {
        "metadata": {"name": "p", "namespace": "n", "ownerReferences": owners, "annotations": notes or {}},
        "spec": {"priorityClassName": priority},
        "status": {"phase": phase},
    }


MIRROR = {"kubernetes.io/config.mirror": "hash"}


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        (a_pod(), PodKind.WORKLOAD),
        (a_pod(phase="Pending"), PodKind.WORKLOAD),
        (a_pod(phase="Unknown"), PodKind.WORKLOAD),
        (a_pod(owner="ReplicaSet"), PodKind.WORKLOAD),
        (a_pod(phase="Succeeded"), PodKind.FINISHED),
        (a_pod(phase="Failed"), PodKind.FINISHED),
        (a_pod(owner="DaemonSet"), PodKind.DAEMON),
        (a_pod(owner="DaemonSet", phase="Failed"), PodKind.DAEMON),
        (a_pod(owner="Node"), PodKind.MIRROR),
        (a_pod(notes=MIRROR), PodKind.MIRROR),
        (a_pod(notes=MIRROR, phase="Failed"), PodKind.MIRROR),
        (a_pod(priority="system-node-critical"), PodKind.CRITICAL),
        (a_pod(priority="system-cluster-critical"), PodKind.WORKLOAD),
        (a_pod(priority="system-node-critical", owner="DaemonSet"), PodKind.DAEMON),
        ({}, PodKind.WORKLOAD),
    ],
)
def test_kinds_of_pods(pod: Json, kind: PodKind) -> None:
    assert pods.kind(pod) is kind
    assert pods.counts(pod) is (kind in (PodKind.WORKLOAD, PodKind.CRITICAL))


CORDON = "node.kubernetes.io/unschedulable"


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": CORDON, "operator": "Exists"}, True),
        ({"key": CORDON, "effect": "NoSchedule"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_who_comes_onto_a_cordoned_node(toleration: Json, tolerates: bool) -> None:
    pod = a_pod()
    pod["spec"]["tolerations"] = [toleration]
    assert pods.tolerates_cordon(pod) is tolerates


def test_a_pods_end_is_told_by_our_clock() -> None:
    pod = a_pod()
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:05:00Z", "deletionGracePeriodSeconds": 300}
    assert pods.seen(pod).ends_by == T0 + timedelta(seconds=300)
    ahead = timedelta(seconds=-40)  # the server's clock is 40 s ahead of ours
    assert pods.seen(pod, ahead).ends_by == T0 + timedelta(seconds=260)
    assert pods.told_for_s(pod, ahead, T0) == 40
    assert pods.told_for_s(pod, timedelta(0), T0 + timedelta(seconds=7.9)) == 7
    assert pods.told_for_s(a_pod(), ahead, T0) == 0


def test_a_servers_clock_is_ours_until_the_contrary_is_proven() -> None:
    clock = ServerTime()
    assert clock.difference(T0, 0) == timedelta(0)
    epoch = T0.timestamp()
    clock.saw("Thu, 01 Jan 2026 00:00:00 GMT", sent_at=100.0, received_at=100.2)
    # Monotonic 100.0 to 100.2 was somewhere in that second.
    assert clock.difference(datetime.fromtimestamp(epoch + 0.5, UTC), 100.2) == timedelta(0)
    assert clock.difference(datetime.fromtimestamp(epoch - 9.8, UTC), 100.2) == timedelta(seconds=-9.8)
    assert clock.difference(datetime.fromtimestamp(epoch + 11.2, UTC), 100.2) == timedelta(seconds=10)


def test_a_servers_clock_that_is_set_is_followed_and_nonsense_is_not() -> None:
    clock = ServerTime()
    clock.saw("Thu, 01 Jan 2026 00:00:00 GMT", 100.0, 100.1)
    for nonsense in (None, "", "soon", "Thu, 99 Jan 2026 00:00:00 GMT"):
        clock.saw(nonsense, 101.0, 101.1)
    clock.saw("Thu, 01 Jan 2026 01:00:00 GMT", 110.0, 110.1)
    assert clock.difference(T0 + timedelta(seconds=10), 110.1) <= timedelta(seconds=-3589)


@pytest.mark.parametrize("year", ["9999", "9998"])
def test_a_servers_clock_at_the_end_of_time_is_nonsense(year: str) -> None:
    clock = ServerTime()
    clock.saw(f"Fri, 31 Dec {year} 23:59:59 GMT", 100.0, 100.1)
    assert clock.difference(T0, 100.1) == timedelta(0)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "a", "tier": "x"}}, False),
        ({}, True),
        (None, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}, False),
    ],
)
def test_what_a_selector_chooses(selector: Json | None, chosen: bool) -> None:
    assert budgets.selects(selector, {"app": "a"}) is chosen


def test_the_budget_that_forbids_is_named_and_others_are_not() -> None:
    pod = {"metadata": {"namespace": "n", "labels": {"app": "a"}}}

    def budget(name: str, allowed: int, namespace: str = "n") -> Json:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": allowed},
        }

    assert budgets.forbidding([budget("free", 1), budget("far", 0, "m")], pod) is None
    assert budgets.forbidding([budget("free", 1), budget("tight", 0)], pod) == "n/tight"


def test_the_older_of_two_nodes_that_claim_one_uid_is_the_true_one() -> None:
    def node(name: str, created: str) -> Json:
        labels = {"ebbtide/node-uid": "u"}
        return {"metadata": {"name": name, "labels": labels, "creationTimestamp": created}}

    (seen,) = nodes.seen([node("forged", "2026-02-01T00:00:00Z"), node("true", "2026-01-01T00:00:00Z")], [])
    assert seen.name == "true"


def test_a_node_that_lost_its_label_is_still_ours_and_another_uid_is_not() -> None:
    ref = NodeRef("u", "name")
    assert nodes.is_ours({"metadata": {"name": "name"}}, ref)
    assert not nodes.is_ours({"metadata": {"labels": {"ebbtide/node-uid": "v"}}}, ref)


def test_events_have_names_by_which_repeats_are_found() -> None:
    node = {"metadata": {"name": "a" * 260, "uid": "k"}}
    first = events.about(node, "Node", Reason.PREEMPTED, "m" * 5000, T0, "u/2026")
    again = events.about(node, "Node", Reason.PREEMPTED, "other words", T0 + timedelta(seconds=9), "u/2026")
    later = events.about(node, "Node", Reason.PREEMPTED, "m", T0, "u/2027")
    assert first["metadata"]["name"] == again["metadata"]["name"] != later["metadata"]["name"]
    assert len(first["metadata"]["name"]) <= 253
    assert len(first["message"]) <= 1024
    assert first["metadata"]["namespace"] == "default"
    assert "namespace" not in first["involvedObject"]


def test_aliases_are_a_wish() -> None:
    assert events.reasons(Reason.PREEMPTED, aliases=True) == [
        "TogetherPreempted",
        "TogetherPreemptionNotified",
    ]
    assert events.reasons(Reason.PREEMPTED, aliases=False) == ["TogetherPreempted"]
    assert events.reasons(Reason.SCALED_DOWN, aliases=True) == ["TogetherScaledDown"]


def test_token_ids_follow_from_uids() -> None:
    assert tokens.token_id("a") == tokens.token_id("a") != tokens.token_id("b")
    assert len(tokens.token_id("a")) == 6
    assert tokens.token_id("a").isalnum()


HOSTILE: list[Json] = [
    {},
    {"metadata": None, "spec": 3, "status": []},
    {"metadata": {"name": 7, "uid": ["x"], "labels": "l", "ownerReferences": [None, 1, {}]}},
    {"metadata": {"name": "a\0b\nc", "uid": "u\0", "namespace": "n" * 10_000}},
    {"metadata": {"deletionTimestamp": "9999-12-31T23:59:59Z", "deletionGracePeriodSeconds": 10**30}},
    {"metadata": {"deletionTimestamp": "33658-01-01T00:00:00Z"}, "spec": {"tolerations": [[], {"key": 3}]}},
    {"metadata": {"deletionTimestamp": "0001-01-01T00:00:00+14:00"}},
    {"spec": {"terminationGracePeriodSeconds": 9_999_999_999, "volumes": [{}, 1]}},
    {"spec": {"terminationGracePeriodSeconds": True}},
    {"spec": {"terminationGracePeriodSeconds": -5}, "status": {"startTime": "yesterday"}},
    {"status": {"allocatable": {"nvidia.com/gpu": "9" * 500, "memory": [], "cpu": "1e5"}, "addresses": [0]}},
    {"status": {"containerStatuses": [{"name": "c\0", "state": {"running": {"startedAt": "x"}}}, 4]}},
]


@pytest.mark.parametrize("thing", HOSTILE)
def test_whatever_a_stranger_writes_can_be_read_and_stored(thing: Json) -> None:
    """An imported cluster's API server is somebody else's: a drain must end whatever it says."""
    for difference in (timedelta(0), timedelta(days=9), timedelta(days=-9)):
        seen = pods.seen(thing, difference)
        assert 0 <= seen.grace_s < 2**31
        assert type(seen.grace_s) is int, "true is a number to Python, and none to the database"
        told = (seen.uid, seen.name, seen.namespace, *seen.containers)
        assert all(len(one) <= 253 and one.isprintable() for one in told)
        assert seen.ends_by is None or seen.ends_by.tzinfo is not None
        assert pods.told_for_s(thing, difference, T0) >= 0
    assert standard._node(thing).gpus == 0
    (node,) = nodes.seen([thing], [thing])
    assert node.uid.isprintable()
    assert node.gpus == 0


def test_a_pod_is_seen_once_whatever_a_list_says() -> None:
    assert len(pods.all_seen([a_pod(), a_pod()], timedelta(0))) == 1


def test_absurd_numbers_of_gpus_are_none() -> None:
    (node,) = nodes.seen([{"status": {"allocatable": {"nvidia.com/gpu": "9" * 5000}}}], [])
    assert node.gpus == 0
