"""How the operator's programs are spoken to by the provider `exec`, and what is believed of what they say."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.backends.exec import programs
from ebbtide.errors import StartupError
from ebbtide.providers.base import InstanceState, OutOfCapacity, Permanent, ProviderError, Transient
from ebbtide.providers.exec import NEEDED, ExecProvider
from ebbtide.providers.programs import Program
from ebbtide.settings import Settings
from tests.contract.exec_rig import ExecProviderRig

UP = {"state": "up"}
VERBS = (
    "create",
    "status",
    "stop",
    "delete",
    "list",
)  # all that programs must exist for in most of these tests
Script = Callable[[str], list[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A program of those lines; `asked` is what it was told, HOME the test's folder."""

    def write(lines: str) -> list[str]:
        path = tmp_path / f"program-{len(list(tmp_path.iterdir()))}.py"
        path.write_text(
            f"import json, os, sys, time, pathlib\nHOME = pathlib.Path({str(tmp_path)!r})\n"
            f"asked = json.load(sys.stdin)\n{lines}\n"
        )
        return [sys.executable, "-IS", str(path)]

    return write


def answers(value: object) -> str:
    return f"print({json.dumps(value)!r})"


def a_rig(script: Script, lines: str = answers(UP), **verbs: str) -> ExecProviderRig:
    """Every verb is the program of these lines, except those given by name."""
    usual = script(lines)
    return ExecProviderRig({verb: script(verbs[verb]) if verb in verbs else usual for verb in VERBS})


async def test_what_programs_are_told(script: Script, tmp_path: Path) -> None:
    lines = "(HOME / asked['verb']).write_text(json.dumps(asked))\n" + answers(
        {"state": "up", "stopped": True, "gone": True, "wiped_by": "dd", "handle": "h1", "instances": []}
    )
    rig = a_rig(script, lines)
    order = replace(rig.order("gpu-1"), wipe="between_projects", wipe_first=True)
    await rig.provider.create(order)
    await rig.provider.status(order.node_uid)
    await rig.provider.stop(order.node_uid)
    await rig.provider.delete(order.node_uid)
    await rig.provider.list("h100")
    told = {verb: json.loads((tmp_path / verb).read_text()) for verb in VERBS}
    assert told["create"] == {
        "verb": "create",
        "node_uid": order.node_uid,
        "node_name": order.node_name,
        "compute_class": "standard",
        "cluster_id": order.cluster_id,
        "project_id": "project",
        "pool": "h100",
        "host_id": order.host_id,
        "host_name": "gpu-1",
        "gpus": 8,
        "labels": {"ebbtide/node-uid": "u"},
        "taints": ["ebbtide/initializing=true:NoSchedule"],
        "wipe": "between_projects",
        "wipe_first": True,
        "instance_id": "",
        "address": "",
        "handle": None,
        "limit_s": 20,
        "join": {"server": "https://192.0.2.1:6443", "ca": "PEM", "token": "abcdef.0123456789abcdef"},
    }
    assert (told["status"]["join"], told["status"]["handle"]) == (told["create"]["join"], "h1")
    assert told["status"]["instance_id"] == "gpu-1"  # for want of a better name
    for verb in ("stop", "delete"):
        assert "join" not in told[verb]  # credentials only to those that need them
        assert told[verb]["node_uid"] == order.node_uid
    assert told["list"] == {"verb": "list", "pool": "h100", "limit_s": 20}


async def test_a_handle_survives_our_restart(script: Script) -> None:
    """Slow work goes on where it was left, whichever process asks next (G4)."""
    lines = "print(json.dumps({'state': 'up' if asked['handle'] else 'starting', 'handle': 'job-7'}))"
    rig = a_rig(script, lines)
    order = rig.order("h1")
    assert (await rig.provider.create(order)).state is InstanceState.STARTING
    another = ExecProvider(rig.programs, rig.memory, at_once=1)
    found = await another.status(order.node_uid)
    assert found is not None
    assert found.state is InstanceState.UP


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "the status program did not answer with a JSON object"),
        ("print('{')", "did not answer with a JSON object"),
        ("print('[]')", "did not answer with a JSON object"),
        (
            "print('{}')",
            "answered without `state`; it must be one of starting, up, stopped, failed, not_found",
        ),
        (answers({"state": "booting"}), "answered `state`: 'booting'; it must be one of starting"),
        (answers({"state": ["up"]}), "answered `state`: ['up']; it must be one of"),
        (answers({"state": None}), "answered `state`: None; it must be one of"),
        (answers({**UP, "handle": 7}), "answered `handle`: 7; it must be a text of one line"),
        (answers({**UP, "handle": "a\nb"}), "answered `handle`: 'a\\nb'; it must be"),
        (answers({**UP, "handle": "x" * 5000}), "it must be a text of one line, of 4000 characters at most"),
        (answers({**UP, "address": {}}), "answered `address`: {}; it must be"),
        (answers({**UP, "instance_id": "\0"}), "answered `instance_id`"),
        (answers({**UP, "why": 5}), "answered `why`: 5; it must be a text"),
        ("print('x' * 100_000)", "answered more than is read"),
        ("print('[' * 50_000)", "did not answer with a JSON object"),
        (
            "sys.stderr.write('first\\nno route to the BMC\\n'); sys.exit(75)",
            "ended with 75: no route to the BMC",
        ),
        ("sys.exit(1)", "ended with 1"),
        ("sys.exit(69)", "ended with 69"),
        ("os.kill(os.getpid(), 15)", "ended with -15"),
        ("raise ValueError('oops')", "ended with 1: ValueError: oops"),
    ],
)
async def test_what_is_no_answer_is_said_and_tried_again(script: Script, lines: str, said: str) -> None:
    rig = a_rig(script, status=lines)
    order = rig.order("h1")
    await rig.provider.create(order)
    with pytest.raises(Transient) as refused:
        await rig.provider.status(order.node_uid)
    assert said in refused.value.message
    assert refused.value.message.startswith("the status program")
    assert not rig.memory.held  # the next try may begin


@pytest.mark.parametrize(
    ("verb", "answer", "said"),
    [
        ("stop", {}, "answered without `stopped`; it must be true or false"),
        ("stop", {"stopped": "yes"}, "answered `stopped`: 'yes'; it must be true or false"),
        ("stop", {"stopped": 1}, "answered `stopped`: 1; it must be true or false"),
        ("delete", {"gone": None}, "answered `gone`: None; it must be true or false"),
        ("delete", {"gone": True, "wiped_by": True}, "answered `wiped_by`: True; it must be a text"),
        ("list", {}, "answered no list of objects as `instances`"),
        ("list", {"instances": ["a"]}, "answered no list of objects as `instances`"),
        ("list", {"instances": [{"state": "up"}]}, "answered without `node_uid`"),
        ("list", {"instances": [{"node_uid": "a", "state": "not_found"}]}, "answered `state`: 'not_found'"),
        ("list", {"instances": [{"node_uid": "a", "state": "up"}] * 2}, "listed node a twice"),
    ],
)
async def test_wrong_answers_of_the_other_verbs(
    script: Script, verb: str, answer: dict[str, Any], said: str
) -> None:
    rig = a_rig(script, **{verb: answers(answer)})
    order = rig.order("h1")
    await rig.provider.create(order)
    with pytest.raises(Transient) as refused:
        await getattr(rig.provider, verb)(order.pool if verb == "list" else order.node_uid)
    assert said in refused.value.message


async def test_exit_codes_of_create(script: Script) -> None:
    for code, kind in ((69, OutOfCapacity), (75, Transient), (78, Permanent), (3, Transient)):
        rig = a_rig(script, create=f"sys.stderr.write('because\\n'); sys.exit({code})")
        with pytest.raises(ProviderError) as refused:
            await rig.provider.create(rig.order("h1"))
        assert type(refused.value) is kind
        assert "because" in refused.value.message
    rig = a_rig(script, create=answers({"state": "not_found"}))
    with pytest.raises(Transient, match="it is to start the machine"):
        await rig.provider.create(rig.order("h1"))


async def test_gone_without_wiped_is_not_done(script: Script) -> None:
    """Promise 6: a program that lies keeps its host unlendable."""
    for answer in ({"gone": True}, {"gone": True, "wiped_by": None}, {"gone": True, "wiped_by": ""}):
        rig = a_rig(script, delete=answers(answer))
        order = rig.order("h1")
        await rig.provider.create(order)
        deletion = await rig.provider.delete(order.node_uid)
        assert (deletion.gone, deletion.wiped) == (True, False)
        assert "named nothing as `wiped_by`" in deletion.why
        assert await rig.provider.status(order.node_uid) is not None  # it is still ours to end


@pytest.mark.parametrize("policy", ["between_projects", "never"])
async def test_other_policies_let_a_host_go_unwiped(script: Script, policy: str) -> None:
    rig = a_rig(script, delete=answers({"gone": True, "wiped_by": None}))
    order = replace(rig.order("h1"), wipe=policy)
    await rig.provider.create(order)
    for _ in range(2):
        deletion = await rig.provider.delete(order.node_uid)
        assert (deletion.gone, deletion.wiped, deletion.wiped_by) == (True, True, "")


async def test_up_counts_only_with_the_wipe_that_was_asked_for(script: Script) -> None:
    rig = a_rig(script)
    with pytest.raises(Transient, match="was told `wipe_first`, and named nothing as `wiped_by`"):
        await rig.provider.create(replace(rig.order("h1"), wipe_first=True))
    rig = a_rig(script, create=answers({"state": "starting", "wiped_by": "nvme format"}))
    order = replace(rig.order("h1"), wipe_first=True)
    assert (await rig.provider.create(order)).wiped_by == "nvme format"
    found = await rig.provider.status(order.node_uid)  # said once is enough
    assert found is not None
    assert (found.state, found.wiped_by) == (InstanceState.UP, "nvme format")


async def test_what_is_gone_stays_gone(script: Script) -> None:
    """No program runs for a node that is gone, and a create that comes too late starts nothing."""
    rig = a_rig(script, delete=answers({"gone": True, "wiped_by": "dd"}))
    order = rig.order("h1")
    await rig.provider.create(order)
    await rig.provider.delete(order.node_uid)
    ran = len(rig.memory.notes)
    assert (await rig.provider.delete(order.node_uid)).wiped_by == "dd"
    assert await rig.provider.stop(order.node_uid)
    assert await rig.provider.status(order.node_uid) is None
    for late in (order, rig.order("h2")):
        await rig.provider.delete(late.node_uid)
        with pytest.raises(Permanent, match="given back already"):
            await rig.provider.create(late)
    assert len(rig.memory.notes) == ran


async def test_a_node_that_never_had_a_machine_leaves_its_host_untouched(script: Script) -> None:
    rig = a_rig(script)
    never = rig.new_id()
    for _ in range(2):
        deletion = await rig.provider.delete(never)
        assert (deletion.gone, deletion.wiped, deletion.untouched) == (True, True, True)


async def test_half_a_character_in_what_a_program_says_can_be_stored(script: Script) -> None:
    """JSON may name one half of a surrogate pair, which no database takes."""
    rig = a_rig(script, status=answers({**UP, "why": "the \ud83d fans"}))
    order = rig.order("h1")
    await rig.provider.create(order)
    found = await rig.provider.status(order.node_uid)
    assert found is not None
    assert found.why == "the ? fans"


async def test_machines_that_nobody_remembers_are_ended_all_the_same(script: Script) -> None:
    listed = {"instances": [{"node_uid": "lost", "host_name": "h9", "state": "up"}]}
    rig = a_rig(script, list=answers(listed), stop=answers({"stopped": False, "why": "soon"}))
    assert await rig.provider.stop("lost")  # as far as anybody knows
    await rig.provider.list("h100")
    assert not await rig.provider.stop("lost")


async def test_one_program_at_a_time_runs_for_a_node(script: Script) -> None:
    rig = a_rig(script, "time.sleep(0.5)\n" + answers(UP))
    order, other = rig.order("h1"), rig.order("h2")
    results = await asyncio.gather(
        *(rig.provider.create(one) for one in (order, order, other)), return_exceptions=True
    )
    assert [type(one) for one in results].count(Transient) == 1
    assert str(results[1]) == "another program runs for this node"


async def test_so_many_at_once_and_no_more(script: Script) -> None:
    slow = "time.sleep(2)\n" + answers(UP)
    rig = a_rig(script, create=slow)
    provider = ExecProvider(rig.programs, rig.memory, at_once=1, slot_wait_s=0.2)
    first = asyncio.create_task(provider.create(rig.order("h1")))
    await asyncio.sleep(0.5)
    with pytest.raises(Transient, match="1 programs run already"):
        await provider.create(rig.order("h2"))
    with pytest.raises(Transient, match="no list of objects"):  # it ran: looks have places of their own
        await provider.list("h100")
    assert (await first).state is InstanceState.UP
    assert not rig.memory.held


async def test_one_that_takes_too_long_is_killed_and_said_so(script: Script) -> None:
    rig = a_rig(script)
    program = Program(
        "the stop program", script("print('waiting', file=sys.stderr, flush=True)\ntime.sleep(60)"), 1
    )
    provider = ExecProvider({**rig.programs, "stop": program}, rig.memory, at_once=1)
    order = rig.order("h1")
    await provider.create(order)
    with pytest.raises(Transient, match="took longer than 1 s: waiting"):
        await provider.stop(order.node_uid)
    uid, noted = rig.memory.notes[-1]
    assert (uid, noted.verb, noted.code, noted.output) == (order.node_uid, "stop", None, "waiting")


async def test_the_last_of_what_a_program_says_is_kept(script: Script) -> None:
    rig = a_rig(script, "print('x' * 9000 + 'the end', file=sys.stderr)\n" + answers(UP))
    await rig.provider.create(rig.order("h1"))
    _, noted = rig.memory.notes[-1]
    assert (noted.verb, noted.code, len(noted.output)) == ("create", 0, 4095)
    assert noted.output.endswith("xxx" + "the end")


async def test_what_left_the_programs_group_is_not_waited_for(script: Script) -> None:
    """A daemon that a program starts may keep its pipes; the answer is there when the program ends."""
    lines = "if os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\n    sys.exit()\n" + answers(UP)
    rig = a_rig(script, lines)
    async with asyncio.timeout(10):
        made = await rig.provider.create(rig.order("h1"))
    assert made.state is InstanceState.UP


@pytest.mark.skipif(not shutil.which("timeout"), reason="coreutils' `timeout` is not here, which does this")
def test_a_program_does_not_outlive_us_by_long(tmp_path: Path) -> None:
    """The worker is killed; its program ends with its limit, so that nobody else's run meets it."""
    ours = f"""
import asyncio, os, sys
from ebbtide.providers.programs import Program
async def main():
    lines = "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    task = asyncio.create_task(Program("it", [sys.executable, "-c", lines], 1).run({{}}))
    while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
        await asyncio.sleep(0.02)
    os._exit(9)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", ours], timeout=30, check=False).returncode == 9
    pid = int((tmp_path / "pid").read_text())
    ended = subprocess.run(["timeout", "15", "tail", f"--pid={pid}", "-f", "/dev/null"], check=False)
    assert ended.returncode == 0


async def test_no_secret_of_ours_is_in_their_environment(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_SECRET_KEYS", "secret")
    rig = a_rig(script, "(HOME / 'env').write_text(json.dumps(dict(os.environ)))\n" + answers(UP))
    await rig.provider.create(rig.order("h1"))
    seen = json.loads((tmp_path / "env").read_text())
    assert not [name for name in seen if name.startswith("EBBTIDE")]
    assert seen["PATH"] == os.environ["PATH"]


async def test_restarts_without_a_program_for_them(script: Script) -> None:
    rig = a_rig(script)
    order = rig.order("h1")
    await rig.provider.create(order)
    with pytest.raises(Permanent, match="EBBTIDE_EXEC_REBOOT names no program"):
        await rig.provider.reboot(order.node_uid, "r1")
    assert not rig.memory.held


TWO = """
machine = HOME / (asked["node_uid"] + ".machine")
steps = int(machine.read_text()) if machine.exists() else 0
if asked["verb"] == "create":
    machine.write_text(str(steps + 1))
    print(json.dumps({"state": "up" if steps else "starting", "address": "192.0.2.1"}))
elif steps > 1:
    machine.write_text("1")
    print(json.dumps({"gone": False, "why": "wiping"}))
else:
    machine.unlink(missing_ok=True)
    print(json.dumps({"gone": True, "wiped_by": "dd"}))
"""


async def test_two_programs_are_enough(script: Script) -> None:
    """create is asked again until the machine is up, and believed then; delete stops; memory lists."""
    argv = script(TWO)
    rig = ExecProviderRig({"create": argv, "delete": argv})
    order = rig.order("h1")
    assert (await rig.provider.create(order)).state is InstanceState.STARTING
    assert [one.state for one in await rig.provider.list("h100")] == [InstanceState.STARTING]
    for _ in range(3):
        found = await rig.provider.status(order.node_uid)
        assert found is not None
        assert (found.state, found.address, found.host_name) == (InstanceState.UP, "192.0.2.1", "h1")
    assert [noted.verb for _, noted in rig.memory.notes] == ["create", "create"]
    assert [one.node_uid for one in await rig.provider.list("h100")] == [order.node_uid]
    assert not await rig.provider.stop(order.node_uid)
    assert await rig.provider.stop(order.node_uid)
    assert (await rig.provider.delete(order.node_uid)).wiped_by == "dd"
    assert await rig.provider.status(order.node_uid) is None
    assert await rig.provider.list("h100") == []
    assert len(rig.memory.notes) == 4  # nothing was asked any more
    assert not rig.memory.held


async def test_no_control_planes(script: Script) -> None:
    rig = a_rig(script)
    with pytest.raises(Permanent, match="ebbtide clusters import"):
        await rig.provider.create_control_plane("c", "n")
    assert await rig.provider.control_plane("c") is None
    assert await rig.provider.delete_control_plane("c")
    assert await rig.provider.list_control_planes() == []


def _settings(**changes: Any) -> Settings:
    return replace(
        Settings(), provider="exec", **({f"exec_{verb}": "/bin/true" for verb in NEEDED} | changes)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exec_create": "", "exec_delete": ""}, "set EBBTIDE_EXEC_CREATE, EBBTIDE_EXEC_DELETE to the path"),
        ({"exec_create": "run 'x"}, 'EBBTIDE_EXEC_CREATE="run \'x" cannot be read as a command line'),
        ({"exec_limit_s": 50}, "EBBTIDE_EXEC_LIMIT_S=50 must be from 1 to 20 s less than the lease"),
        ({"exec_limit_s": 0}, "EBBTIDE_EXEC_LIMIT_S=0 must be from 1"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(StartupError) as refused:
        programs(_settings(**changes))
    assert said in refused.value.message


async def test_a_command_line_and_a_program_that_is_not_there() -> None:
    made = programs(_settings(exec_create="/nowhere/machines create --site 'b 2'"))
    assert set(made) == set(NEEDED)
    with pytest.raises(
        Transient, match=r"the create program \(/nowhere/machines\) cannot be run: No such file or directory"
    ):
        await made["create"].run({})
