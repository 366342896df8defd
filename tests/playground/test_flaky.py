"""Faults at the seams strike where they were told to."""

from __future__ import annotations

import pytest

from ebbtide.playground.flaky import Call, Flaky
from ebbtide.providers.base import Provider, Transient
from tests.contract.rigs import POOL, SimulatedProviderRig


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
def rig() -> SimulatedProviderRig:
    return SimulatedProviderRig()


def _wrapped(rig: SimulatedProviderRig) -> tuple[Flaky, Provider]:
    flaky = Flaky()
    return flaky, flaky.wrap(rig.provider)


async def test_without_faults_it_only_counts(rig: SimulatedProviderRig) -> None:
    flaky, provider = _wrapped(rig)
    order = rig.order("h1")
    await provider.create(order)
    assert len(await provider.list(POOL)) == 1
    assert flaky.calls == [Call(1, "create"), Call(2, "list")]


@pytest.mark.parametrize(("after", "there"), [(False, 0), (True, 1)])
async def test_a_call_dies_before_or_after_its_effect(
    rig: SimulatedProviderRig, after: bool, there: int
) -> None:
    flaky, provider = _wrapped(rig)
    await provider.list(POOL)
    flaky.strike(2, Killed(), after=after)
    await provider.list(POOL)
    with pytest.raises(Killed):
        await provider.create(rig.order("h1"))
    assert len(await provider.list(POOL)) == there


async def test_one_count_runs_over_all_that_is_wrapped(rig: SimulatedProviderRig) -> None:
    flaky = Flaky()
    first, second = flaky.wrap(rig.provider), flaky.wrap(rig.provider)
    flaky.strike(2, Killed())
    await first.list(POOL)
    with pytest.raises(Killed):
        await second.list(POOL)


async def test_a_verb_may_fail_so_many_times(rig: SimulatedProviderRig) -> None:
    flaky, provider = _wrapped(rig)
    flaky.strike_verb("stop", Transient("no answer"), Transient("no answer"))
    for _ in range(2):
        with pytest.raises(Transient):
            await provider.stop("n")
    assert await provider.stop("n")
    assert await provider.list(POOL) == []
