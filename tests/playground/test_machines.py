"""How machines boot, stop, are wiped, misbehave and vanish."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.errors import BadInput
from ebbtide.playground.behaviours import (
    BootFails,
    Boots,
    CreateReplyLost,
    DeleteForgets,
    DeleteReplyLost,
    GpusMissing,
    Habits,
    NeverReady,
    OutOfStock,
    Reregisters,
    StopTakes,
    StopUnconfirmed,
    Vanishes,
    Wipes,
)
from ebbtide.playground.facts import What
from ebbtide.playground.machines import GONE
from ebbtide.playground.state import Power
from ebbtide.playground.trouble import ClusterUnreachable, NeverPossible, NoMachine, NothingDone, ReplyLost
from tests.playground.worlds import CLUSTER, POOL, UP_S, Scene, at, uid


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.world.create_control_plane(CLUSTER, "alpha")
    return made


def _power(scene: Scene, number: int = 1) -> Power | None:
    machine = scene.world.instance(uid(number))
    return machine.power if machine else None


class TestBoots:
    def test_up_then_registered_then_ready_then_gpus(self, scene: Scene) -> None:
        """D9: Ready before the GPUs show."""
        scene.world.create_instance(scene.order())
        scene.go_to(100)
        assert scene.story(What.CREATED, What.UP, What.REGISTERED, What.READY, What.GPUS_SHOWN) == [
            (0, What.CREATED),
            (20, What.UP),
            (20, What.REGISTERED),
            (30, What.READY),
            (40, What.GPUS_SHOWN),
        ]

    @pytest.mark.parametrize(
        ("when_s", "power", "ready", "gpus"),
        [(20, Power.UP, False, 0), (30, Power.UP, True, 0), (40, Power.UP, True, 8)],
    )
    def test_what_is_seen_at_each_moment(
        self, scene: Scene, when_s: float, power: Power, ready: bool, gpus: int
    ) -> None:
        scene.world.create_instance(scene.order())
        scene.go_to(when_s)
        (view,) = scene.world.nodes(CLUSTER)
        assert (_power(scene), view.ready, view.gpus) == (power, ready, gpus)

    def test_nothing_is_seen_before_it_is_up(self, scene: Scene) -> None:
        scene.world.create_instance(scene.order())
        scene.go_to(19.999)
        assert _power(scene) is Power.STARTING
        assert scene.world.nodes(CLUSTER) == ()

    def test_a_machine_up_before_its_control_plane_registers_after(self) -> None:
        scene = Scene(habits=Habits(boot=Boots((20, 20), 10, 10), control_plane_s=60))
        scene.world.create_control_plane(CLUSTER, "alpha")
        scene.world.create_instance(scene.order())
        scene.go_to(200)
        assert scene.story(What.REGISTERED) == [(60, What.REGISTERED)]

    def test_boot_times_differ_by_node_and_repeat_by_seed(self) -> None:
        def boots(seed: int) -> list[float]:
            scene = Scene(habits=Habits(boot=Boots(boot_s=(60, 180))), seed=seed)
            for number in range(1, 6):
                scene.world.create_instance(scene.order(number))
            scene.go_to(1_000)
            return [when for when, _ in scene.story(What.UP)]

        assert boots(1) == boots(1)
        assert boots(1) != boots(2)
        assert len(set(boots(1))) == 5
        assert all(60 <= when <= 180 for when in boots(1))

    def test_one_that_never_becomes_ready(self, scene: Scene) -> None:
        scene.world.set_behaviour(NeverReady(boot_s=20), host="h1")
        scene.world.create_instance(scene.order())
        scene.go_to(1_000_000)
        (view,) = scene.world.nodes(CLUSTER)
        assert (_power(scene), view.ready, view.gpus) == (Power.UP, False, 0)

    def test_one_that_never_even_registers(self, scene: Scene) -> None:
        scene.world.set_behaviour(NeverReady(boot_s=20, registers=False), host="h1")
        scene.world.create_instance(scene.order())
        scene.go_to(1_000_000)
        assert scene.world.nodes(CLUSTER) == ()

    def test_one_with_too_few_gpus(self, scene: Scene) -> None:
        scene.world.set_behaviour(GpusMissing(gpus=7, boot_s=20, join_s=5), host="h1")
        scene.world.create_instance(scene.order())
        scene.go_to(1_000_000)
        (view,) = scene.world.nodes(CLUSTER)
        assert (view.ready, view.gpus) == (True, 7)

    def test_one_that_fails_can_be_given_back(self, scene: Scene) -> None:
        scene.world.set_behaviour(BootFails(after_s=25, why="no link"), host="h1")
        scene.world.create_instance(scene.order())
        scene.go_to(25)
        machine = scene.world.instance(uid(1))
        assert machine is not None
        assert (machine.power, machine.why) == (Power.FAILED, "no link")
        assert not scene.world.delete_instance(uid(1)).gone
        scene.go_to(25 + 30)
        assert scene.world.delete_instance(uid(1)) == GONE


class TestCreates:
    def test_a_lost_reply_finds_the_same_instance(self, scene: Scene) -> None:
        """G4."""
        scene.world.set_behaviour(CreateReplyLost(times=2), host="h1")
        for _ in range(2):
            with pytest.raises(ReplyLost):
                scene.world.create_instance(scene.order())
        found = scene.world.create_instance(scene.order())
        assert [machine.instance_id for machine in scene.world.instances(POOL)] == [found.instance_id]
        assert len(scene.world.facts(what=What.CREATED)) == 1

    def test_out_of_stock_so_many_times(self, scene: Scene) -> None:
        scene.world.set_behaviour(OutOfStock(times=1), pool=POOL)
        with pytest.raises(NoMachine):
            scene.world.create_instance(scene.order())
        assert scene.world.instances(POOL) == []
        scene.world.create_instance(scene.order())
        assert len(scene.world.instances(POOL)) == 1

    def test_two_instances_on_one_host_are_refused_and_never_forgotten(self, scene: Scene) -> None:
        scene.world.create_instance(scene.order(1, host="h1"))
        with pytest.raises(NeverPossible, match="still has an instance"):
            scene.world.create_instance(scene.order(2, host="h1"))
        (violation,) = scene.world.violations
        assert "host h1" in violation
        assert scene.world.occupants() == {"h1": uid(1)}

    def test_a_host_that_is_still_being_wiped_counts_as_taken(self, scene: Scene) -> None:
        scene.running_node(1, host="h1")
        scene.world.delete_instance(uid(1))
        with pytest.raises(NeverPossible):
            scene.world.create_instance(scene.order(2, host="h1"))
        scene.clock.advance(30)
        scene.world.create_instance(scene.order(2, host="h1"))
        assert len(scene.world.violations) == 1

    def test_a_node_is_never_used_again(self, scene: Scene) -> None:
        scene.running_node()
        scene.world.delete_instance(uid(1))
        scene.clock.advance(30)
        with pytest.raises(NeverPossible, match="given back"):
            scene.world.create_instance(scene.order())


class TestStops:
    def test_a_stop_ends_what_runs(self, scene: Scene) -> None:
        scene.running_node()
        scene.world.run_pods(CLUSTER, "node-1")
        assert scene.world.stop_instance(uid(1))
        assert scene.story(What.KILLED, What.POWER_OFF) == [(UP_S, What.KILLED), (UP_S, What.POWER_OFF)]
        (view,) = scene.world.nodes(CLUSTER)
        assert not view.ready

    def test_one_that_is_not_confirmed_for_a_while(self, scene: Scene) -> None:
        scene.world.set_behaviour(StopUnconfirmed(times=2), host="h1")
        scene.running_node()
        assert [scene.world.stop_instance(uid(1)) for _ in range(4)] == [False, False, True, True]

    def test_one_that_is_never_confirmed_holds_the_host(self, scene: Scene) -> None:
        scene.world.set_behaviour(StopUnconfirmed(), host="h1")
        scene.running_node()
        for _ in range(5):
            assert not scene.world.stop_instance(uid(1))
            assert not scene.world.delete_instance(uid(1)).gone
            scene.clock.advance(3600)
        assert _power(scene) is Power.UP
        assert scene.world.occupants() == {"h1": uid(1)}
        assert len(scene.world.facts(what=What.STOP_UNCONFIRMED)) == 1

    def test_one_that_takes_time(self, scene: Scene) -> None:
        scene.world.set_behaviour(StopTakes(10), host="h1")
        scene.running_node()
        assert not scene.world.stop_instance(uid(1))
        scene.go_to(UP_S + 9)
        assert not scene.world.stop_instance(uid(1))
        scene.go_to(UP_S + 12)
        assert scene.world.stop_instance(uid(1))
        assert scene.story(What.POWER_OFF) == [(UP_S + 10, What.POWER_OFF)]


class TestDeletes:
    def test_off_then_wiped_then_gone(self, scene: Scene) -> None:
        scene.running_node()
        assert not scene.world.delete_instance(uid(1)).gone
        assert _power(scene) is Power.STOPPED
        scene.go_to(UP_S + 29.999)
        assert not scene.world.delete_instance(uid(1)).wiped
        scene.go_to(UP_S + 30)
        assert scene.world.delete_instance(uid(1)) == GONE
        assert _power(scene) is None
        assert scene.story(What.POWER_OFF, What.WIPING, What.WIPED) == [
            (UP_S, What.POWER_OFF),
            (UP_S, What.WIPING),
            (UP_S + 30, What.WIPED),
        ]

    def test_a_pool_has_its_own_turn_over_time(self, scene: Scene) -> None:
        scene.world.set_behaviour(Wipes(600), pool=POOL)
        scene.running_node()
        scene.world.delete_instance(uid(1))
        scene.go_to(UP_S + 599)
        assert not scene.world.delete_instance(uid(1)).gone
        scene.go_to(UP_S + 600)
        assert scene.world.delete_instance(uid(1)).gone

    def test_a_delete_that_forgets_three_times(self, scene: Scene) -> None:
        """D4."""
        scene.world.set_behaviour(DeleteForgets(times=3), host="h1")
        scene.running_node()
        for _ in range(3):
            with pytest.raises(NothingDone):
                scene.world.delete_instance(uid(1))
            assert _power(scene) is Power.UP
        assert not scene.world.delete_instance(uid(1)).gone
        scene.clock.advance(30)
        assert scene.world.delete_instance(uid(1)) == GONE

    def test_a_delete_whose_reply_is_lost_took_effect(self, scene: Scene) -> None:
        scene.world.set_behaviour(DeleteReplyLost(), host="h1")
        scene.running_node()
        with pytest.raises(ReplyLost):
            scene.world.delete_instance(uid(1))
        assert _power(scene) is Power.STOPPED
        scene.clock.advance(30)
        assert scene.world.delete_instance(uid(1)) == GONE


class TestVanishing:
    def test_a_cloud_forgets_the_instance(self, scene: Scene) -> None:
        """C1, I5."""
        scene.world.set_behaviour(Vanishes(at(100)), host="h1")
        scene.running_node()
        scene.go_to(100)
        (view,) = scene.world.nodes(CLUSTER)
        assert not view.ready
        assert scene.world.instance(uid(1)) is None
        assert scene.world.instances(POOL) == []
        assert scene.world.stop_instance(uid(1))
        assert scene.world.delete_instance(uid(1)) == GONE
        assert scene.story(What.VANISHED) == [(100, What.VANISHED)]

    def test_bare_metal_cannot_be_wiped_until_it_is_back(self, scene: Scene) -> None:
        scene.running_node()
        scene.world.vanish("h1", forgotten=False)
        assert _power(scene) is Power.STOPPED
        assert not scene.world.delete_instance(uid(1)).gone
        scene.world.restore("h1")
        assert not scene.world.delete_instance(uid(1)).gone
        scene.clock.advance(30)
        assert scene.world.delete_instance(uid(1)) == GONE

    def test_a_vanished_host_cannot_be_had_until_it_is_back(self, scene: Scene) -> None:
        scene.world.vanish("h1")
        with pytest.raises(NoMachine):
            scene.world.create_instance(scene.order())
        scene.world.restore("h1")
        scene.world.create_instance(scene.order())

    def test_only_hosts_vanish(self, scene: Scene) -> None:
        with pytest.raises(BadInput):
            scene.world.set_behaviour(Vanishes(at(100)), pool=POOL)


class TestNearestBehaviourCounts:
    @pytest.mark.parametrize(
        ("scopes", "gone_after_s"),
        [
            (["world"], 1),
            (["world", "pool"], 2),
            (["world", "pool", "host"], 3),
            (["world", "pool", "host", "node"], 4),
            (["host", "world"], 3),
        ],
    )
    def test_node_then_host_then_pool_then_world(
        self, scene: Scene, scopes: list[str], gone_after_s: int
    ) -> None:
        if "world" in scopes:
            scene.world.set_behaviour(Wipes(1))
        if "pool" in scopes:
            scene.world.set_behaviour(Wipes(2), pool=POOL)
        if "host" in scopes:
            scene.world.set_behaviour(Wipes(3), host="h1")
        if "node" in scopes:
            scene.world.set_behaviour(Wipes(4), node_uid=uid(1))
        scene.running_node()
        scene.world.delete_instance(uid(1))
        scene.go_to(UP_S + gone_after_s - 0.5)
        assert not scene.world.delete_instance(uid(1)).gone
        scene.go_to(UP_S + gone_after_s)
        assert scene.world.delete_instance(uid(1)).gone

    def test_two_scopes_at_once_are_an_error(self, scene: Scene) -> None:
        with pytest.raises(BadInput):
            scene.world.set_behaviour(Wipes(1), host="h1", pool=POOL)


class TestClusters:
    def test_a_cluster_without_an_api_server_does_not_answer(self) -> None:
        scene = Scene()
        with pytest.raises(ClusterUnreachable):
            scene.world.nodes(CLUSTER)
        scene.world.create_control_plane(CLUSTER, "alpha")
        with pytest.raises(ClusterUnreachable, match="not up yet"):
            scene.world.nodes(CLUSTER)
        scene.go_to(5)
        assert scene.world.nodes(CLUSTER) == ()
        scene.world.delete_control_plane(CLUSTER)
        with pytest.raises(ClusterUnreachable):
            scene.world.nodes(CLUSTER)

    def test_machines_may_be_ordered_before_their_control_plane(self) -> None:
        scene = Scene()
        scene.world.create_instance(scene.order(1))
        scene.go_to(UP_S)
        scene.world.create_control_plane(CLUSTER, "alpha")
        scene.world.create_instance(scene.order(2))
        scene.go_to(2 * UP_S)
        assert [view.gpus for view in scene.world.nodes(CLUSTER)] == [8, 8]
        assert scene.world.control_planes() == [CLUSTER]

    def test_one_verb_may_fail_for_a_span(self, scene: Scene) -> None:
        """A11."""
        scene.running_node()
        scene.world.unreachable(CLUSTER, at(50), at(100), ["pods"])
        for when, answers in ((49, True), (50, False), (99, False), (100, True)):
            scene.go_to(when)
            assert len(scene.world.nodes(CLUSTER)) == 1
            if answers:
                assert scene.world.pods(CLUSTER, uid(1)) == ((), 0)
            else:
                with pytest.raises(ClusterUnreachable):
                    scene.world.pods(CLUSTER, uid(1))

    def test_pods_end_while_their_api_server_is_away(self, scene: Scene) -> None:
        """F5."""
        scene.running_node()
        (pod,) = scene.world.run_pods(CLUSTER, "node-1")
        scene.world.signal(CLUSTER, uid(1), {pod: 30})
        scene.world.unreachable(CLUSTER, at(UP_S + 1), at(UP_S + 60))
        scene.go_to(UP_S + 60)
        assert scene.pod_uids() == []
        assert scene.story(What.EXITED) == [(UP_S + 5, What.EXITED)]

    def test_a_provider_may_be_away(self, scene: Scene) -> None:
        scene.world.provider_unreachable(at(0), at(10))
        with pytest.raises(NothingDone):
            scene.world.create_instance(scene.order())
        scene.go_to(10)
        scene.world.create_instance(scene.order())

    def test_a_notice_whose_deadline_moves_is_a_violation(self, scene: Scene) -> None:
        scene.running_node()
        for _ in range(2):
            scene.world.notify(CLUSTER, uid(1), "TogetherPreempted", "needed elsewhere", at(400))
        assert scene.world.violations == []
        scene.world.notify(CLUSTER, uid(1), "TogetherPreempted", "needed elsewhere", at(401))
        assert len(scene.world.violations) == 1
        assert len(scene.world.facts(what=What.NOTICE)) == 1

    def test_a_kubelet_that_comes_back(self, scene: Scene) -> None:
        """C7."""
        scene.world.set_behaviour(Reregisters(after_s=1), host="h1")
        scene.running_node()
        scene.world.remove(CLUSTER, uid(1))
        assert scene.world.nodes(CLUSTER) == ()
        scene.clock.advance(1)
        (view,) = scene.world.nodes(CLUSTER)
        assert view.uid == uid(1)
        scene.world.stop_instance(uid(1))
        scene.world.remove(CLUSTER, uid(1))
        scene.clock.advance(100)
        assert scene.world.nodes(CLUSTER) == ()

    def test_a_view_is_the_same_object_until_something_changes(self, scene: Scene) -> None:
        scene.running_node(1)
        scene.running_node(2)
        before = scene.world.nodes(CLUSTER)
        scene.clock.advance(1)
        assert scene.world.nodes(CLUSTER) is before
        scene.world.run_pods(CLUSTER, "node-1")
        after = scene.world.nodes(CLUSTER)
        assert after is not before
        assert after[1] is before[1]


class TestChanges:
    def test_the_world_says_when_it_changes_next(self, scene: Scene) -> None:
        scene.world.create_instance(scene.order())
        seen = []
        while (due := scene.world.next_change_at()) is not None:
            scene.clock.set(due)
            seen.append((due - at(0)) / timedelta(seconds=1))
        assert seen == [5, 20, 30, 40]

    def test_a_reader_hears_of_each_change_once(self, scene: Scene) -> None:
        last = max((change.number for change in scene.world.changes_after(0)), default=0)
        scene.world.create_instance(scene.order())
        scene.go_to(20)
        changes = scene.world.changes_after(last)
        assert {(change.cluster_id, change.node_uid) for change in changes} == {
            (CLUSTER, uid(1)),
            (CLUSTER, ""),
        }
        assert scene.world.changes_after(changes[-1].number) == []

    def test_subscribers_hear_which_cluster_changed(self, scene: Scene) -> None:
        heard: list[str] = []
        scene.world.subscribe(heard.append)
        scene.world.create_instance(scene.order())
        scene.go_to(40)
        scene.world.next_change_at()
        assert heard == [CLUSTER]
