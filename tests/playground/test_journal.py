"""The world outlives its process: killed at any moment and started again, it is the world that it would have
been.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.errors import EbbtideError, StartupError
from ebbtide.playground import engine
from ebbtide.playground.behaviours import (
    Behaviour,
    Boots,
    CreateReplyLost,
    DeleteForgets,
    Habits,
    IgnoresSigterm,
    Obeys,
    PodBehaviour,
    StopTakes,
    StopUnconfirmed,
    Vanishes,
    Volume,
)
from ebbtide.playground.facts import What
from tests.playground.worlds import CLUSTER, UP_S, Scene, at, picture, uid

Step = Callable[[Scene], object]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "data" / "world.jsonl")


def test_the_same_instances_and_pods_with_the_same_sigterms(scene: Scene) -> None:
    scene.running_node(1)
    scene.running_node(2)
    told = scene.pod(IgnoresSigterm())
    left = scene.pod(Obeys(), node=2)
    scene.world.signal(CLUSTER, uid(1), {told: 297})
    before = picture(scene.world)
    scene.killed_and_started_again()
    assert picture(scene.world) == before
    (seen,), _ = scene.world.pods(CLUSTER, uid(1))
    assert (seen.uid, seen.ends_by) == (told, at(2 * UP_S + 297))
    assert scene.pod_uids(2) == [left]


def test_time_goes_on_while_the_process_is_down(scene: Scene) -> None:
    scene.running_node()
    pod = scene.pod(Obeys(60))
    scene.world.signal(CLUSTER, uid(1), {pod: 297})
    scene.go_to(UP_S + 1_000)
    scene.killed_and_started_again()
    assert scene.pod_uids() == []
    assert scene.story(What.SIGTERM, What.EXITED) == [(UP_S, What.SIGTERM), (UP_S + 60, What.EXITED)]


def test_one_notice_across_a_restart(scene: Scene) -> None:
    scene.running_node()
    for _ in range(3):
        scene.world.notify(CLUSTER, uid(1), "TogetherPreempted", "needed elsewhere", at(340))
        scene.killed_and_started_again()
    assert len(scene.world.facts(what=What.NOTICE)) == 1
    assert scene.world.violations == []


def test_misbehaviour_is_counted_on_after_a_restart(scene: Scene) -> None:
    scene.running_node()
    scene.world.set_behaviour(StopUnconfirmed(times=2), host="h1")
    answers = []
    for _ in range(4):
        answers.append(scene.world.stop_instance(uid(1)))
        scene.killed_and_started_again()
    assert answers == [False, False, True, True]


def test_violations_are_not_forgotten(scene: Scene) -> None:
    scene.world.create_instance(scene.order(1, host="h1"))
    with pytest.raises(EbbtideError):
        scene.world.create_instance(scene.order(2, host="h1"))
    scene.killed_and_started_again()
    assert len(scene.world.violations) == 1


def test_a_torn_last_line_is_dropped(scene: Scene, tmp_path: Path) -> None:
    scene.running_node()
    before = picture(scene.world)
    journal = tmp_path / "data" / "world.jsonl"
    with journal.open("a") as file:
        file.write('{"at":{"$at":"2026-01-01T00:00')
    scene.killed_and_started_again()
    assert picture(scene.world) == before
    scene.pod(Obeys())
    scene.killed_and_started_again()
    assert len(scene.pod_uids()) == 1


@pytest.mark.parametrize("damage", ["not json\n", '{"verb":"stop"}\n', '{"at":3,"verb":"stop","said":{}}\n'])
def test_damage_elsewhere_says_what_to_do(scene: Scene, tmp_path: Path, damage: str) -> None:
    scene.running_node()
    journal = tmp_path / "data" / "world.jsonl"
    with journal.open("a") as file:
        file.write(damage + '{"at":{"$at":"2026-01-01T00:00:50+00:00"},"verb":"stop","said":{}}\n')
    with pytest.raises(StartupError, match="move the file away"):
        scene.killed_and_started_again()


def test_the_journal_is_compacted_at_the_start_and_when_it_grows(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_ACTS_BEFORE_COMPACTION", 10)
    journal = tmp_path / "data" / "world.jsonl"
    scene.running_node()
    lines = []
    for number in range(100):
        scene.world.cordon(CLUSTER, "node-1", cordoned=number % 2 == 0)
        lines.append(len(journal.read_text().splitlines()))
    assert max(lines) == 11
    before = picture(scene.world)
    scene.killed_and_started_again()
    assert len(journal.read_text().splitlines()) == 1
    assert picture(scene.world) == before


def test_other_habits_hold_for_what_comes_after(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "world.jsonl", habits=Habits(boot=Boots((50, 50), 0, 0)))
    scene.world.create_instance(scene.order(1))
    scene.habits = Habits(boot=Boots((5, 5), 0, 0))
    scene.killed_and_started_again()
    scene.world.create_instance(scene.order(2))
    scene.killed_and_started_again()
    scene.go_to(100)
    assert scene.story(What.UP) == [(5, What.UP), (50, What.UP)]


_PROGRAM = """
import sys
from pathlib import Path
from ebbtide.clock import ManualClock
from tests.playground.worlds import CLUSTER, Scene
scene = Scene(Path(sys.argv[1]))
scene.running_node()
for number in range(10_000):
    (pod,) = scene.world.run_pods(CLUSTER, "node-1")
    print(pod, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill_9(tmp_path: Path, repository: Path) -> None:
    journal = tmp_path / "world.jsonl"
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{repository}"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(journal)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in process.stdout.read().split("\n")[:-1]]
    process.wait(timeout=30)
    scene = Scene(journal)
    scene.go_to(UP_S)
    there = scene.pod_uids()
    assert there[: len(acknowledged)] == acknowledged
    assert len(there) - len(acknowledged) <= 1


# --- any sequence of acts -------------------------------------------------------------------------


def _do(step: Step, scene: Scene) -> None:
    try:
        step(scene)
    except EbbtideError as refusal:
        scene.refusals.append(str(refusal))


def _steps(rng: random.Random) -> list[Step]:
    """Two nodes that take work (a third host is empty), and then whatever."""
    first: list[Step] = [
        lambda scene: scene.world.create_control_plane(CLUSTER, "alpha"),
        lambda scene: scene.world.create_instance(scene.order(1)),
        lambda scene: scene.world.create_instance(scene.order(2)),
        lambda scene: scene.clock.advance(UP_S),
        lambda scene: scene.world.admit(CLUSTER, uid(1)),
        lambda scene: scene.world.admit(CLUSTER, uid(2)),
    ]
    return first + [_step(rng) for _ in range(rng.randint(10, 40))]


def _step(rng: random.Random) -> Step:
    number, grace_s, seconds = (
        rng.choice([1, 1, 2, 2, 3, 4]),
        rng.randint(1, 300),
        rng.choice([0, 0.5, 7, 45, 300]),
    )
    host = f"h{rng.randint(1, 3)}"
    pods: list[PodBehaviour] = [
        Obeys(3),
        Obeys(200),
        IgnoresSigterm(),
        IgnoresSigterm(shortening_bites=False),
    ]
    troubles: list[Behaviour] = [CreateReplyLost(1), DeleteForgets(2), StopUnconfirmed(1), StopTakes(9)]
    behaviour, trouble = rng.choice(pods), rng.choice(troubles)
    reschedule = rng.random() < 0.5

    def tell_all(scene: Scene) -> None:
        graces = dict.fromkeys(scene.pod_uids(number), grace_s)
        scene.world.signal(CLUSTER, uid(number), graces)

    def evict_all(scene: Scene) -> None:
        scene.world.evict(CLUSTER, uid(number), dict.fromkeys(scene.pod_uids(number), grace_s))

    choices: list[Step] = [
        lambda scene: scene.clock.advance(seconds),
        lambda scene: scene.clock.advance(1),
        lambda scene: scene.world.create_instance(scene.order(number, host)),
        lambda scene: scene.world.admit(CLUSTER, uid(number)),
        lambda scene: scene.world.run_pods(CLUSTER, None, 2, behaviour, grace_s, reschedule=reschedule),
        lambda scene: scene.world.run_pods(CLUSTER, f"node-{number}", 1, behaviour, volumes=[Volume(20)]),
        tell_all,
        evict_all,
        lambda scene: scene.world.budget(CLUSTER, "keep", "job", 1),
        lambda scene: scene.world.notify(CLUSTER, uid(number), "TogetherPreempted", "why", at(10_000)),
        lambda scene: scene.world.stop_instance(uid(number)),
        lambda scene: scene.world.delete_instance(uid(number)),
        lambda scene: scene.world.remove(CLUSTER, uid(number)),
        lambda scene: scene.world.set_behaviour(trouble, host=host),
        lambda scene: scene.world.set_behaviour(
            Vanishes(scene.clock.now() + timedelta(seconds=20)), host=host
        ),
        lambda scene: scene.world.restore(host),
        lambda scene: scene.world.unreachable(
            CLUSTER, scene.clock.now(), scene.clock.now() + timedelta(seconds=10)
        ),
    ]
    return rng.choice(choices[:10] + choices[:10] + choices[10:])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_killed_after_every_act_it_is_the_same_world(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    steps = _steps(random.Random(seed))
    calm, shaken = Scene(), Scene(tmp_path_factory.mktemp("world") / "world.jsonl")
    for step in steps:
        for scene in (calm, shaken):
            _do(step, scene)
        shaken.killed_and_started_again()
    assert calm.refusals == shaken.refusals
    assert picture(shaken.world) == picture(calm.world)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_looking_often_changes_nothing(seed: int) -> None:
    steps = _steps(random.Random(seed))
    calm, watched = Scene(), Scene()
    for step in steps:
        for scene in (calm, watched):
            _do(step, scene)
    end = calm.clock.now() + timedelta(hours=1)
    while watched.clock.now() < end:
        watched.clock.advance(1.5)
        watched.world.facts()
    calm.clock.set(watched.clock.now())
    assert picture(watched.world) == picture(calm.world)


def test_the_journal_is_lines_of_json(scene: Scene, tmp_path: Path) -> None:
    scene.running_node()
    lines = (tmp_path / "data" / "world.jsonl").read_text().splitlines()
    assert [json.loads(line).get("verb", "snapshot") for line in lines] == [
        "snapshot",
        "create_control_plane",
        "create",
        "admit",
    ]
