"""`ebbtide fleet sync` and `ebbtide fleet wipes`: what is run, what is sent, how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.cli.stub import Stub

Run = Callable[..., Ran]
SYNC = "POST /v1/fleet/sync"
DONE = {
    "done": ["pool h100: 2 hosts added (a, b)"],
    "kept": ["host c leaves when it is free"],
    "dry_run": False,
}


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    def write(lines: str) -> list[str]:
        path = tmp_path / "inventory.py"
        path.write_text(f"import json, sys\n{lines}\n")
        return ["--", sys.executable, str(path)]

    return write


def test_a_programs_inventory_is_applied(
    online: Run, stub: Stub, program: Callable[[str], list[str]]
) -> None:
    stub.on(f"{SYNC}?pool=h100&dry_run=False&most_removed_percent=20", DONE)
    ended = online("fleet", "sync", "--pool", "h100", *program("print(json.dumps(sys.argv[1:]))"), "a", "--b")
    assert ended.code == 0, ended.err
    assert json.loads(stub.last.body) == ["a", "--b"]
    assert "2 hosts added" in ended.out
    assert "kept: host c leaves when it is free" in ended.out


def test_a_dry_run_and_force(online: Run, stub: Stub, program: Callable[[str], list[str]]) -> None:
    stub.on(f"{SYNC}?dry_run=True&most_removed_percent=100", {**DONE, "dry_run": True})
    ended = online("fleet", "sync", "--dry-run", "--force", *program("print('{}')"))
    assert ended.code == 0, ended.err
    assert "would be: pool h100: 2 hosts added" in ended.out
    as_json = online("fleet", "sync", "--json", "--dry-run", "--force", *program("print('{}')"))
    assert json.loads(as_json.out)["dry_run"] is True


def test_the_server_refuses(online: Run, stub: Stub, program: Callable[[str], list[str]]) -> None:
    request = f"{SYNC}?dry_run=False&most_removed_percent=5"
    stub.refuse(request, 400, "9 of 10 hosts of pool h100 are no longer listed")
    ended = online("fleet", "sync", "--most-removed", "5", *program("print('{}')"))
    assert ended.code == 1
    assert "9 of 10 hosts" in ended.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("sys.exit(7)", "ended with 7; nothing was changed"),
        ("print('oops')", "printed no JSON"),
        ("", "printed no JSON"),
        ("print('5')", "printed neither an object nor a list"),
        ("import time; time.sleep(60)", "took longer than 1 s"),
    ],
)
def test_a_program_that_has_no_inventory_changes_nothing(
    online: Run, stub: Stub, program: Callable[[str], list[str]], lines: str, said: str
) -> None:
    ended = online("fleet", "sync", "--timeout", "1", *program(lines))
    assert ended.code == 2
    assert said in ended.err
    assert stub.asked == []


def test_a_program_that_is_not_there(online: Run, stub: Stub) -> None:
    ended = online("fleet", "sync", "--", "/nowhere/inventory")
    assert (ended.code, "cannot be run: No such file" in ended.err) == (2, True)


def test_wipes(online: Run, stub: Stub) -> None:
    wipe = {
        "host": "h100-b1-003",
        "pool": "h100",
        "node": "gpu-dp-aaaaa-bbbbb",
        "node_uid": "u",
        "project_id": "p",
        "moment": "after",
        "wiped_by": "nvme format, 8 drives",
        "at": "2026-01-01T03:07:00Z",
    }
    carrying = [{"host": "h100-b1-004", "project_id": "several"}]
    stub.on("GET /v1/fleet/wipes?host=h100-b1-003&limit=100", {"wipes": [wipe], "carrying": carrying})
    ended = online("fleet", "wipes", "--host", "h100-b1-003")
    for word in ("after gpu-dp-aaaaa-bbbbb", "nvme format, 8 drives", "h100-b1-004", "several"):
        assert word in ended.out
