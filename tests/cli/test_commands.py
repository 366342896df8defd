"""Every command against canned answers: what it asks, what it prints, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.samples import CLUSTER_ID, PROJECT_ID
from tests.cli.stub import Stub

Run = Callable[..., Ran]

# (words, the request that is answered, the answer, what the table must show)
SHOWN: list[tuple[str, str, Any, list[str]]] = [
    (
        "clusters list",
        "GET /v1/compute/clusters",
        {"clusters": [samples.cluster()]},
        ["NAME", "reef", "Ready", "8/16", CLUSTER_ID],
    ),
    (
        f"clusters get {CLUSTER_ID}",
        f"GET /v1/compute/clusters/{CLUSTER_ID}",
        samples.cluster(preemptible_fill={"pending_reason": "no host is free"}),
        ["reef", "8/16 GPUs", "gpu-preemptible-dp-aaaaa-ccccc", "preemptible", "no host is free"],
    ),
    ("fleet pools", "GET /v1/fleet/pools", {"pools": [samples.pool()]}, ["h100", "H100_SXM", "$2.50"]),
    (
        "fleet nodes",
        "GET /v1/fleet/nodes",
        {"nodes": [samples.FLEET_NODE]},
        ["DRAINING", "03:07:00", "1 pod left"],
    ),
    ("fleet claims", "GET /v1/fleet/claims", {"claims": [samples.claim()]}, ["order-1", "shop", "open"]),
    (
        "fleet ownership",
        "GET /v1/fleet/ownership",
        {"ownership": [{"what": "prices", "owner": "file", "note": "from the reload on"}]},
        ["prices", "file", "from the reload on"],
    ),
    ("fleet uncordon h", "POST /v1/fleet/hosts/h/uncordon", samples.HOST, ["h100-b1-001", "available"]),
    ("fleet cordon h", "POST /v1/fleet/hosts/h/cordon", samples.HOST, ["h100-b1-001"]),
    (
        "fleet reclaim --pool p --hosts 1",
        "POST /v1/fleet/reclaims",
        {"nodes": [samples.FLEET_NODE]},
        ["gpu-preemptible-dp-aaaaa-ccccc", "DRAINING"],
    ),
    (
        "fleet claim --pool h100 --hosts 2 --ref order-1",
        "POST /v1/fleet/claims",
        samples.claim(),
        ["order-1", "h1", "h2", "2026-01-02 03:05:00 UTC"],
    ),
    (
        "fleet return order-1 --host h1 --host h2",
        "DELETE /v1/fleet/claims/order-1?hosts=h1%2Ch2",
        samples.claim(given=[], draining=[], state="ended"),
        ["ended", "none yet"],
    ),
    ("usage", "GET /v1/usage?by=cluster", samples.USAGE, ["reef", "12m 00s", "5,760", "$1.25", "$2.00"]),
    (
        "usage --by node",
        "GET /v1/usage?by=node",
        samples.USAGE | {"lines": [samples.usage_line(node="gpu-x", microdollars=None)], "unpriced_lines": 1},
        ["gpu-x", "unpriced", "no rate yet for 1 line"],
    ),
    (
        "projects list",
        "GET /v1/projects",
        {"data": [samples.PROJECT]},
        ["lab", "Lab", "64 GPUs", "none"],
    ),
    ("projects create lab", "POST /v1/projects", samples.PROJECT, ["lab"]),
    (
        "projects set lab --weight 3 --standard-gpus-limit 64 --preemptible-gpus-limit none",
        "PATCH /v1/fleet/projects/lab",
        samples.PROJECT,
        ["standard quota     64 GPUs", "preemptible quota  none"],
    ),
    ("keys list", "GET /v1/keys", {"keys": [samples.KEY]}, ["k2", "Default", "member", "cret", "never"]),
    (
        "keys rotate k1 --overlap 60",
        "POST /v1/keys/k1/rotate",
        samples.KEY | {"name": "ci", "expires_at": "2026-02-01T00:00:00Z"},
        ["ebb_secret", "ci", "2026-02-01 00:00:00 UTC"],
    ),
    (
        "audit",
        "GET /v1/audit?limit=50",
        {"entries": [samples.AUDIT_ENTRY], "next_before": None},
        ["project.update", "weight 1 -> 3, standard_gpus_limit none -> 64"],
    ),
    (
        "webhooks list",
        "GET /v1/webhooks",
        {"webhooks": [samples.WEBHOOK]},
        ["w1", "https://hooks.example/x", "all"],
    ),
    (
        "webhooks create https://hooks.example/x --reason TogetherPreempted",
        "POST /v1/webhooks",
        samples.WEBHOOK | {"secret": "whsec_x"},
        ["whsec_x", "w1"],
    ),
    ("webhooks delete w1", "DELETE /v1/webhooks/w1", {"id": "w1", "deleted": True}, ["w1 is deleted"]),
    (
        "webhooks deliveries w1",
        "GET /v1/webhooks/w1/deliveries?limit=50",
        {"deliveries": [samples.DELIVERY]},
        ["waiting", "TogetherPreempted", "answered 503", "03:05:00"],
    ),
    ("keys create --project lab", "POST /v1/keys", samples.KEY, ["ebb_secret", "member"]),
    ("keys revoke k2", "DELETE /v1/keys/k2", {"id": "k2", "revoked": True}, ["k2 is revoked"]),
    (
        f"playground pods {CLUSTER_ID}",
        f"GET /v1/playground/clusters/{CLUSTER_ID}/pods",
        {"pods": [samples.POD]},
        ["job-1", "running", "Obeys", "30 s"],
    ),
    (
        f"playground run {CLUSTER_ID} job --behaviour dawdles --exits-after 9",
        f"POST /v1/playground/clusters/{CLUSTER_ID}/pods",
        {"pods": [samples.POD]},
        ["job-1"],
    ),
    (
        f"playground delete-node {CLUSTER_ID} n1",
        f"POST /v1/playground/clusters/{CLUSTER_ID}/nodes/n1/delete",
        {"node": "n1"},
        ["n1 is deleted"],
    ),
    ("playground vanish h1", "POST /v1/playground/hosts/h1/vanish", {"host": "h1"}, ["h1 is gone"]),
]


@pytest.fixture
def known(stub: Stub) -> Stub:
    """The stub with one cluster."""
    stub.on("GET /v1/compute/clusters", {"clusters": [samples.cluster()]})
    stub.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
    stub.on("GET /v3/whoami", samples.WHOAMI)
    stub.on("GET /v1/compute/regions", samples.REGIONS)
    return stub


class TestEveryCommand:
    @pytest.mark.parametrize(("words", "request_line", "answer", "shown"), SHOWN, ids=[s[0] for s in SHOWN])
    def test_shows_the_answer(
        self, known: Stub, online: Run, words: str, request_line: str, answer: Any, shown: list[str]
    ) -> None:
        known.on(request_line, answer)
        ran = online(*words.split())
        assert ran.code == 0, ran.err
        assert [text for text in shown if text not in ran.out] == []
        assert request_line in [f"{each.method} {each.path}" for each in known.asked]

    @pytest.mark.parametrize(("words", "request_line", "answer", "shown"), SHOWN, ids=[s[0] for s in SHOWN])
    def test_json_is_the_whole_answer(
        self, known: Stub, online: Run, words: str, request_line: str, answer: Any, shown: list[str]
    ) -> None:
        known.on(request_line, answer)
        ran = online(*words.split(), "--json")
        assert ran.code == 0, ran.err
        whole = [answer, [answer], *(answer.values() if len(answer) == 1 else (answer.get("entries"),))]
        assert ran.json in whole
        form = online(*words.split(), "--output", "yaml")
        assert yaml.safe_load(form.out) == ran.json


class TestClusters:
    def test_a_cluster_is_found_by_its_name(self, known: Stub, online: Run) -> None:
        assert CLUSTER_ID in online("clusters", "get", "reef").out

    def test_an_unknown_name(self, known: Stub, online: Run) -> None:
        ran = online("clusters", "get", "nobody")
        assert ran.code == 1
        assert "there is no cluster 'nobody'; `ebbtide clusters list` shows yours" in ran.err

    def test_a_name_that_several_have(self, known: Stub, online: Run) -> None:
        known.on(
            "GET /v1/compute/clusters", {"clusters": [samples.cluster(), samples.cluster(cluster_id="x2")]}
        )
        ran = online("clusters", "delete", "reef", "--yes")
        assert ran.code == 2
        assert f"2 clusters are named 'reef'; give an id: {CLUSTER_ID}, x2" in ran.err
        assert all(each.method == "GET" for each in known.asked)

    def test_create_fills_in_what_there_is_one_of(self, known: Stub, online: Run) -> None:
        known.on("POST /v1/compute/clusters", samples.cluster())
        ran = online("clusters", "create", "reef", "--region", "r", "--preemptible-gpus", "16")
        assert ran.code == 0, ran.err
        assert known.last.body == {
            "cluster_name": "reef",
            "billing_type": "ON_DEMAND",
            "region": "r",
            "gpu_type": "H100_SXM",
            "num_gpus": 8,
            "num_preemptible_gpus": 16,
            "nvidia_version_id": "r-570-128",
            "project_id": PROJECT_ID,
        }
        assert f"watch with `ebbtide clusters get {CLUSTER_ID}`" in ran.err

    def test_create_finds_the_only_region_of_a_model(self, known: Stub, online: Run) -> None:
        known.on("POST /v1/compute/clusters", samples.cluster())
        assert online("clusters", "create", "x", "--gpu-type", "H200_SXM").code == 0
        assert known.last.body["region"] == "s"

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            ("", 2, "there are several regions: r, s; choose one with --region"),
            ("--region s", 2, "there are several GPU models: H100_SXM, H200_SXM; choose one with --gpu-type"),
            ("--region q", 1, "there is no region 'q'; there is: r, s"),
            ("--gpu-type Q", 1, "no region offers Q"),
        ],
    )
    def test_create_asks_for_what_is_unclear(
        self, known: Stub, online: Run, words: str, code: int, message: str
    ) -> None:
        ran = online("clusters", "create", "x", *words.split())
        assert (ran.code, ran.out) == (code, "")
        assert message in ran.err

    def test_wait_shows_progress_and_ends_when_settled(self, known: Stub, online: Run) -> None:
        coming = samples.cluster(status="WaitingForDataPlaneNodes", allocated_preemptible_gpus=0)
        settled = samples.cluster(allocated_preemptible_gpus=16)
        known.on("POST /v1/compute/clusters", coming)
        known.on(f"GET /v1/compute/clusters/{CLUSTER_ID}", coming, samples.cluster(), settled)
        ran = online("clusters", "create", "reef", "--region", "r", "--wait")
        assert ran.code == 0
        assert "WaitingForDataPlaneNodes, standard 8/8 GPUs, preemptible 0/16 GPUs" in ran.err
        assert "Ready, standard 8/8 GPUs, preemptible 8/16 GPUs" in ran.err
        assert "16/16 GPUs" in ran.out

    def test_wait_runs_out(self, known: Stub, online: Run) -> None:
        known.on(f"PUT /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
        ran = online("clusters", "update", "reef", "--gpus", "8", "--wait", "--timeout", "1")
        assert ran.code == 5
        assert "not yet after 1 s: Ready, standard 8/8 GPUs, preemptible 8/16 GPUs" in ran.err
        assert known.asked[2].body == {"num_gpus": 8}

    def test_a_target_of_zero_is_sent(self, known: Stub, online: Run) -> None:
        known.on(f"PUT /v1/compute/clusters/{CLUSTER_ID}", samples.cluster())
        online("clusters", "update", "reef", "--preemptible-gpus", "0")
        assert known.last.body == {"num_preemptible_gpus": 0}

    def test_an_update_of_nothing(self, online: Run) -> None:
        ran = online("clusters", "update", "reef")
        assert (ran.code, "give --gpus or --preemptible-gpus" in ran.err) == (2, True)

    def test_delete_asks_first(self, known: Stub, online: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
        assert online("clusters", "delete", "reef").code == 1
        assert all(each.method == "GET" for each in known.asked)

    def test_delete_waits_until_it_is_gone(self, known: Stub, online: Run) -> None:
        known.on(f"DELETE /v1/compute/clusters/{CLUSTER_ID}", {"cluster_id": CLUSTER_ID})
        ran = online("clusters", "delete", CLUSTER_ID, "--yes")
        assert "reef is being deleted" in ran.out
        gone = {"error": {"message": "cluster not found", "type": "not_found_error"}}
        known.answers[f"GET /v1/compute/clusters/{CLUSTER_ID}"] = [(200, samples.cluster())] * 2 + [
            (404, gone)
        ]
        ran = online("clusters", "delete", CLUSTER_ID, "--yes", "--wait")
        assert "reef is deleted" in ran.out
        assert "deleting: 2 nodes left" in ran.err

    def test_events_page_until_there_are_no_more(self, known: Stub, online: Run) -> None:
        def event(number: int) -> dict[str, Any]:
            return {
                "number": number,
                "reason": "TogetherPreempted",
                "node_id": "n",
                "message": "m",
                "timestamp": "2026-01-02T03:04:05Z",
            }

        path = f"GET /v1/clusters/{CLUSTER_ID}/events?after="
        known.on(f"{path}0&limit=500", {"events": [event(1), event(2)], "next_after": 2})
        known.on(f"{path}2&limit=500", {"events": [event(3)], "next_after": 3})
        known.on(f"{path}3&limit=500", {"events": [], "next_after": 3})
        ran = online("clusters", "events", "reef", "--json")
        assert [json.loads(line)["number"] for line in ran.lines] == [1, 2, 3]
        assert "TogetherPreempted" in online("clusters", "events", "reef").out


class TestClaims:
    def test_wait_until_every_host_is_given(self, stub: Stub, online: Run) -> None:
        stub.on("POST /v1/fleet/claims", samples.claim())
        served = samples.claim(state="served", given=["h1", "h2"], draining=[], waiting=0)
        stub.on("GET /v1/fleet/claims/order-1", samples.claim(), served)
        ran = online("fleet", "claim", "--pool", "h100", "--hosts", "2", "--ref", "order-1", "--wait")
        assert ran.code == 0
        assert "1 of 2 hosts given, 1 draining, the last until 2026-01-02 03:05:00 UTC" in ran.err
        assert "h1, h2" in ran.out
        assert stub.asked[0].body == {"pool": "h100", "hosts": 2, "ref": "order-1", "for": "order-1"}

    def test_a_refusal_says_what_there_is(self, stub: Stub, online: Run) -> None:
        stub.refuse("POST /v1/fleet/claims", 409, "2 hosts asked, 1 is free, 0 are reclaimable")
        ran = online("fleet", "claim", "--pool", "h100", "--hosts", "2", "--ref", "r")
        assert (ran.code, ran.out) == (1, "")
        assert "error: 2 hosts asked, 1 is free, 0 are reclaimable" in ran.err


class TestFleetFile:
    def test_example_is_right_and_check_says_what_it_holds(self, run: Run, offline: Path) -> None:
        (offline / "fleet.yaml").write_text(run("fleet", "example").out)
        ran = run("fleet", "check", "fleet.yaml")
        assert ran.code == 0
        assert ran.lines[0].split() == [
            "POOL",
            "REGION",
            "GPU",
            "TYPE",
            "HOSTS",
            "GPUS",
            "BLOCKS",
            "$/GPU-HOUR",
        ]
        assert ran.lines[1].split() == ["h100", "local-1", "H100_SXM", "6", "48", "2", "$2.50"]
        assert run("fleet", "check", "fleet.yaml", "--json").json["regions"] == [
            "local-1",
            "local-2",
            "story-1",
        ]

    def test_mistakes_are_told_with_their_lines(self, run: Run, offline: Path) -> None:
        (offline / "f.yaml").write_text("regions: {r: {}}\npools:\n  p: {region: q, gpu_type: X, hosts: 3}\n")
        ran = run("fleet", "check", "f.yaml")
        assert ran.code == 1
        assert ran.err.count("f.yaml line 3: ") == 2

    def test_apply_sends_the_text(self, stub: Stub, online: Run, offline: Path) -> None:
        (offline / "f.yaml").write_text("regions: {}\n")
        stub.on("POST /v1/fleet/file", {"done": ["pool p added"], "kept": ["host h leaves when it is free"]})
        ran = online("fleet", "apply", "f.yaml")
        assert stub.last.body == "regions: {}\n"
        assert ran.lines == ["pool p added", "kept: host h leaves when it is free"]

    @pytest.mark.parametrize(
        "words", ["fleet check nowhere.yaml", "fleet apply nowhere.yaml", "fleet check ."]
    )
    def test_a_file_that_is_not_there(self, online: Run, words: str) -> None:
        ran = online(*words.split())
        assert ran.code == 2
        assert "cannot be read: " in ran.err


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "step"),
        [
            (400, 1, ""),
            (401, 4, "source ebbtide-data/connection.env"),
            (403, 1, "the operator's key"),
            (404, 1, ""),
            (409, 1, ""),
            (500, 3, "the server's log"),
        ],
    )
    def test_exit_codes_and_next_steps(
        self, stub: Stub, online: Run, status: int, code: int, step: str
    ) -> None:
        stub.refuse("GET /v1/fleet/pools", status, "this and that")
        ran = online("fleet", "pools", "--json")
        assert (ran.code, ran.out) == (code, "")
        assert "error: this and that" in ran.err
        assert step in ran.err
        assert ("try:" in ran.err) == bool(step)

    def test_nothing_is_known(self, run: Run) -> None:
        ran = run("clusters", "list")
        assert ran.code == 2
        assert "start one with `ebbtide up`" in ran.err

    def test_nobody_answers(self, run: Run) -> None:
        ran = run("clusters", "list", "--url", "http://127.0.0.1:1", "--key", "k")
        assert ran.code == 3
        assert "ebbtide up" in ran.err

    @pytest.mark.parametrize(
        "words",
        [
            "nonsense",
            "clusters nonsense",
            "clusters list --nonsense",
            "clusters create",
            "clusters create a --gpus many",
            "fleet claim --pool p",
            "fleet claim --pool p --ref r --hosts 0",
            "usage --by week",
            "keys create --role king",
            "keys create --expires-in-days 0",
            "projects set lab",
            "projects set lab --standard-gpus-limit -1",
            "projects set lab --standard-gpus-limit few",
            "clusters list --output xml",
            "watch --output yaml",
        ],
    )
    def test_wrong_usage(self, online: Run, words: str) -> None:
        ran = online(*words.split())
        assert (ran.code, ran.out) == (2, "")
        assert ran.err

    def test_flags_stand_above_the_environment(self, stub: Stub, online: Run) -> None:
        stub.on("GET /v1/fleet/pools", {"pools": []})
        assert online("fleet", "pools", "--key", "ebb_other").code == 0
        assert stub.last.key == "ebb_other"
