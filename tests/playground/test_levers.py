"""The world's levers as JSON: what they do, and that bad input gets a clear error."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import BadInput, NotFound
from ebbtide.playground.levers import Levers
from tests.playground.worlds import CLUSTER, UP_S, Scene, uid


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.running_node()
    return made


async def test_pods_are_started_and_shown(scene: Scene) -> None:
    levers = Levers(scene.world)
    spec = {"name": "train", "count": 2, "behaviour": "dawdles", "grace_s": 300, "node": "node-1"}
    made = await levers.add_pods(CLUSTER, spec)
    assert [(pod["node"], pod["state"], pod["behaviour"], pod["grace_s"]) for pod in made] == [
        ("node-1", "running", "Dawdles", 300),
        ("node-1", "running", "Dawdles", 300),
    ]
    scene.world.signal(CLUSTER, uid(1), {made[0]["uid"]: 297})
    told, other = await levers.pods(CLUSTER)
    assert (told["state"], told["ends_by"]) == ("terminating", "2026-01-01T00:05:37Z")
    assert (other["state"], other["ends_by"]) == ("running", None)
    scene.go_to(UP_S + 240)
    assert [pod["uid"] for pod in await levers.pods(CLUSTER)] == [made[1]["uid"]]


async def test_states_of_pods(scene: Scene) -> None:
    levers = Levers(scene.world)
    await levers.add_pods(CLUSTER, {"finishes_after_s": 10})
    await levers.add_pods(CLUSTER, {"gpus": 64})
    scene.clock.advance(10)
    assert [pod["state"] for pod in await levers.pods(CLUSTER)] == ["finished", "pending"]
    await levers.add_pods(CLUSTER, {})
    assert await levers.vanish("h1") == {"host": "h1", "node_uid": uid(1)}
    assert [pod["state"] for pod in await levers.pods(CLUSTER)] == [
        "finished",
        "dead with its machine",
        "pending",
    ]


@pytest.mark.parametrize(
    ("spec", "param"),
    [
        ({"nodes": "x"}, "nodes"),
        ({"count": 0}, "count"),
        ({"count": 1001}, "count"),
        ({"count": True}, "count"),
        ({"count": "two"}, "count"),
        ({"grace_s": -1}, "grace_s"),
        ({"grace_s": 1.5}, "grace_s"),
        ({"behaviour": "sulks"}, "behaviour"),
        ({"behaviour": 3}, "behaviour"),
        ({"behaviour": "dawdles", "finishes_after_s": 3}, "behaviour"),
        ({"exits_after_s": "soon"}, "exits_after_s"),
        ({"exits_after_s": float("nan")}, "exits_after_s"),
        ({"exits_after_s": 1e12}, "exits_after_s"),
        ({"kind": "finished"}, "kind"),
        ({"name": ""}, "name"),
        ({"name": "x" * 254}, "name"),
        ({"gpus": None}, "gpus"),
        ({"reschedule": "yes"}, "reschedule"),
    ],
)
async def test_bad_input_names_its_field(scene: Scene, spec: dict[str, Any], param: str) -> None:
    levers = Levers(scene.world)
    with pytest.raises(BadInput) as caught:
        await levers.add_pods(CLUSTER, spec)
    assert caught.value.param == param
    assert await levers.pods(CLUSTER) == []


async def test_what_is_not_there(scene: Scene) -> None:
    levers = Levers(scene.world)
    with pytest.raises(NotFound):
        await levers.add_pods("nowhere", {})
    with pytest.raises(NotFound):
        await levers.pods("nowhere")
    with pytest.raises(NotFound):
        await levers.add_pods(CLUSTER, {"node": "node-9"})
    with pytest.raises(NotFound):
        await levers.vanish("h9")
    with pytest.raises(NotFound):
        await levers.delete_node(CLUSTER, "node-9")


async def test_a_standard_node_is_deleted_at_once_and_a_preemptible_one_is_held(scene: Scene) -> None:
    levers = Levers(scene.world)
    scene.world.create_instance(scene.order(2, compute_class="standard"))
    scene.clock.advance(UP_S)
    scene.world.admit(CLUSTER, uid(2))
    for name in ("node-1", "node-2"):
        await levers.delete_node(CLUSTER, name)
    assert [(view.uid, view.deleting) for view in scene.world.nodes(CLUSTER)] == [(uid(1), True)]


async def test_a_host_comes_back(scene: Scene) -> None:
    levers = Levers(scene.world)
    await levers.vanish("h1")
    await levers.restore("h1")
    scene.world.create_instance(scene.order(2, host="h1"))
    assert scene.world.occupants() == {"h1": uid(2)}
