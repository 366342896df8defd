"""Machines of provider `kwok` as they are written down, and the kwok that plays them; without any cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ebbtide.clock import ManualClock
from ebbtide.core import marks
from ebbtide.errors import StartupError
from ebbtide.kube.places import MissingPrograms
from ebbtide.providers.base import InstanceOrder, InstanceState
from ebbtide.providers.kwok.kubelet import LABEL_ON, node_object
from ebbtide.providers.kwok.machines import Habits, Machine, Machines
from ebbtide.providers.kwok.plane import Plane
from ebbtide.providers.kwok.planes import Planes
from ebbtide.providers.kwok.player import STAGES, Player

HABITS = Habits(boot_s=10, turn_over_s=4, cpu_cores=64, memory_gib=512)


def an_order(uid: str = "node-1", host: str = "h1", **more: bool) -> InstanceOrder:
    return InstanceOrder(
        node_uid=uid,
        node_name=f"gpu-dp-{uid}",
        compute_class="standard",
        cluster_id="c1",
        project_id="p1",
        pool="h100",
        host_id="host-1",
        host_name=host,
        gpus=8,
        labels={"a": "b"},
        taints=("ebbtide/initializing=:NoSchedule", "k=v:NoExecute"),
        **more,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_state_follows_from_the_file_and_the_time(clock: ManualClock) -> None:
    machine = Machine.ordered(an_order(), HABITS, clock.now())
    assert machine.state(clock.now()) is InstanceState.STARTING
    assert machine.state(clock.advance(10)) is InstanceState.UP
    assert machine.off().state(clock.now()) is InstanceState.STOPPED
    again = machine.off().restarted("one", clock.now())
    assert (again.state(clock.now()), again.boots, again.restarts) == (InstanceState.STARTING, 2, ("one",))


def test_wiping_first_takes_longer(clock: ManualClock) -> None:
    machine = Machine.ordered(an_order(wipe_first=True), HABITS, clock.now())
    assert machine.state(clock.advance(12)) is InstanceState.STARTING
    assert machine.state(clock.advance(2)) is InstanceState.UP


def test_what_was_written_is_read_again(tmp_path: Path, clock: ManualClock) -> None:
    first = Machines(tmp_path)
    machine = first.put(Machine.ordered(an_order(), HABITS, clock.now()).restarted("ref", clock.now()))
    first.put(Machine.ordered(an_order("node-2", "h2"), HABITS, clock.now()))
    (tmp_path / "node-1.json.new").write_text("{torn")  # what a kill in the middle of a write leaves
    again = Machines(tmp_path)
    again.load()
    assert again.get("node-1", clock.now()) == machine
    assert [one.node_uid for one in again.all(clock.now())] == ["node-1", "node-2"]
    assert [one.node_uid for one in again.of_cluster("c1", clock.now())] == ["node-1", "node-2"]


@pytest.mark.parametrize("left", ["", "{torn", "[]", "{}", '{"up_at": 3}'])
def test_a_file_that_a_power_cut_left_empty_keeps_no_other_machine(
    tmp_path: Path, clock: ManualClock, left: str
) -> None:
    Machines(tmp_path).put(Machine.ordered(an_order("node-2", "h2"), HABITS, clock.now()))
    (tmp_path / "node-1.json").write_text(left)
    again = Machines(tmp_path)
    again.load()
    assert [one.node_uid for one in again.all(clock.now())] == ["node-2"]


async def test_a_fault_of_ours_does_not_end_the_keeping_of_a_control_plane(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = Plane("c-1", "tidal", tmp_path / "plane", clock, machines=list)
    tried, up = [], asyncio.Event()

    async def bring_up() -> None:
        tried.append(plane.why)
        if len(tried) == 1:
            raise ZeroDivisionError("first line\nand its log")
        up.set()

    monkeypatch.setattr(plane, "_bring_up", bring_up)
    monkeypatch.setattr(plane, "_watch", asyncio.Event().wait)
    ready: list[str] = []
    keeping = asyncio.create_task(plane.keep(asyncio.Semaphore(1), ready.append))
    try:
        await asyncio.wait_for(up.wait(), 10)
        await asyncio.sleep(0)
        assert (ready, len(tried)) == (["c-1"], 2)
        assert not keeping.done()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_control_planes_file_that_cannot_be_read_keeps_no_other_from_starting(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, str]] = []
    first, second = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    for cluster_id, text in ((first, ""), (second, '{"name": "tidal"}')):
        (tmp_path / cluster_id).mkdir()
        (tmp_path / cluster_id / "cluster.json").write_text(text)
    planes = Planes(tmp_path, clock, most=2, machines_of=lambda _: [], on_ready=str)
    monkeypatch.setattr(planes, "_keep", lambda *named: kept.append(named))
    planes.begin()
    assert kept == [(first, first), (second, "tidal")]


def test_a_wiped_machine_is_gone_and_its_host_free(tmp_path: Path, clock: ManualClock) -> None:
    machines = Machines(tmp_path)
    machine = Machine.ordered(an_order(), HABITS, clock.now())
    machines.put(replace(machine.off(), wiped_at=clock.now() + timedelta(seconds=4)))
    assert machines.on_host("h100", "h1", clock.now())
    assert machines.on_host("other", "h1", clock.now()) is None
    clock.advance(4)
    assert machines.on_host("h100", "h1", clock.now()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_node_has_what_was_ordered(clock: ManualClock) -> None:
    node = node_object(Machine.ordered(an_order(), HABITS, clock.now()), clock.now())
    assert {"a": "b", LABEL_ON: "on", marks.LABEL_NODE_UID: "node-1"}.items() <= node["metadata"][
        "labels"
    ].items()
    assert node["spec"]["taints"] == [
        {"key": "ebbtide/initializing", "effect": "NoSchedule"},
        {"key": "k", "value": "v", "effect": "NoExecute"},
    ]
    allocatable = node["status"]["allocatable"]
    assert (allocatable["cpu"], allocatable["memory"], allocatable[marks.GPU]) == ("64", "512Gi", "8")


def test_the_stages_are_whole() -> None:
    stages = list(yaml.safe_load_all(STAGES.read_text()))
    assert {stage["kind"] for stage in stages} == {"Stage"}
    assert len({stage["metadata"]["name"] for stage in stages}) == len(stages) == 6


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """In kwok's place: it runs until it is ended."""
    path = tmp_path / "kwok"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    (tmp_path / "logs").mkdir()
    return path


async def test_kwok_starts_only_when_every_silent_machine_is_silent(
    program: Path, clock: ManualClock
) -> None:
    """Also one that is switched off while another is being silenced."""
    player = Player(program, program.parent)
    off = [Machine.ordered(an_order("node-1"), HABITS, clock.now()).off()]
    later = Machine.ordered(an_order("node-2", "h2"), HABITS, clock.now()).off()
    silenced: list[str] = []

    async def silence(machine: Machine) -> None:
        assert not player.running
        await asyncio.sleep(0)
        silenced.append(machine.node_uid)
        if machine.node_uid == "node-1":
            off.append(later)

    await player.start(Path("config"), lambda: list(off), silence)
    try:
        assert silenced == ["node-1", "node-2"]
        assert player.running
    finally:
        await player.kill()
    assert not player.running


async def test_kwok_does_not_start_while_a_machine_cannot_be_silenced(
    program: Path, clock: ManualClock
) -> None:
    player = Player(program, program.parent)
    off = [Machine.ordered(an_order(), HABITS, clock.now()).off()]

    async def refuse(_machine: Machine) -> None:
        raise StartupError("the API server is away")

    with pytest.raises(StartupError):
        await player.start(Path("config"), lambda: off, refuse)
    assert not player.running


def test_missing_programs_are_told_with_the_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ebbtide import backends
    from ebbtide.settings import Settings

    for name in ("EBBTIDE_KUBE_DIR", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingPrograms, match="ebbtide kube install"):
        backends.check(Settings(provider="kwok"))
    with pytest.raises(StartupError, match="write one of exec, kwok, simulated"):
        backends.check(Settings(provider="abacus"))
