"""How pods end: a table of behaviours, and what resends, budgets, volumes and dead machines do to them."""

from __future__ import annotations

import pytest

from ebbtide.core.drain import PodKind
from ebbtide.errors import NotFound
from ebbtide.playground.behaviours import (
    Dawdles,
    FinishesAfter,
    FinishesAt,
    IgnoresSigterm,
    KubeletDoublesGrace,
    Obeys,
    PodBehaviour,
    Volume,
)
from ebbtide.playground.facts import What
from tests.playground.worlds import CLUSTER, START, UP_S, Scene, at, since, uid

T0 = UP_S  # the nodes of this module are admitted then, and pods are told to go


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.running_node()
    return made


@pytest.mark.parametrize(
    ("behaviour", "grace_s", "gone_after_s", "how"),
    [
        (Obeys(5), 297, 5, What.EXITED),
        (Obeys(0), 297, 0, What.EXITED),
        (Obeys(60), 20, 20, What.KILLED),
        (Obeys(20), 20, 20, What.EXITED),
        (Dawdles(240), 297, 240, What.EXITED),
        (Dawdles(400), 297, 297, What.KILLED),
        (IgnoresSigterm(), 297, 297, What.KILLED),
        (IgnoresSigterm(), 1, 1, What.KILLED),
        (KubeletDoublesGrace(), 297, 594, What.KILLED),
        (FinishesAt(at(10_000), exits_after_s=7), 297, 7, What.EXITED),
        (FinishesAfter(10_000, exits_after_s=7), 297, 7, What.EXITED),
    ],
)
def test_a_pod_told_to_go_is_there_until_it_ends(
    scene: Scene, behaviour: PodBehaviour, grace_s: int, gone_after_s: float, how: What
) -> None:
    pod = scene.pod(behaviour)
    scene.world.signal(CLUSTER, uid(1), {pod: grace_s})
    if gone_after_s > 0:
        scene.go_to(T0 + gone_after_s - 0.001)
        assert scene.pod_uids() == [pod]
    scene.go_to(T0 + gone_after_s)
    assert scene.pod_uids() == []
    assert scene.story(What.SIGTERM, What.EXITED, What.KILLED) == [
        (T0, What.SIGTERM),
        (T0 + gone_after_s, how),
    ]


def test_a_pod_that_nobody_told_stays(scene: Scene) -> None:
    pod = scene.pod(Obeys(1))
    scene.go_to(1_000_000)
    assert scene.pod_uids() == [pod]


def test_the_fact_of_a_sigterm_says_the_grace_asked_and_given(scene: Scene) -> None:
    pod = scene.pod(IgnoresSigterm(), grace_s=900)
    scene.world.signal(CLUSTER, uid(1), {pod: 297})
    fact = scene.the(What.SIGTERM)
    assert (fact.asked_s, fact.given_s) == (900, 297)
    (seen,), _ = scene.world.pods(CLUSTER, uid(1))
    assert seen.ends_by == at(T0 + 297)


@pytest.mark.parametrize(
    ("behaviour", "resend_at_s", "grace_s", "gone_at_s"),
    [
        (IgnoresSigterm(), 100, 50, 150),  # earlier: it moves
        (IgnoresSigterm(), 100, 400, 297),  # later: grace is one shot
        (IgnoresSigterm(), 100, 197, 297),  # the same end
        (Obeys(200), 100, 50, 150),
        (Dawdles(120), 100, 50, 120),  # it would have ended before anyway
        (IgnoresSigterm(shortening_bites=False), 100, 50, 297),
        (KubeletDoublesGrace(), 100, 50, 594),
    ],
)
def test_telling_a_pod_again(
    scene: Scene, behaviour: PodBehaviour, resend_at_s: float, grace_s: int, gone_at_s: float
) -> None:
    pod = scene.pod(behaviour)
    scene.world.signal(CLUSTER, uid(1), {pod: 297})
    scene.go_to(T0 + resend_at_s)
    scene.world.signal(CLUSTER, uid(1), {pod: grace_s})
    scene.go_to(T0 + gone_at_s - 0.001)
    assert scene.pod_uids() == [pod]
    scene.go_to(T0 + gone_at_s)
    assert scene.pod_uids() == []
    assert len(scene.world.facts(what=What.SIGTERM)) == 1


def test_a_shortening_that_does_not_bite_still_shows_in_the_api(scene: Scene) -> None:
    pod = scene.pod(IgnoresSigterm(shortening_bites=False))
    scene.world.signal(CLUSTER, uid(1), {pod: 297})
    scene.world.signal(CLUSTER, uid(1), {pod: 100})
    (seen,), _ = scene.world.pods(CLUSTER, uid(1))
    assert seen.ends_by == at(T0 + 100)


def test_pods_of_a_dead_machine_stay_as_objects_and_are_killed_once(scene: Scene) -> None:
    pod = scene.pod(IgnoresSigterm())
    scene.world.signal(CLUSTER, uid(1), {pod: 297})
    scene.go_to(T0 + 60)
    scene.world.vanish("h1")
    scene.go_to(T0 + 1_000)
    assert scene.pod_uids() == [pod]
    assert scene.story(What.KILLED) == [(T0 + 60, What.KILLED)]
    assert scene.world.remove(CLUSTER, uid(1))
    assert scene.pod_uids() == []
    assert scene.story(What.FORCE_DELETED) == [(T0 + 1_000, What.FORCE_DELETED)]
    assert scene.world.violations == []


def test_force_deleting_work_on_a_running_machine_is_a_violation(scene: Scene) -> None:
    scene.pod(IgnoresSigterm())
    scene.world.remove(CLUSTER, uid(1))
    (violation,) = scene.world.violations
    assert "node-1" in violation


@pytest.mark.parametrize("behaviour", [FinishesAt(at(T0 + 30)), FinishesAfter(30)])
def test_a_pod_that_finishes_by_itself_does_not_count_any_more(scene: Scene, behaviour: PodBehaviour) -> None:
    scene.pod(behaviour)
    scene.go_to(T0 + 29)
    assert scene.world.nodes(CLUSTER)[0].workload_pods == 1
    scene.go_to(T0 + 30)
    assert scene.world.nodes(CLUSTER)[0].workload_pods == 0
    (seen,), _ = scene.world.pods(CLUSTER, uid(1))
    assert seen.kind is PodKind.FINISHED
    assert scene.story(What.FINISHED) == [(T0 + 30, What.FINISHED)]


@pytest.mark.parametrize("kind", [PodKind.DAEMON, PodKind.MIRROR, PodKind.CRITICAL])
def test_pods_that_are_no_work_are_listed_but_not_counted(scene: Scene, kind: PodKind) -> None:
    scene.pod(Obeys(), kind=kind)
    (seen,), _ = scene.world.pods(CLUSTER, uid(1))
    assert seen.kind is kind
    view = scene.world.nodes(CLUSTER)[0]
    assert (view.workload_pods, view.first_pod_at) == (0, None)


def test_the_first_pod_is_the_one_that_started_first(scene: Scene) -> None:
    scene.pod(FinishesAfter(50))
    scene.go_to(T0 + 10)
    scene.pod(Obeys())
    assert scene.world.nodes(CLUSTER)[0].first_pod_at == at(T0)
    scene.go_to(T0 + 50)
    assert scene.world.nodes(CLUSTER)[0].first_pod_at == at(T0 + 10)


def test_a_pod_may_be_bound_after_the_cordon(scene: Scene) -> None:
    """D1: bound between a list and the cordon."""
    pod = scene.pod(Obeys(), bind_at=at(T0 + 0.2))
    scene.world.notify(CLUSTER, uid(1), "TogetherPreempted", "needed elsewhere", at(T0 + 300))
    assert scene.pod_uids() == []
    scene.go_to(T0 + 0.2)
    assert scene.pod_uids() == [pod]


class TestVolumes:
    @pytest.mark.parametrize(("lingers_s", "free_at_s"), [(0, 5), (90, 95)])
    def test_an_attachment_goes_after_its_pod(self, scene: Scene, lingers_s: float, free_at_s: float) -> None:
        pod = scene.pod(Obeys(5), volumes=[Volume(lingers_s)])
        assert scene.world.pods(CLUSTER, uid(1))[1] == 1
        scene.world.signal(CLUSTER, uid(1), {pod: 297})
        scene.go_to(T0 + free_at_s - 0.001)
        assert scene.world.pods(CLUSTER, uid(1))[1] == 1
        scene.go_to(T0 + free_at_s)
        assert scene.world.pods(CLUSTER, uid(1)) == ((), 0)

    def test_one_that_never_goes_goes_with_the_node(self, scene: Scene) -> None:
        """C9."""
        pod = scene.pod(Obeys(5), volumes=[Volume(None)])
        scene.world.signal(CLUSTER, uid(1), {pod: 297})
        scene.go_to(T0 + 100_000)
        assert scene.world.pods(CLUSTER, uid(1)) == ((), 1)
        assert scene.world.remove(CLUSTER, uid(1))
        assert scene.world.pods(CLUSTER, uid(1)) == ((), 0)


class TestBudgets:
    def test_one_that_allows_nothing_refuses_for_ever(self, scene: Scene) -> None:
        """A2."""
        pod = scene.pod(Obeys(), name="db")
        scene.world.budget(CLUSTER, "keep-db", "db")
        for _ in range(3):
            assert "keep-db" in str(scene.world.evict(CLUSTER, uid(1), {pod: 30})[pod])
            scene.clock.advance(5)
        assert len(scene.world.facts(what=What.EVICTION_REFUSED)) == 1
        scene.world.signal(CLUSTER, uid(1), {pod: 30})
        assert len(scene.world.facts(what=What.SIGTERM)) == 1

    def test_one_that_keeps_two_of_three_lets_one_go_at_a_time(self, scene: Scene) -> None:
        pods = scene.world.run_pods(CLUSTER, "node-1", 3, Obeys(5), 30, "web")
        scene.world.budget(CLUSTER, "two-webs", "web", 2)
        answers = scene.world.evict(CLUSTER, uid(1), dict.fromkeys(pods, 30))
        assert [answers[pod] is None for pod in pods] == [True, False, False]

    def test_two_over_one_pod_are_an_internal_error(self, scene: Scene) -> None:
        """A3."""
        pod = scene.pod(Obeys(), name="db")
        scene.world.budget(CLUSTER, "one", "db", 0)
        scene.world.budget(CLUSTER, "two", "db", 0)
        assert "internal error" in str(scene.world.evict(CLUSTER, uid(1), {pod: 30})[pod])

    def test_other_pods_and_told_pods_are_not_held(self, scene: Scene) -> None:
        held, other = scene.pod(IgnoresSigterm(), name="db"), scene.pod(Obeys(), name="web")
        scene.world.signal(CLUSTER, uid(1), {held: 100})
        scene.world.budget(CLUSTER, "keep-db", "db")
        answers = scene.world.evict(CLUSTER, uid(1), {held: 30, other: 30, "gone": 30})
        assert answers == {held: None, other: None, "gone": None}


class TestWorkloads:
    def test_pods_go_to_the_emptiest_node_that_takes_them(self, scene: Scene) -> None:
        scene.running_node(2)
        scene.running_node(3)
        scene.world.cordon(CLUSTER, "node-3")
        scene.world.run_pods(CLUSTER, count=4)
        assert [len(scene.pod_uids(node)) for node in (1, 2, 3)] == [2, 2, 0]

    def test_pods_that_fit_nowhere_wait_for_a_node(self) -> None:
        scene = Scene()
        scene.world.create_control_plane(CLUSTER, "alpha")
        scene.world.run_pods(CLUSTER, count=3, gpus=4)
        scene.running_node(1)
        assert len(scene.pod_uids(1)) == 2
        scene.running_node(2)
        assert len(scene.pod_uids(2)) == 1

    def test_pods_choose_their_class(self) -> None:
        scene = Scene()
        scene.world.create_control_plane(CLUSTER, "alpha")
        scene.world.create_instance(scene.order(2, compute_class="standard"))
        scene.running_node(1)
        scene.world.admit(CLUSTER, uid(2))
        scene.world.run_pods(CLUSTER, count=2, on="preemptible")
        assert (len(scene.pod_uids(1)), len(scene.pod_uids(2))) == (2, 0)

    def test_a_workloads_pod_is_replaced_elsewhere(self, scene: Scene) -> None:
        scene.running_node(2)
        scene.world.cordon(CLUSTER, "node-2")
        (pod,) = scene.world.run_pods(CLUSTER, reschedule=True, behaviour=Obeys(5))
        scene.world.cordon(CLUSTER, "node-2", cordoned=False)
        scene.world.notify(CLUSTER, uid(1), "TogetherPreempted", "needed elsewhere", at(T0 + 400))
        scene.world.signal(CLUSTER, uid(1), {pod: 30})
        assert scene.pod_uids(2) == []
        scene.clock.advance(5)
        assert (len(scene.pod_uids(1)), len(scene.pod_uids(2))) == (0, 1)

    def test_one_that_finished_is_not_replaced(self, scene: Scene) -> None:
        scene.world.run_pods(CLUSTER, reschedule=True, behaviour=FinishesAfter(10))
        scene.clock.advance(100)
        assert scene.world.nodes(CLUSTER)[0].workload_pods == 0

    def test_pods_of_a_lost_node_are_replaced_when_it_is_removed(self, scene: Scene) -> None:
        scene.world.run_pods(CLUSTER, reschedule=True)
        scene.running_node(2)
        scene.world.vanish("h1")
        scene.world.remove(CLUSTER, uid(1))
        assert len(scene.pod_uids(2)) == 1

    def test_one_that_tolerates_everything_lands_on_the_cordoned_node_again(self, scene: Scene) -> None:
        """B3."""
        scene.running_node(2)
        (pod,) = scene.world.run_pods(
            CLUSTER, "node-1", behaviour=Obeys(5), reschedule=True, tolerates_everything=True
        )
        scene.world.cordon(CLUSTER, "node-1")
        for _ in range(3):
            (pod,) = scene.pod_uids(1)
            scene.world.signal(CLUSTER, uid(1), {pod: 30})
            scene.clock.advance(5)
        assert scene.pod_uids(1) not in ([], [pod])
        assert scene.pod_uids(2) == []


def test_pods_for_what_is_not_there_are_an_error(scene: Scene) -> None:
    with pytest.raises(NotFound, match="no cluster"):
        scene.world.run_pods("nowhere")
    with pytest.raises(NotFound, match="no node"):
        scene.world.run_pods(CLUSTER, "node-9")


def test_times_of_the_tests_are_counted_from_the_start() -> None:
    assert since(START) == 0
