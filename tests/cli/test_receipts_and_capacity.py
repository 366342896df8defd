"""`ebbtide clusters receipts`, `receipt` and `set`, and `ebbtide capacity`, against canned answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ebbtide.cli.receipts import offset
from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID
from tests.cli.stub import Stub

Run = Callable[..., Ran]
NODE = "gpu-preemptible-dp-aaaaa-ccccc"
DRAINS = f"/v1/clusters/{CLUSTER_ID}/drains"
SETTINGS = f"/v1/clusters/{CLUSTER_ID}/settings"


def pod(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "namespace": "lab",
        "pod": name,
        "pod_uid": f"uid-{name}",
        "kind": "workload",
        "arrived_after_notice": False,
        "tolerates_cordon": False,
        "first_seen_at": "2026-01-02T03:00:00Z",
        "grace_asked_s": 900,
        "grace_given_s": 297,
        "shortened_to_s": None,
        "sigterm_at": "2026-01-02T03:00:00Z",
        "told_by": "signal",
        "budget_refused": None,
        "budget_overridden": "lab/keep-all",
        "end": "exited",
        "ended_at": "2026-01-02T03:01:40Z",
        "used_s": 100,
        "grace_used_up": False,
        **changes,
    }


def drain(**changes: Any) -> dict[str, Any]:
    return {
        "cluster_id": CLUSTER_ID,
        "node_id": NODE,
        "node_uid": "u",
        "compute_class": "preemptible",
        "gpus": 8,
        "kind": "reclaim",
        "reason": "TogetherPreempted",
        "message": "capacity was needed elsewhere",
        "state": "host_free",
        "summary": "left 300 s after the notice, of 300 s; of 2 pods 1 exited, 1 ended with the machine",
        "noticed_at": "2026-01-02T03:00:00Z",
        "deadline": "2026-01-02T03:05:00Z",
        "ends_at": "2026-01-02T03:05:00Z",
        "late_notice": False,
        "warned_s": 0,
        "sigterm_due_at": "2026-01-02T03:00:00Z",
        "cordoned_at": "2026-01-02T03:00:00Z",
        "first_sigterm_at": "2026-01-02T03:00:00Z",
        "left_at": "2026-01-02T03:05:00Z",
        "left_because": "deadline",
        "stopped_at": "2026-01-02T03:05:02Z",
        "out_of_cluster_at": "2026-01-02T03:05:03Z",
        "host_free_at": "2026-01-02T03:06:00Z",
        "window_s": 300,
        "used_s": 300,
        "unused_s": 0,
        "billed_s": 300,
        "credits": [],
        "pods_by_end": {"there": 0, "exited": 1, "killed": 1, "unknown": 0},
        "arrived_after_notice": 0,
        "budgets_refused": [],
        "budgets_overridden": ["lab/keep-all"],
        **changes,
    }


STUCK = pod("train-1", end="killed", ended_at="2026-01-02T03:05:00Z", used_s=300, grace_used_up=True)
RECEIPT = drain(pods=[pod("train-0"), STUCK])
OFFER = {
    "region": "r",
    "gpu_type": "H100_SXM",
    "gpus_per_host": 8,
    "standard_gpus": 64,
    "standard_more": True,
    "preemptible_gpus": 16,
    "preemptible_more": False,
    "microdollars_per_gpu_hour": 2_500_000,
    "preemptible_microdollars_per_gpu_hour": 1_250_000,
}
SUPPLY = {
    "at": "2026-01-02T03:00:00Z",
    "offers": [OFFER],
    "quota_left": {"standard_gpus": 24, "preemptible_gpus": None},
}
OBSERVED = {
    "region": "r",
    "gpu_type": "H100_SXM",
    "since": "2025-12-03T03:00:00Z",
    "until": "2026-01-02T03:00:00Z",
    "fill": {"samples": 40, "ended": 38, "enough": True, "median_s": 95, "p90_s": 3_700, "note": None},
    "life": {
        "samples": 22,
        "ended": 3,
        "enough": False,
        "median_s": None,
        "p90_s": None,
        "note": "not enough history",
    },
}


@pytest.fixture
def reef(stub: Stub) -> Stub:
    stub.on("GET /v1/compute/clusters", {"clusters": [samples.cluster()]})
    stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
    stub.on(f"GET {DRAINS}?limit=20", {"drains": [drain()], "next_before": None})
    stub.on(f"GET {DRAINS}/{NODE}", RECEIPT)
    return stub


def columns(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_receipts_are_a_table_of_drains(reef: Stub, online: Run) -> None:
    ran = online("clusters", "receipts", "reef")
    assert ran.code == 0, ran.err
    head, row = ran.lines
    assert columns(head) == [
        *("NODE", "REASON", "NOTICE", "LEFT", "BECAUSE", "UNUSED", "BILLED", "PODS", "OVERRIDDEN")
    ]
    assert columns(row)[3:8] == ["+5:00", "deadline", "0s", "5m 00s", "1 exited, 1 killed"]


def test_receipts_of_a_deleted_cluster_are_read_by_its_id(stub: Stub, online: Run) -> None:
    stub.on(f"GET {DRAINS}?limit=3", {"drains": [], "next_before": None})
    ran = online("clusters", "receipts", CLUSTER_ID, "--last", "3")
    assert (ran.code, ran.lines) == (0, ["no node of this cluster has drained yet"])


def test_a_receipt_is_found_by_its_node_and_lines_up(reef: Stub, online: Run) -> None:
    ran = online("clusters", "receipt", NODE)
    assert ran.code == 0, ran.err
    facts = [columns(line) for line in ran.lines[: ran.lines.index("")]]
    assert ["deadline", "+5:00", "(2026-01-02 03:05:00 UTC)"] in facts
    assert ["left", "+5:00", "(its time was over)"] in facts
    assert ["overridden", "lab/keep-all"] in facts
    table = ran.lines[ran.lines.index("") + 1 :]
    assert columns(table[0]) == ["POD", "SIGTERM", "BY", "ASKED", "GIVEN", "USED", "END", "AT", "OVERRIDDEN"]
    assert columns(table[1])[1:8] == ["+0:00", "signal", "900s", "297s", "100s", "exited", "+1:40"]
    assert columns(table[2])[5:8] == ["300s", "killed", "+5:00"]
    starts = [[match.end() for match in re.finditer(r"\S+", line)] for line in table]
    assert starts[1][1] == starts[2][1] == table[0].index("SIGTERM") + len("SIGTERM")


def test_a_receipt_says_more_where_there_is_more(reef: Stub, online: Run) -> None:
    pods = [
        pod("a", grace_used_up=True, used_s=297),
        pod("b", told_by="others", grace_given_s=None, shortened_to_s=120, sigterm_at=None, used_s=None),
        pod(
            "c", arrived_after_notice=True, tolerates_cordon=True, first_seen_at="2026-01-02T03:02:05Z",
            budget_refused="disruption budget keep-all never allows one",
        ),
    ]  # fmt: skip
    more = {
        "late_notice": True,
        "ends_at": "2026-01-02T03:07:00Z",
        "warned_s": 60,
        "sigterm_due_at": "2026-01-02T03:01:00Z",
        "credits": [
            {"reason": "notice came 300 s late", "gpu_seconds": 2400, "microdollars": -833_333, "at": "x"}
        ],
    }
    reef.on(f"GET {DRAINS}/{NODE}", drain(pods=pods, **more))
    ran = online("clusters", "receipt", NODE, "--cluster", "reef")
    assert ran.code == 0, ran.err
    for words in (
        "late until     +7:00",
        "SIGTERM due    +1:00",
        "(notice came 300 s late)",
        "exited, all used",
        "-, then 120s",
        "+2:05, tolerates",
        "disruption budget keep-all",
    ):
        assert words in ran.out, words


def test_json_is_the_whole_receipt(reef: Stub, online: Run) -> None:
    assert online("clusters", "receipt", NODE, "--json").json == RECEIPT
    assert online("clusters", "receipts", "reef", "--json").json == [drain()]


def test_a_node_that_did_not_drain_is_said_plainly(reef: Stub, online: Run) -> None:
    ran = online("clusters", "receipt", "gpu-dp-zzzzz-zzzzz")
    assert ran.code == 1
    assert "no node 'gpu-dp-zzzzz-zzzzz' of your clusters has drained" in ran.err


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ("--warn-first 60", {"warn_first_s": 60}),
        ("--placement explicit", {"placement": "explicit"}),
        ("--warn-first 0 --placement open", {"warn_first_s": 0, "placement": "open"}),
    ],
)
def test_settings_that_are_given_are_sent(
    reef: Stub, online: Run, words: str, body: dict[str, object]
) -> None:
    after = {
        "cluster_id": CLUSTER_ID,
        "warn_first_s": 60,
        "placement": "explicit",
        "longest_warn_first_s": 240,
    }
    reef.on(f"PATCH {SETTINGS}", after)
    ran = online("clusters", "set", "reef", *words.split())
    assert ran.code == 0, ran.err
    assert reef.last.body == body
    assert ran.lines == ["warn first  60 s before SIGTERM, of 240 s at most", "placement   explicit"]


def test_without_options_settings_are_shown(reef: Stub, online: Run) -> None:
    present = {"cluster_id": CLUSTER_ID, "warn_first_s": 0, "placement": "open", "longest_warn_first_s": 240}
    reef.on(f"GET {SETTINGS}", present)
    assert online("clusters", "set", "reef", "--json").json == present


def test_capacity_says_what_could_be_had(stub: Stub, online: Run) -> None:
    stub.on("GET /v1/capacity", SUPPLY)
    ran = online("capacity")
    assert ran.code == 0, ran.err
    assert columns(ran.lines[1]) == ["r", "H100_SXM", "64+", "16", "$2.50", "$1.25"]
    assert ran.lines[2] == "your project's quota leaves 24 standard GPUs"
    stub.on("GET /v1/capacity?region=r&gpu_type=G", {**SUPPLY, "offers": []})
    ran = online("capacity", "--region", "r", "--gpu-type", "G")
    assert ran.lines[0] == "no such region or GPU model"


def test_a_history_has_figures_or_says_that_it_is_too_short(stub: Stub, online: Run) -> None:
    stub.on("GET /v1/capacity/history", {"history": [OBSERVED]})
    ran = online("capacity", "history")
    assert ran.code == 0, ran.err
    assert columns(ran.lines[1])[2:8] == [
        "1m 35s",
        "1h 01m 40s",
        "38 of 40",
        "not enough history",
        "-",
        "3 of 22",
    ]
    assert online("capacity", "history", "--json").json == [OBSERVED]


def test_a_clusters_own_history(reef: Stub, online: Run) -> None:
    reef.on(f"GET /v1/clusters/{CLUSTER_ID}/history", OBSERVED)
    assert online("capacity", "history", "--cluster", "reef", "--json").json == [OBSERVED]
    ran = online("capacity", "history", "--cluster", "reef", "--region", "r")
    assert ran.code == 2
    assert "leave --region and --gpu-type out" in ran.err


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (None, None),
        ("2026-01-02T03:00:00Z", "+0:00"),
        ("2026-01-02T03:01:05Z", "+1:05"),
        ("2026-01-02T02:59:55Z", "-0:05"),
        ("2026-01-02T04:10:00Z", "+70:00"),
    ],
)
def test_offsets(instant: str | None, expected: str | None) -> None:
    assert offset("2026-01-02T03:00:00Z", instant) == expected
