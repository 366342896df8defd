"""The drain's timetable."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.drain import (
    DrainPolicy,
    DrainState,
    DrainStep,
    PodKind,
    PodSeen,
    grace_for,
    late_end,
    longest_warning_s,
    next_step,
    signal_time,
)
from ebbtide.core.nodes import DrainKind
from tests.core.builders import NOW, after

POLICY = DrainPolicy()
RECLAIM = DrainState(DrainKind.RECLAIM, after(300), after(300))
RELEASE = DrainState(DrainKind.RELEASE, after(300), after(300))


def a_pod(
    name: str = "p", kind: PodKind = PodKind.WORKLOAD, grace_s: int = 30, ends_in_s: float | None = None
) -> PodSeen:
    return PodSeen(f"uid-{name}", name, kind, grace_s, None if ends_in_s is None else after(ends_in_s))


def step(drain: DrainState, *pods: PodSeen, at_s: float = 0, attachments: int = 0) -> DrainStep:
    return next_step(drain, pods, after(at_s), POLICY, attachments)


@pytest.mark.parametrize(
    ("own_s", "at_s", "expected_s"),
    [
        (300, 0, 297),  # 300 becomes 297: an obedient pod is gone before the deadline
        (297, 0, 297),
        (30, 0, 30),
        (3_600, 0, 297),
        (300, 0.5, 296),
        (30, 280, 17),
        (30, 297, 1),
        (30, 299.9, 1),
        (0, 0, 1),
    ],
)
def test_grace_is_the_pods_own_cut_to_what_is_left(own_s: int, at_s: float, expected_s: int) -> None:
    assert grace_for(own_s, after(at_s), after(300), POLICY) == expected_s


def test_a_reclaim_tells_every_workload_pod_at_once() -> None:
    found = step(
        RECLAIM, a_pod("a", grace_s=300), a_pod("b"), a_pod("d", PodKind.DAEMON), a_pod("m", PodKind.MIRROR)
    )
    assert [(order.name, order.grace_s) for order in found.signal] == [("a", 297), ("b", 30)]
    assert not found.evict
    assert not found.done
    assert [pod.name for pod in found.waiting_for] == ["a", "b"]
    assert found.due == after(5)


@pytest.mark.parametrize("kind", [PodKind.DAEMON, PodKind.MIRROR, PodKind.FINISHED])
def test_pods_that_do_not_count_do_not_hold_a_node(kind: PodKind) -> None:
    assert step(RECLAIM, a_pod("x", kind)) == DrainStep(done=True)


def test_a_volume_attachment_holds_an_empty_node_until_its_time_is_over() -> None:
    held = step(RECLAIM, attachments=1)
    assert not held.done
    assert held.due == after(5)
    assert step(RECLAIM, at_s=300, attachments=1).done


def test_grace_is_one_shot() -> None:
    assert not step(RECLAIM, a_pod(ends_in_s=200), at_s=10).signal
    assert not step(RECLAIM, a_pod(ends_in_s=300), at_s=10).signal


def test_a_pod_that_would_end_after_the_deadline_is_shortened() -> None:
    [order] = step(RECLAIM, a_pod(grace_s=600, ends_in_s=301), at_s=10).signal
    assert order.shorten
    assert order.grace_s == 287


def test_critical_pods_wait_for_the_others_until_the_reserve() -> None:
    both = (a_pod("work", ends_in_s=290), a_pod("dns", PodKind.CRITICAL))
    assert not step(RECLAIM, *both, at_s=269).signal
    assert [order.name for order in step(RECLAIM, *both, at_s=270).signal] == ["dns"]
    assert [order.name for order in step(RECLAIM, both[1]).signal] == ["dns"]
    assert step(RECLAIM, *both, at_s=268).due == after(270)


def test_at_the_deadline_nothing_is_waited_for() -> None:
    found = step(RECLAIM, a_pod("stubborn", ends_in_s=297), at_s=300)
    assert found.done
    assert found.overdue
    assert [pod.name for pod in found.waiting_for] == ["stubborn"]
    assert not found.signal


def test_a_release_evicts_until_a_pods_grace_must_begin() -> None:
    pod = a_pod(grace_s=60)
    early = step(RELEASE, pod)
    assert [order.name for order in early.evict] == ["p"]
    assert not early.signal
    assert [order.name for order in step(RELEASE, pod, at_s=229).evict] == ["p"]
    late = step(RELEASE, pod, at_s=230)
    assert [(order.name, order.grace_s) for order in late.signal] == [("p", 60)]
    assert not late.evict
    assert step(RELEASE, pod, at_s=228).due == after(230)


def test_a_release_gives_a_pod_with_a_long_grace_all_of_the_window() -> None:
    assert [order.grace_s for order in step(RELEASE, a_pod(grace_s=300)).signal] == [297]


@pytest.mark.parametrize(
    ("at_s", "expected_s"), [(0, None), (240, None), (240.5, 300.5), (300, 360), (10_000, 10_060)]
)
def test_a_late_notice_only_when_less_than_its_length_is_left(at_s: float, expected_s: float | None) -> None:
    assert late_end(after(300), after(at_s), POLICY) == (None if expected_s is None else after(expected_s))


def test_a_late_notice_gives_its_own_end_to_pods() -> None:
    late = DrainState(DrainKind.RECLAIM, after(300), after(460))
    assert [order.grace_s for order in step(late, a_pod(grace_s=300), at_s=400).signal] == [57]


PODS = st.lists(
    st.builds(
        PodSeen,
        uid=st.uuids().map(str),
        name=st.sampled_from("abcdef"),
        kind=st.sampled_from(PodKind),
        grace_s=st.integers(0, 700),
        ends_by=st.none() | st.floats(-10, 700).map(after),
    ),
    max_size=6,
    unique_by=lambda pod: pod.uid,
)


@given(
    kind=st.sampled_from(DrainKind),
    pods=PODS,
    at_s=st.floats(0, 400, allow_nan=False),
    attachments=st.integers(0, 2),
)
def test_any_drain_ends_in_time_and_always_knows_when_to_look_again(
    kind: DrainKind, pods: list[PodSeen], at_s: float, attachments: int
) -> None:
    now = after(at_s)
    found = next_step(DrainState(kind, after(300), after(300)), pods, now, POLICY, attachments)
    counted = {pod.uid: pod for pod in pods if pod.kind in (PodKind.WORKLOAD, PodKind.CRITICAL)}
    if now >= after(300) or (not counted and not attachments):
        assert found.done
        assert not found.signal
        assert not found.evict
        return
    assert not found.done
    assert found.due is not None
    assert now < found.due <= min(now + timedelta(seconds=5), after(300))
    told = [order.uid for order in (*found.signal, *found.evict)]
    assert len(told) == len(set(told))
    assert set(told) <= set(counted)
    for order in found.signal:
        assert order.grace_s >= 1
        assert order.grace_s == 1 or now + timedelta(seconds=order.grace_s) <= after(297)
    if kind is DrainKind.RECLAIM:
        assert not found.evict
        untold = {uid for uid, pod in counted.items() if pod.kind is PodKind.WORKLOAD and pod.ends_by is None}
        assert untold <= {order.uid for order in found.signal}


@given(grace_s=st.integers(1, 290), at_s=st.integers(0, 299))
def test_a_release_never_costs_a_pod_of_its_own_grace_when_it_was_there_from_the_start(
    grace_s: int, at_s: int
) -> None:
    """Looked at whenever due, the polite phase of a pod ends with its whole grace still ahead."""
    found = step(RELEASE, a_pod(grace_s=grace_s), at_s=at_s)
    if found.evict:
        assert found.due is not None
        assert grace_for(grace_s, found.due, after(300), POLICY) == grace_s


def test_now_is_a_value() -> None:
    assert step(RECLAIM, a_pod(), at_s=7) == step(RECLAIM, a_pod(), at_s=7)
    assert NOW.tzinfo is not None


WARNED = DrainState(DrainKind.RECLAIM, after(300), after(300), after(60))


def test_a_warning_comes_before_any_signal_and_cuts_the_grace() -> None:
    """A5: SIGTERM at T+60, D where it was."""
    early = step(WARNED, a_pod("a", grace_s=300), a_pod("b"), at_s=59)
    assert (early.signal, early.evict, early.done) == ((), (), False)
    assert early.due == after(60)
    assert [pod.name for pod in early.waiting_for] == ["a", "b"]
    due = step(WARNED, a_pod("a", grace_s=300), a_pod("b"), at_s=60)
    assert [(order.name, order.grace_s) for order in due.signal] == [("a", 237), ("b", 30)]


def test_a_warned_node_that_is_empty_leaves_and_one_that_is_over_time_too() -> None:
    assert step(WARNED, at_s=1).done
    late = DrainState(DrainKind.RECLAIM, after(300), after(300), after(400))
    assert step(late, a_pod(), at_s=300).overdue


def test_a_warned_release_asks_politely_as_long_as_there_is_time() -> None:
    warned = DrainState(DrainKind.RELEASE, after(300), after(300), after(60))
    assert not step(warned, a_pod(grace_s=100), at_s=0).evict
    assert step(warned, a_pod(grace_s=100), at_s=60).evict
    assert step(warned, a_pod(grace_s=240), at_s=60).signal


@pytest.mark.parametrize(
    ("policy", "longest_s"),
    [
        (DrainPolicy(), 240),
        (DrainPolicy(late_notice_s=100), 200),
        (DrainPolicy(critical_reserve_s=60), 180),
        (DrainPolicy(window_s=40), 0),
    ],
)
def test_a_warning_leaves_time_that_is_worth_having(policy: DrainPolicy, longest_s: int) -> None:
    assert longest_warning_s(policy) == longest_s


@pytest.mark.parametrize(
    ("wanted_s", "due_s"), [(None, 0), (0, 0), (60, 60), (240, 240), (299, 240), (900, 240), (-5, 0)]
)
def test_sigterm_is_due_as_wanted_but_never_too_late(wanted_s: int | None, due_s: int) -> None:
    wanted = None if wanted_s is None else after(wanted_s)
    assert signal_time(NOW, wanted, after(300), POLICY) == after(due_s)


def test_a_window_too_short_for_a_warning_has_none() -> None:
    assert signal_time(NOW, after(10), after(40), POLICY) == NOW
