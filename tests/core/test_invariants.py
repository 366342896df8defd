"""Each invariant is kept by a sound ledger and noticed when it is broken."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from ebbtide.core.capacity import PoolView
from ebbtide.core.hosts import Bucket, HostState
from ebbtide.core.invariants import check, check_step, smallest_set
from ebbtide.core.metering import epoch_s
from ebbtide.core.nodes import ComputeClass, EndReason, Phase
from ebbtide.core.snapshot import (
    ClusterFact,
    HostFact,
    IntervalFact,
    NodeFact,
    PoolFact,
    Snapshot,
    buckets,
)
from tests.core.builders import NOW, after

T0 = epoch_s(NOW)
STANDARD = NodeFact(
    uid="std",
    no=1,
    pool="h100",
    compute_class=ComputeClass.STANDARD,
    phase=Phase.RUNNING,
    cluster_id="c",
    host_id="h1",
    running_at=after(-900),
)
RUNNING = replace(STANDARD, uid="run", no=2, compute_class=ComputeClass.PREEMPTIBLE, host_id="h2")
DRAINING = replace(
    RUNNING,
    uid="drain",
    no=3,
    phase=Phase.DRAINING,
    host_id="h3",
    end_reason=EndReason.PREEMPTED,
    notified_at=after(-100),
    first_signal_at=after(-99),
    deadline=after(200),
)
GONE = replace(
    DRAINING,
    uid="gone",
    no=4,
    phase=Phase.REMOVED,
    host_id="h4",
    notified_at=after(-600),
    first_signal_at=after(-598),
    deadline=after(-300),
    removing_at=after(-298),
    provider_gone_at=after(-250),
    removed_at=after(-250),
    last_healthy_at=after(-299),
)
PROMISED = NodeFact(
    uid="wait", no=5, pool="h100", compute_class=ComputeClass.STANDARD, phase=Phase.PENDING, cluster_id="c"
)
MAINTAINED = NodeFact(
    uid="fix",
    no=6,
    pool="h100",
    compute_class=ComputeClass.MAINTENANCE,
    phase=Phase.RUNNING,
    host_id="h7",
    pinned_host_id="h7",
)
SOUND = Snapshot(
    at=NOW,
    hosts=(
        HostFact("h1", "h100", HostState.AVAILABLE, "std"),
        HostFact("h2", "h100", HostState.CORDONED, "run"),
        HostFact("h3", "h100", HostState.AVAILABLE, "drain"),
        HostFact("h4", "h100", HostState.AVAILABLE),
        HostFact("h5", "h100", HostState.QUARANTINED),
        HostFact("h6", "h100", HostState.RETIRED),
        HostFact("h7", "h100", HostState.CORDONED, "fix"),
    ),
    nodes=(STANDARD, RUNNING, DRAINING, GONE, PROMISED, MAINTAINED),
    clusters=(ClusterFact("c", 2, lowered=False),),
    pools=(PoolFact("h100", free=1, leaving=1, promised=1, headroom=1, total=6),),
    intervals=(
        IntervalFact(1, T0 - 900, T0 - 400),
        IntervalFact(1, T0 - 400),
        IntervalFact(2, T0 - 900),
        IntervalFact(3, T0 - 900),
        IntervalFact(4, T0 - 900, T0 - 300),
    ),
)


def with_node(uid: str, **changes: Any) -> Snapshot:
    return replace(SOUND, nodes=tuple(replace(n, **changes) if n.uid == uid else n for n in SOUND.nodes))


def with_host(host_id: str, **changes: Any) -> Snapshot:
    return replace(SOUND, hosts=tuple(replace(h, **changes) if h.id == host_id else h for h in SOUND.hosts))


def with_pool(**changes: Any) -> Snapshot:
    return replace(SOUND, pools=(replace(SOUND.pools[0], **changes),))


def with_intervals(node_no: int, *spans: tuple[int, int | None]) -> Snapshot:
    others = tuple(fact for fact in SOUND.intervals if fact.node_no != node_no)
    mine = tuple(IntervalFact(node_no, T0 + a, None if b is None else T0 + b) for a, b in spans)
    return replace(SOUND, intervals=others + mine)


def test_a_sound_ledger_has_no_violation() -> None:
    assert check(SOUND) == []
    assert check_step(SOUND, SOUND) == []
    assert check(Snapshot(NOW)) == []


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (with_node("run", host_id="h3"), "1: host h3 has two occupants, run and drain"),
        (with_node("run", host_id=None), "1: node run is RUNNING without a host"),
        (with_host("h4", occupant_uid="gone"), "1: host h4 is said to be held by gone and is held by nobody"),
        (with_host("h3", occupant_uid=None), "1: host h3 is said to be held by nobody and is held by drain"),
        (with_pool(free=2), "1: pool h100 counts 2 free hosts and has 1"),
        (with_pool(promised=7), "1: pool h100 promised 7 hosts with 1 free and 1 leaving"),
        (with_node("std", end_reason=EndReason.PREEMPTED), "2: the standard node std was preempted"),
        (with_node("drain", notified_at=None), "3: node drain drains without a notice"),
        (with_node("gone", notified_at=None), "3: node gone was preempted while it ran, without a notice"),
        (with_node("drain", deadline=None), "3: node drain was noticed at"),
        (with_node("drain", deadline=after(-101)), "3: node drain was noticed at"),
        (with_node("drain", first_signal_at=after(-101)), "3: node drain was signalled at"),
        (with_node("gone", removing_at=after(-599)), "3: node gone was removed at"),
        (with_node("gone", removing_at=after(-601)), "3: node gone was removed at"),
        (with_node("gone", removing_at=after(-294)), "3: node gone should have left by"),
        (with_node("drain", deadline=after(-6)), "3: node drain should have left by"),
        (with_node("gone", provider_gone_at=None), "4: host h4 was freed without word"),
        (with_node("gone", provider_gone_at=after(-249)), "4: host h4 was freed before"),
        (with_node("gone", removed_at=None), "4: host h4 was freed before"),
        (replace(SOUND, clusters=(ClusterFact("c", 1, False),)), "5: cluster c holds 2 preemptible nodes"),
        (
            replace(SOUND, clusters=(ClusterFact("c", 0, lowered=True),)),
            "5: cluster c holds 1 preemptible nodes",
        ),
        (with_intervals(2, (-900, -300), (-200, None)), "6: node no. 2 is billed until"),
        (with_intervals(2, (-900, -300), (-400, None)), "6: node no. 2 is billed until"),
        (with_intervals(2, (-900, None), (-300, None)), "6: node no. 2 is billed until None"),
        (with_intervals(2, (-900, -950), (-950, None)), "6: node no. 2 is billed until"),
        (with_intervals(4, (-900, -950)), "6: node no. 4 has an interval that ends before it starts"),
        (with_intervals(2), "6: node run is RUNNING and not billed"),
        (with_intervals(3), "6: node drain is DRAINING and not billed"),
        (with_intervals(2, (-899, None)), "6: node run runs since"),
        (with_intervals(2, (-900, -100)), "6: node run is RUNNING and billed only until"),
        (with_intervals(4, (-900, None)), "6: node gone is REMOVED and still billed"),
        (with_intervals(4, (-900, -299)), "6: node gone is billed until"),
        (with_intervals(4, (-900, -301)), "6: node gone is billed until"),
        (with_pool(total=7), "9: pool h100 has 7 hosts and 6 in its buckets"),
        (with_host("h7", state=HostState.AVAILABLE), "1: host h7 is in maintenance and counted as supply"),
        (with_node("fix", pinned_host_id=None), "1: maintenance fix names no host"),
        (with_node("fix", pinned_host_id="h5"), "1: maintenance fix names host h5 and holds h7"),
        (with_host("h3", occupant_uid="who"), "9: host h3 is held by who, which is not known"),
        (with_host("h1", pool="other"), "9: hosts belong to pool other, which is not known"),
    ],
)
def test_a_broken_ledger_is_noticed(broken: Snapshot, expected: str) -> None:
    assert any(sentence.startswith(f"invariant {expected}") for sentence in check(broken)), check(broken)


def billed(until_s: int, end_reason: EndReason, healthy_s: int) -> list[str]:
    """What is said of the removed node when it is billed until then and was last seen healthy then."""
    gone = with_node("gone", end_reason=end_reason, last_healthy_at=after(healthy_s))
    return check(replace(gone, intervals=with_intervals(4, (-900, until_s)).intervals))


def test_a_bill_reaches_the_last_healthy_observation_and_for_a_lost_host_not_past_it() -> None:
    assert billed(-310, EndReason.PREEMPTED, -310) == []
    assert billed(-300, EndReason.PREEMPTED, -310) == []
    assert billed(-310, EndReason.LOST, -310) == []
    assert billed(-311, EndReason.PREEMPTED, -310) == [
        f"invariant 6: node gone is billed until {T0 - 311} only and was there longer"
    ]
    assert billed(-309, EndReason.LOST, -310) == [
        f"invariant 6: node gone is billed until {T0 - 309}, past {T0 - 310}"
    ]


def test_a_host_that_broke_excuses_an_open_promise_only_when_nothing_is_left_to_take() -> None:
    """One host (h5) is broken and one more is promised than is coming."""
    short = replace(SOUND, pools=(replace(SOUND.pools[0], promised=3),))
    assert check(short) == []  # the running node is on a cordoned host: taking it would help nobody
    hosts = tuple(replace(h, state=HostState.AVAILABLE) if h.id == "h2" else h for h in short.hosts)
    assert any("promised 3" in sentence for sentence in check(replace(short, hosts=hosts)))


def test_a_late_notice_and_a_down_time_move_the_end_of_a_drain() -> None:
    late = with_node("gone", ends_at=after(-260), removing_at=after(-258))
    late = replace(late, intervals=with_intervals(4, (-900, -300)).intervals)
    assert check(late) == []
    down = with_node("drain", deadline=after(-60))
    assert any("should have left" in sentence for sentence in check(down))
    assert check(replace(down, down=((after(-70), after(-3)),))) == []
    assert any("should have left" in s for s in check(replace(down, down=((after(-70), after(-6)),))))
    assert any("should have left" in s for s in check(replace(down, down=((after(-40), after(-3)),))))


def test_a_down_time_that_was_over_before_changes_nothing() -> None:
    assert check(replace(SOUND, down=((after(-900), after(-700)),))) == []


def test_missing_hosts_are_those_neither_free_nor_leaving() -> None:
    pool = SOUND.pools[0]
    assert [replace(pool, promised=count).missing for count in (0, 2, 3, 5)] == [0, 0, 1, 3]


def test_lowered_targets_excuse_draining_nodes() -> None:
    for lowered in (True, None):
        after_it = replace(SOUND, clusters=(ClusterFact("c", 1, lowered),))
        assert check(after_it) == []
        assert check_step(SOUND, after_it) == []


def test_a_refill_beyond_a_target_that_draining_nodes_still_fill_is_noticed() -> None:
    more = replace(RUNNING, uid="more", no=6, phase=Phase.SCHEDULING, running_at=None, host_id="h4")
    filled = replace(SOUND, nodes=(*SOUND.nodes, more), clusters=(ClusterFact("c", 2),))
    assert check_step(SOUND, filled) == ["invariant 5: cluster c rose to 3 nodes of 2"]
    assert check_step(SOUND, replace(filled, clusters=(ClusterFact("c", 3),))) == []


def step(uid: str, **changes: Any) -> list[str]:
    return check_step(SOUND, with_node(uid, **changes))


LATE = with_node("drain", ends_at=after(260))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (step("drain", deadline=after(201)), "invariant 3: the deadline of node drain went from"),
        (step("drain", deadline=None), "invariant 3: the deadline of node drain went from"),
        (step("drain", notified_at=NOW), "invariant 3: node drain was noticed at"),
        (
            check_step(LATE, with_node("drain", ends_at=after(320))),
            "invariant 3: node drain got a second late notice",
        ),
        (step("drain", phase=Phase.RUNNING), "node drain went from DRAINING to RUNNING"),
        (step("gone", phase=Phase.REMOVING), "node gone went from REMOVED to REMOVING"),
        (step("run", compute_class=ComputeClass.STANDARD), "node run was preemptible and became standard"),
        (step("drain", end_reason=EndReason.LOST), "node drain ended as preempted and then as lost"),
        (step("run", host_id="h5"), "node run moved from host h2 to h5"),
        (
            step("run", end_reason=EndReason.PREEMPTED, phase=Phase.DRAINING),
            "invariant 5: pool h100 took 1 nodes for 0 hosts asked for or broken",
        ),
    ],
)
def test_a_step_that_must_not_happen_is_noticed(found: list[str], expected: str) -> None:
    assert len(found) == 1
    assert found[0].startswith(expected)


@pytest.mark.parametrize(
    ("before", "uid", "changes"),
    [
        (SOUND, "drain", {"deadline": after(100)}),  # nearer is allowed
        (SOUND, "drain", {"ends_at": after(260)}),  # the first late notice
        (LATE, "drain", {"ends_at": after(260), "phase": Phase.REMOVING}),
        (SOUND, "run", {"phase": Phase.REMOVED, "end_reason": EndReason.LOST}),  # several moves in one step
    ],
)
def test_a_step_that_may_happen_is_not(before: Snapshot, uid: str, changes: dict[str, datetime]) -> None:
    assert check_step(before, with_node(uid, **changes)) == []


def test_nodes_may_be_taken_for_new_demand_for_broken_hosts_and_for_promises_left_open() -> None:
    taking = with_node("run", end_reason=EndReason.PREEMPTED, phase=Phase.DRAINING)
    claim = replace(PROMISED, uid="new", no=6)
    assert check_step(SOUND, replace(taking, nodes=(*taking.nodes, claim))) == []
    quarantined = with_host("h4", state=HostState.QUARANTINED).hosts
    assert check_step(SOUND, replace(taking, hosts=quarantined)) == []
    assert check_step(with_pool(promised=3), taking) == []


@pytest.mark.parametrize(
    ("free", "leaving", "promised", "hosts", "needed"),
    [(0, 0, 0, 1, 1), (1, 0, 0, 1, 0), (0, 1, 0, 1, 0), (1, 1, 1, 2, 1), (0, 0, 2, 1, 1)],
)
def test_smallest_set(free: int, leaving: int, promised: int, hosts: int, needed: int) -> None:
    view = PoolView("h100", 8, {"b": free}, leaving=leaving, promised=promised)
    assert list(smallest_set(view, hosts, needed)) == []
    assert list(smallest_set(view, hosts, needed + 1)) == [
        f"a claim of {hosts} hosts on pool h100 takes {needed + 1} nodes where {needed} serve it"
    ]


def test_buckets_add_up() -> None:
    assert {name: count for name, count in buckets(SOUND)["h100"].items() if count} == {
        Bucket.STANDARD: 1,
        Bucket.PREEMPTIBLE: 1,
        Bucket.DRAINING: 1,
        Bucket.HEADROOM: 1,
        Bucket.BROKEN: 1,
        Bucket.CORDONED: 1,
    }


def test_a_host_that_goes_into_maintenance_is_one_reason_to_take_a_node_and_not_two() -> None:
    """The host that broke and the maintenance that asks for it are the same host."""
    lent = [replace(RUNNING, uid=f"lent-{number}", no=10 + number, host_id=f"x{number}") for number in (1, 2)]
    rest = tuple(node for node in SOUND.nodes if node.uid != "fix")
    free = tuple(replace(host, state=HostState.AVAILABLE, occupant_uid=None) if host.id == "h7" else host
                 for host in SOUND.hosts)  # fmt: skip
    before = replace(SOUND, hosts=free, nodes=(*rest, *lent))
    taken = [replace(node, phase=Phase.DRAINING, end_reason=EndReason.PREEMPTED) for node in lent]
    one = check_step(before, replace(SOUND, nodes=(*SOUND.nodes, taken[0], lent[1])))
    both = check_step(before, replace(SOUND, nodes=(*SOUND.nodes, *taken)))
    assert one == []
    assert both == ["invariant 5: pool h100 took 2 nodes for 1 hosts asked for or broken"]
