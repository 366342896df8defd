"""Cluster phases: standard nodes and the control plane decide, preemptible ones have no say."""

import inspect

import pytest

from ebbtide.core.clusters import MOVES, ClusterPhase, check_move, phase_of
from ebbtide.core.nodes import IllegalMove

LIVE = set(ClusterPhase) - {ClusterPhase.DELETING, ClusterPhase.DELETED}


@pytest.mark.parametrize(
    ("control_plane_ready", "wanted", "running", "lost", "expected"),
    [
        (False, 1, 0, False, ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES),
        (False, 1, 1, True, ClusterPhase.WAITING_FOR_CONTROL_PLANE_NODES),
        (True, 1, 0, False, ClusterPhase.WAITING_FOR_DATA_PLANE_NODES),
        (True, 1, 1, False, ClusterPhase.READY),
        (True, 3, 1, False, ClusterPhase.WAITING_FOR_DATA_PLANE_NODES),
        (True, 3, 2, True, ClusterPhase.DEGRADED),
        (True, 1, 2, False, ClusterPhase.READY),
        (True, 1, 1, True, ClusterPhase.READY),
    ],
)
def test_phase_of(
    control_plane_ready: bool, wanted: int, running: int, lost: bool, expected: ClusterPhase
) -> None:
    found = phase_of(
        control_plane_ready=control_plane_ready,
        standard_wanted=wanted,
        standard_running=running,
        lost_standard=lost,
    )
    assert found is expected
    assert found in LIVE


def test_preemptible_nodes_are_not_even_asked() -> None:
    assert not [name for name in inspect.signature(phase_of).parameters if "preemptible" in name]


def test_a_live_cluster_moves_freely_and_deleting_is_final() -> None:
    for before in LIVE:
        assert MOVES[before] == (LIVE - {before}) | {ClusterPhase.DELETING}
    assert MOVES[ClusterPhase.DELETING] == {ClusterPhase.DELETED}
    assert not MOVES[ClusterPhase.DELETED]


@pytest.mark.parametrize("after", sorted(LIVE))
def test_a_cluster_being_deleted_does_not_come_back(after: ClusterPhase) -> None:
    with pytest.raises(IllegalMove):
        check_move(ClusterPhase.DELETING, after)
    check_move(after, ClusterPhase.DELETING)
