"""Short ways to say what the tests of the playground do."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ebbtide.clock import ManualClock
from ebbtide.playground.behaviours import Boots, Habits, PodBehaviour
from ebbtide.playground.codec import encode
from ebbtide.playground.facts import Fact, What
from ebbtide.playground.machines import Order
from ebbtide.playground.world import World

START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
CLUSTER = "00000000-0000-4000-8000-00000000000c"
POOL = "h100"
UP_S = 40  # a node of the test habits is Ready with its GPUs by then
HABITS = Habits(boot=Boots(boot_s=(20, 20), join_s=10, gpus_s=10), wipe_s=30, control_plane_s=5)


def at(seconds: float) -> datetime:
    """The instant so long after the start of the test."""
    return START + timedelta(seconds=seconds)


def since(instant: datetime) -> float:
    """Seconds from the start of the test."""
    return (instant - START).total_seconds()


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class Scene:
    """A world on a manual clock, perhaps with a journal from which it can be read again."""

    def __init__(self, journal: Path | None = None, habits: Habits = HABITS, seed: int = 0) -> None:
        self.clock = ManualClock(START)
        self.refusals: list[str] = []
        self._journal, self.habits, self._seed = journal, habits, seed
        self.world = self._open()

    def _open(self) -> World:
        return World(self.clock, seed=self._seed, journal=self._journal, habits=self.habits)

    def killed_and_started_again(self) -> None:
        """As after kill -9: nothing was closed, a new object reads what the old one had written."""
        self.world = self._open()

    def go_to(self, seconds: float) -> None:
        self.clock.set(at(seconds))

    def order(self, number: int = 1, host: str | None = None, compute_class: str = "preemptible") -> Order:
        return Order(uid(number), f"node-{number}", CLUSTER, compute_class, POOL, host or f"h{number}", 8)

    def running_node(self, number: int = 1, host: str | None = None) -> str:
        """A node that is Ready, has its GPUs and takes work. Its uid."""
        self.world.create_control_plane(CLUSTER, "alpha")
        self.world.create_instance(self.order(number, host))
        self.clock.advance(UP_S)
        self.world.admit(CLUSTER, uid(number))
        return uid(number)

    def pod(self, behaviour: PodBehaviour, grace_s: int = 300, node: int = 1, **more: Any) -> str:
        (made,) = self.world.run_pods(CLUSTER, f"node-{node}", 1, behaviour, grace_s, **more)
        return made

    def pod_uids(self, node: int = 1) -> list[str]:
        return [pod.uid for pod in self.world.pods(CLUSTER, uid(node))[0]]

    def story(self, *kinds: What) -> list[tuple[float, What]]:
        """When each fact of these kinds happened, in order."""
        return [(since(fact.at), fact.what) for fact in self.world.facts() if fact.what in kinds]

    def the(self, what: What) -> Fact:
        (fact,) = self.world.facts(what=what)
        return fact


def picture(world: World) -> Any:
    """Everything about the world that matters, without its caches."""
    world.next_change_at()  # lets happen what is due
    state = encode(world._state)
    for _, cluster in state["clusters"]["$dict"]:
        cluster["views"] = None
        for _, node in cluster["nodes"]["$dict"]:
            node["view"] = None
    return state
