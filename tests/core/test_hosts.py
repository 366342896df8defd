"""Every host-second is in one bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.core.hosts import Bucket, HostState, bucket, split_headroom
from ebbtide.core.nodes import OCCUPYING, ComputeClass, Phase


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (HostState.AVAILABLE, Bucket.FREE),
        (HostState.CORDONED, Bucket.CORDONED),
        (HostState.QUARANTINED, Bucket.BROKEN),
        (HostState.RETIRED, None),
    ],
)
def test_an_empty_host_is_what_its_operator_says(state: HostState, expected: Bucket | None) -> None:
    assert bucket(state, None, None) is expected


@pytest.mark.parametrize(
    ("phase", "compute_class", "expected"),
    [
        (Phase.SCHEDULING, ComputeClass.STANDARD, Bucket.TURNING_OVER),
        (Phase.BOOTING, ComputeClass.PREEMPTIBLE, Bucket.TURNING_OVER),
        (Phase.BOOTSTRAPPING, ComputeClass.PREEMPTIBLE, Bucket.TURNING_OVER),
        (Phase.RUNNING, ComputeClass.STANDARD, Bucket.STANDARD),
        (Phase.RUNNING, ComputeClass.PREEMPTIBLE, Bucket.PREEMPTIBLE),
        (Phase.RUNNING, ComputeClass.EXTERNAL, Bucket.EXTERNAL),
        (Phase.RUNNING, ComputeClass.MAINTENANCE, Bucket.CORDONED),
        (Phase.DRAINING, ComputeClass.PREEMPTIBLE, Bucket.DRAINING),
        (Phase.REMOVING, ComputeClass.STANDARD, Bucket.TURNING_OVER),
    ],
)
@pytest.mark.parametrize("state", HostState)
def test_an_occupied_host_is_what_its_occupant_does(
    state: HostState, phase: Phase, compute_class: ComputeClass, expected: Bucket
) -> None:
    assert bucket(state, compute_class, phase) is expected


@pytest.mark.parametrize("compute_class", ComputeClass)
@pytest.mark.parametrize("phase", sorted(OCCUPYING))
def test_no_occupied_host_falls_out(compute_class: ComputeClass, phase: Phase) -> None:
    assert bucket(HostState.RETIRED, compute_class, phase) is not None


@given(
    counts=st.dictionaries(
        st.sampled_from([b for b in Bucket if b is not Bucket.HEADROOM]), st.integers(0, 50)
    ),
    headroom=st.integers(0, 60),
)
def test_headroom_comes_out_of_the_free_hosts_and_the_sum_stays(
    counts: dict[Bucket, int], headroom: int
) -> None:
    split = split_headroom(counts, headroom)
    assert sum(split.values()) == sum(counts.values())
    assert min(split.values()) >= 0
    assert split[Bucket.HEADROOM] == min(headroom, counts.get(Bucket.FREE, 0))
