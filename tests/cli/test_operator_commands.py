"""The operator's commands against canned answers: hosts, settings, nodes, regions, organisations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.stub import Stub

Run = Callable[..., Ran]

# What is typed, what is asked, the answer, and what must be shown.
SHOWN: list[tuple[str, str, Any, list[str]]] = [
    ("fleet hosts", "GET /v1/fleet/hosts", {"hosts": [samples.HOST]}, ["h100-b1-001", "reef", "preemptible"]),
    ("fleet hosts --pool p", "GET /v1/fleet/hosts?pool=p", {"hosts": []}, ["no hosts"]),
    (
        "fleet hosts show h",
        "GET /v1/fleet/hosts/h",
        samples.host_report(),
        [
            "h100, block b1",
            "the fleet file",
            "new fans",
            "1 node disturbed",
            "hosts return h100-b1-001",
            "lab",
        ],
    ),
    (
        "fleet hosts show h",
        "GET /v1/fleet/hosts/h",
        {
            "host": {**samples.HOST, "source": "sync"},
            "maintenance": None,
            "history": [],
        },
        ["nobody yet", "the synchronised inventory"],
    ),
    ("fleet hosts add h1 --pool p", "POST /v1/fleet/hosts", samples.HOST, ["h100-b1-001", "available"]),
    (
        "fleet hosts drain h --reason fans",
        "POST /v1/fleet/hosts/h/drain",
        samples.host_report(state="draining"),
        ["maintenance of h100-b1-001: new fans", "not empty yet", "to be over by 2026-01-02 05:00:00 UTC"],
    ),
    (
        "fleet hosts drain h --reason fans --dry-run",
        "POST /v1/fleet/hosts/h/drain",
        samples.host_report(dry_run=True, state="draining"),
        ["a dry run: nothing happened", "1 node would be disturbed", "gpu-preemptible-dp-aaaaa-ccccc"],
    ),
    (
        "fleet hosts return h",
        "POST /v1/fleet/hosts/h/return",
        samples.host_report(state="ended", ended_how="returned"),
        ["h100-b1-001", "available"],
    ),
    (
        "fleet settings --all",
        "GET /v1/fleet/settings",
        {"settings": samples.SETTINGS},
        ["cooldown_s", "300", "stored", "120", "0-86400", "key-1", "provider", "kwok", "environment"],
    ),
    (
        "fleet node gpu-x",
        "GET /v1/fleet/nodes/gpu-x",
        samples.NODE_REPORT,
        [
            "h100-b1-001",
            "Nothing is left to do.",
            "TogetherPreempted",
            "i-7",
            "create ended with 75",
            "no such image",
        ],
    ),
    (
        "fleet regions",
        "GET /v1/fleet/regions",
        {"regions": [{"name": "eu-1", "driver_versions": [{"id": "eu-1-570"}], "pools": [samples.pool()]}]},
        ["eu-1", "h100", "eu-1-570", "$2.50"],
    ),
    ("fleet hosts remove h", "DELETE /v1/fleet/hosts/h", samples.HOST, ["h is removed"]),
    ("fleet hosts uncordon h", "POST /v1/fleet/hosts/h/uncordon", samples.HOST, ["h100-b1-001", "available"]),
    (
        "organizations list",
        "GET /v1/access/organizations",
        {"organizations": [samples.ORGANIZATION]},
        ["Acme", "2", "org-1"],
    ),
    ("organizations create Acme", "POST /v1/access/organizations", samples.ORGANIZATION, ["Acme", "org-1"]),
    (
        "organizations rename Acme Ltd",
        "PATCH /v1/access/organizations/Acme",
        {**samples.ORGANIZATION, "name": "Ltd"},
        ["Ltd"],
    ),
    (
        "organizations disable Acme",
        "PATCH /v1/access/organizations/Acme",
        {**samples.ORGANIZATION, "disabled_at": "2026-01-02T04:00:00Z"},
        ["DISABLED", "2026-01-02 04:00:00 UTC"],
    ),
    ("organizations enable Acme", "PATCH /v1/access/organizations/Acme", samples.ORGANIZATION, ["Acme"]),
]


@pytest.mark.parametrize(("words", "request_line", "answer", "shown"), SHOWN, ids=[s[0] for s in SHOWN])
class TestCommands:
    def test_shows_the_answer(
        self, stub: Stub, online: Run, words: str, request_line: str, answer: Any, shown: list[str]
    ) -> None:
        stub.on(request_line, answer)
        ran = online(*words.split())
        assert ran.code == 0, ran.err
        assert [text for text in shown if text not in ran.out] == []
        assert request_line in [f"{each.method} {each.path}" for each in stub.asked]

    def test_json_is_json(
        self, stub: Stub, online: Run, words: str, request_line: str, answer: Any, shown: list[str]
    ) -> None:
        stub.on(request_line, answer)
        ran = online(*words.split(), "--json")
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)
        whole = [answer, *answer.values()] if isinstance(answer, dict) else [answer]
        assert found in whole or found == [answer]


class TestDrainingAHost:
    def test_it_can_be_waited_for(self, stub: Stub, online: Run) -> None:
        stub.on("POST /v1/fleet/hosts/h/drain", samples.host_report(state="draining"))
        draining = samples.host_report(state="draining")
        stub.on("GET /v1/fleet/hosts/h", draining, draining, samples.host_report())
        ran = online("fleet", "hosts", "drain", "h", "--reason", "new fans", "--wait")
        assert ran.code == 0, ran.err
        assert "gpu-preemptible-dp-aaaaa-ccccc is REMOVED" in ran.err
        assert "empty and held since 2026-01-02 03:06:00 UTC" in ran.out

    def test_its_end_may_be_a_span(self, stub: Stub, online: Run) -> None:
        stub.on("POST /v1/fleet/hosts/h/drain", samples.host_report())
        for given, sent in (
            ("2h", r"20..-..-..T..:..:..Z"),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ):
            assert online("fleet", "hosts", "drain", "h", "--reason", "x", "--until", given).code == 0
            assert re.fullmatch(sent, stub.last.body["until"])
        ran = online("fleet", "hosts", "drain", "h", "--reason", "x", "--until", "soon")
        assert ran.code == 2
        assert "90m, 2h, 1d" in ran.err

    def test_without_a_reason_nothing_is_asked(self, stub: Stub, online: Run) -> None:
        assert online("fleet", "hosts", "drain", "h").code == 2
        assert stub.asked == []


class TestSettings:
    def test_only_those_that_can_change_are_listed(self, stub: Stub, online: Run) -> None:
        stub.on("GET /v1/fleet/settings", {"settings": samples.SETTINGS})
        ran = online("fleet", "settings")
        assert "cooldown_s" in ran.out
        assert "provider" not in ran.out
        assert "1 more change with a restart only; --all lists them" in ran.err

    @pytest.mark.parametrize(
        ("given", "sent"),
        [("300", 300), ("-1", -1), ("true", True), ("False", False), ("REBOOT_VM", "REBOOT_VM")],
    )
    def test_a_value_is_sent_as_what_it_reads_as(
        self, stub: Stub, online: Run, given: str, sent: object
    ) -> None:
        stub.on("PATCH /v1/fleet/settings", {"settings": samples.SETTINGS})
        ran = online("fleet", "settings", "set", "cooldown_s", "--", given)
        assert ran.code == 0, ran.err
        assert stub.last.body == {"set": {"cooldown_s": sent}, "reset": []}
        assert "cooldown_s" in ran.out
        assert "provider" not in ran.out

    def test_it_is_reset(self, stub: Stub, online: Run) -> None:
        stub.on("PATCH /v1/fleet/settings", {"settings": samples.SETTINGS})
        assert online("fleet", "settings", "reset", "cooldown_s").code == 0
        assert stub.last.body == {"set": {}, "reset": ["cooldown_s"]}


@pytest.fixture
def known(stub: Stub) -> Stub:
    """The stub with one cluster."""
    stub.on("GET /v1/compute/clusters", {"clusters": [samples.cluster()]})
    stub.on("GET /v3/whoami", samples.WHOAMI)
    stub.on("GET /v1/compute/regions", samples.REGIONS)
    return stub


class TestNamesakes:
    def test_a_name_that_is_taken_is_said_before_the_order(self, known: Stub, online: Run) -> None:
        known.on("POST /v1/compute/clusters", samples.cluster())
        ran = online("clusters", "create", "reef", "--region", "r")
        assert ran.code == 0, ran.err
        assert f"there is a cluster named 'reef' already ({samples.CLUSTER_ID})" in ran.err
        assert "named" not in online("clusters", "create", "shoal", "--region", "r").err

    def test_who_cannot_look_orders_all_the_same(self, known: Stub, online: Run) -> None:
        known.on("POST /v1/compute/clusters", samples.cluster())
        known.refuse("GET /v1/compute/clusters", 503, "the database is away")
        assert online("clusters", "create", "reef", "--region", "r").code == 0


class TestMoney:
    def test_amounts_below_each_other_look_alike(self, stub: Stub, online: Run) -> None:
        lines = [
            samples.usage_line(cluster_name="much", microdollars=12_340_000, saved_microdollars=0),
            samples.usage_line(cluster_name="little", microdollars=1_234, saved_microdollars=1_234),
        ]
        stub.on("GET /v1/usage?by=cluster", samples.USAGE | {"lines": lines})
        shown = online("usage").out
        assert "$12.340000" in shown
        assert "$0.001234" in shown
        assert "$12.34 " not in shown
