"""How clusters and nodes look on the wire: phases, names, deletions, events with both names."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from together.types import Cluster

from ebbtide.api import render
from ebbtide.core.clusters import ClusterPhase
from ebbtide.core.events import Reason
from ebbtide.core.nodes import EndReason, Phase
from ebbtide.services.details import PhaseChange

from .doubles import A_FILL, NOW, a_cluster, a_node, an_event

BEFORE = (("SCHEDULING", 0), ("BOOTING", 1), ("BOOTSTRAPPING", 60), ("RUNNING", 90))


def strictly(rendered: dict[str, object]) -> Cluster:
    """Parse as the official client does in its strict mode, from JSON."""
    return Cluster.model_validate_json(json.dumps(rendered), strict=True)


def test_a_draining_node_is_live_and_marked_and_the_physical_host_is_not_told() -> None:
    rendered = render.node(a_node(phase=Phase.DRAINING, history=(*BEFORE, ("DRAINING", 600))))
    assert rendered["node_id"] == rendered["host_name"] == "gpu-preemptible-dp-m8v2c-4hjkd"
    assert rendered["status"] == "Running"
    assert rendered["marked_for_deletion"] is True
    assert [each["phase"] for each in rendered["phase_transitions"]] == [
        "NODE_PHASE_SCHEDULING",
        "NODE_PHASE_BOOTING",
        "NODE_PHASE_BOOTSTRAPPING",
        "NODE_PHASE_RUNNING",
    ]
    assert "rack-7" not in json.dumps(rendered)
    assert "marked_for_deletion" not in render.node(a_node())


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        (EndReason.PREEMPTED, "NODE_PHASE_SUCCEEDED"),
        (EndReason.SCALED_DOWN, "NODE_PHASE_SUCCEEDED"),
        (EndReason.CLUSTER_DELETED, "NODE_PHASE_SUCCEEDED"),
        (EndReason.CANCELLED, "NODE_PHASE_SUCCEEDED"),
        (EndReason.FAILED, "NODE_PHASE_FAILED"),
        (EndReason.LOST, "NODE_PHASE_FAILED"),
    ],
)
def test_a_node_that_left_ends_succeeded_or_failed_with_the_time_it_left(end: EndReason, phase: str) -> None:
    history = (*BEFORE, ("DRAINING", 600), ("REMOVING", 720), ("REMOVED", 800))
    gone = a_node(
        phase=Phase.REMOVED, end_reason=end, history=history, removed_at=NOW + timedelta(seconds=800)
    )
    rendered = render.deleted_node(gone)
    assert rendered["status"] == "Deleted"
    assert rendered["deleted_at"] == "2026-01-02T03:12:00Z"
    assert [each["phase"] for each in rendered["phase_transitions"]][-1] == phase
    assert [each["phase"] for each in rendered["phase_transitions"]].count(phase) == 1
    leaving = render.deleted_node(a_node(phase=Phase.REMOVING, end_reason=end, history=history[:-1]))
    assert (leaving["status"], leaving["deleted_at"]) == ("Deleting", "2026-01-02T03:12:00Z")


def test_a_promised_node_without_a_host_is_pending() -> None:
    pending = a_node(phase=Phase.PENDING, address=None, instance_id=None, history=(("PENDING", 0),))
    rendered = render.node(pending)
    assert (rendered["status"], rendered["networks"]) == ("Pending", [])
    assert "instance_id" not in rendered
    assert rendered["phase_transitions"] == [
        {"phase": "NODE_PHASE_PENDING", "transition_time": "2026-01-02T03:00:00Z"}
    ]


def test_every_phase_of_ours_has_a_word_that_strict_clients_know() -> None:
    for phase in ClusterPhase:
        history = tuple(PhaseChange(each.value, NOW) for each in ClusterPhase)
        strictly(render.cluster(a_cluster(phase=phase, phases=history), aliases=True))
    for node_phase in Phase:
        history = tuple((each.value, 0) for each in Phase)
        for end in (None, EndReason.LOST):
            node = a_node(phase=node_phase, history=history, end_reason=end)
            strictly(render.cluster(a_cluster(nodes=(node,), deleted_nodes=(node,)), aliases=True))


def test_events_carry_both_names_once_per_node_and_reason_and_the_first_time() -> None:
    events = (
        an_event(1, "node-a", Reason.SCALED_UP, 0),
        an_event(2, "node-a", Reason.PREEMPTED, 10),
        an_event(3, "node-a", Reason.PREEMPTED, 20),
        an_event(4, "node-b", Reason.PREEMPTED, 30),
        an_event(5, "node-b", Reason.GRACE_EXPIRED, 40),
    )
    both = render.lifecycle_events(events, aliases=True)
    assert [(each["node_id"], each["reason"], each["timestamp"][-3:-1]) for each in both] == [
        ("node-a", "TogetherScaledUp", "00"),
        ("node-a", "TogetherNodeAdded", "00"),
        ("node-a", "TogetherPreempted", "10"),
        ("node-a", "TogetherPreemptionNotified", "10"),
        ("node-b", "TogetherPreempted", "30"),
        ("node-b", "TogetherPreemptionNotified", "30"),
        ("node-b", "EbbtideGraceExpired", "40"),
    ]
    plain = render.lifecycle_events(events, aliases=False)
    assert [each["reason"] for each in plain] == [
        "TogetherScaledUp",
        "TogetherPreempted",
        "TogetherPreempted",
        "EbbtideGraceExpired",
    ]


def test_the_stream_tells_numbers_and_own_reasons_only() -> None:
    assert render.stream([an_event(7, "node-a")]) == [
        {
            "number": 7,
            "reason": "TogetherPreempted",
            "node_id": "node-a",
            "message": "why",
            "timestamp": "2026-01-02T03:00:00Z",
        }
    ]


def test_the_kubeconfig_is_base64_in_one_and_empty_in_lists() -> None:
    one = render.cluster(a_cluster(), aliases=True)
    assert base64.b64decode(one["kube_config"], validate=True) == b"apiVersion: v1\nkind: Config\n"
    assert render.cluster(a_cluster(), aliases=True, with_kubeconfig=False)["kube_config"] == ""
    assert render.cluster(a_cluster(kubeconfig=None), aliases=True)["kube_config"] == ""


def test_an_unmet_target_says_why_since_when_and_what_next() -> None:
    """K10."""
    rendered = render.cluster(a_cluster(fill=A_FILL), aliases=True)
    assert rendered["preemptible_fill"] == {
        "pending_reason": "no host is free in pool h100",
        "since": "2026-01-02T03:00:00Z",
        "last_try": "2026-01-02T03:00:00Z",
        "next_try": "2026-01-02T03:00:20Z",
    }
    strictly(rendered)
    assert "preemptible_fill" not in render.cluster(a_cluster(), aliases=True)


def test_times_are_utc_to_the_second() -> None:
    berlin = timezone(timedelta(hours=1))
    assert render.at(datetime(2026, 1, 2, 4, 5, 6, 999_999, tzinfo=berlin)) == "2026-01-02T03:05:06Z"
    assert render.at(datetime(2026, 1, 2, 3, 5, 6, 1, tzinfo=UTC)) == "2026-01-02T03:05:06Z"
