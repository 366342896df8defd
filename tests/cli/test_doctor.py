"""`ebbtide doctor`: its table, its exit codes, and what it finds besides clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import samples
from tests.cli.conftest import Ran
from tests.cli.stub import Stub

Run = Callable[..., Ran]
FLEET = """\
regions: {here: {}}
pools:
  h100: {region: here, gpu_type: H100_SXM, price_per_gpu_hour: 2, hosts: [a, b]}
"""
POOR_FLEET = """\
regions: {here: {}}
pools:
  h100: {region: here, gpu_type: H100_SXM, headroom_hosts: 2, hosts: [a, b]}
  a100: {region: here, gpu_type: A100_SXM, price_per_gpu_hour: 2, hosts: []}
"""
VERBS = ("CREATE", "STATUS", "STOP", "DELETE", "LIST")


def results(ran: Ran) -> dict[str, str]:
    return {row["check"]: row["result"] for row in ran.json}


@pytest.fixture
def program(offline: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One program for all verbs, which lists nothing and notes what it was asked."""
    path = offline / "machines"
    path.write_text("#!/bin/sh\ncat >> asked\necho '{\"instances\": []}'\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("EBBTIDE_PROVIDER", "exec")
    for verb in VERBS:
        monkeypatch.setenv(f"EBBTIDE_EXEC_{verb}", str(path))
    return path


def test_with_nothing_to_look_at_it_says_so(run: Run) -> None:
    ran = run("doctor")
    assert ran.code == 2
    assert "no server is known" in ran.err


def test_a_fleet_file(run: Run, offline: Path) -> None:
    (offline / "f.yaml").write_text(FLEET, encoding="utf-8")
    ran = run("doctor", "--fleet", "f.yaml")
    assert ran.code == 0
    assert ran.out.splitlines()[0].split() == ["RESULT", "ABOUT", "CHECK", "FOUND"]
    assert "1 pools with 2 hosts" in ran.out
    assert "What to do" not in ran.out


def test_what_is_poor_in_it_is_said_with_what_to_do(run: Run, offline: Path) -> None:
    (offline / "f.yaml").write_text(POOR_FLEET, encoding="utf-8")
    ran = run("doctor", "--fleet", "f.yaml")
    assert ran.code == 0
    assert "headroom (warning): lower headroom_hosts" in ran.out
    assert run("doctor", "--fleet", "f.yaml", "--strict").code == 1
    found = results(run("doctor", "--fleet", "f.yaml", "--json"))
    assert found == {"fleet file": "ok", "hosts": "note", "prices": "note", "headroom": "warning"}


def test_one_that_cannot_be_used(run: Run, offline: Path) -> None:
    (offline / "f.yaml").write_text("pools: 1", encoding="utf-8")
    assert run("doctor", "--fleet", "f.yaml").code == 1
    assert run("doctor", "--fleet", "none.yaml").code == 2


def test_programs(run: Run, offline: Path, program: Path) -> None:
    (offline / "f.yaml").write_text(FLEET, encoding="utf-8")
    ran = run("doctor", "--fleet", "f.yaml", "--json")
    assert ran.code == 0, ran.out
    found = results(ran)
    assert [found[verb.lower()] for verb in VERBS] == ["ok"] * 5
    assert (found["reboot"], found["list h100"]) == ("note", "ok")
    asked = (offline / "asked").read_text(encoding="utf-8")
    assert asked == '{"verb": "list", "pool": "h100", "limit_s": 30}', "nothing but list is run"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "exited with 3"),
        ("echo broken >&2; exit 75", "broken"),
        ("echo hello", "JSON object"),
        ("echo '{}'", "instances"),
    ],
)
def test_a_list_that_fails(run: Run, program: Path, script: str, told: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    ran = run("doctor", "--json")
    assert ran.code == 1
    (row,) = [row for row in ran.json if row["check"].startswith("list ")]
    assert row["result"] == "problem"
    assert told in row["found"]
    assert row["do"]


def test_programs_that_are_not_there(
    run: Run, offline: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (offline / "data").write_text("x", encoding="utf-8")
    monkeypatch.setenv("EBBTIDE_EXEC_STOP", str(offline / "data"))
    monkeypatch.setenv("EBBTIDE_EXEC_LIST", str(offline / "nothing"))
    monkeypatch.setenv("EBBTIDE_PROVIDER", "simulated")
    found = results(run("doctor", "--json"))
    assert (found["stop"], found["list"], found["provider"]) == ("problem", "problem", "warning")
    monkeypatch.delenv("EBBTIDE_EXEC_DELETE")
    ran = run("doctor")
    assert ran.code == 1
    assert "EBBTIDE_EXEC_DELETE" in ran.out


def test_two_verbs_are_enough(run: Run, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("STATUS", "STOP", "LIST"):
        monkeypatch.delenv(f"EBBTIDE_EXEC_{verb}")
    ran = run("doctor", "--json")
    assert ran.code == 0
    found = results(ran)
    assert found == {
        "create": "ok", "delete": "ok", "status": "note", "stop": "note", "list": "note", "reboot": "note",
    }  # fmt: skip
    assert not (program.parent / "asked").exists()


def answers(stub: Stub, role: str = "operator", **cluster: object) -> None:
    stub.on("GET /v3/whoami", {**samples.WHOAMI, "role": role})
    stub.on("GET /v1/compute/clusters", {"clusters": [samples.cluster(**cluster)]})
    stub.on("GET /v1/fleet/hosts", {"hosts": [samples.HOST]})
    stub.on("GET /v1/fleet/pools", {"pools": [samples.pool()]})


def test_a_server(online: Run, stub: Stub) -> None:
    answers(stub)
    ran = online("doctor", "--json")
    assert ran.code == 0
    assert results(ran) == {"server": "ok", "reef": "ok", "hosts": "ok", "pools": "ok"}


def test_what_is_wrong_there(online: Run, stub: Stub) -> None:
    answers(stub, imported={"standard_selector": "a=b", "problem": "it does not answer"})
    stub.on(
        "GET /v1/fleet/hosts", {"hosts": [{**samples.HOST, "state": "quarantined", "state_reason": "fan"}]}
    )
    stub.on("GET /v1/fleet/pools", {"pools": [samples.pool(microdollars_per_gpu_hour=None)]})
    ran = online("doctor", "--json")
    assert ran.code == 1
    assert results(ran) == {"server": "ok", "reef": "problem", "hosts": "warning", "prices": "note"}


def test_a_tenants_key_sees_less(online: Run, stub: Stub) -> None:
    answers(stub, role="member", preemptible_fill={"pending_reason": "no host is free"})
    found = results(online("doctor", "--json"))
    assert found == {"server": "ok", "reef": "note", "hosts": "unknown"}


def test_a_cluster_that_does_not_answer(run: Run, offline: Path) -> None:
    config = (
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], current-context: c, "
        "contexts: [{name: c, context: {cluster: c}}]}"
    )
    (offline / "c").write_text(config, encoding="utf-8")
    ran = run("doctor", "--kubeconfig", "c")
    assert ran.code == 1
    assert "API server (problem): check the kubeconfig's server" in ran.out
    (offline / "c").write_text("users: [{name: a, user: {exec: {}}}]", encoding="utf-8")
    assert run("doctor", "--kubeconfig", "c").code == 1
    assert run("doctor", "--standard-selector", "a=b").code == 2
