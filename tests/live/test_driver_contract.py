"""The suite for drivers (tests/contract), on a real control plane with our rights there and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract import test_drivers, test_volumes_and_restarts
from tests.contract.test_drivers import *  # noqa: F403  # its tests
from tests.contract.test_volumes_and_restarts import (  # noqa: F401  # its tests of drivers
    test_a_cluster_that_does_not_answer_takes_no_volume,
    test_a_notice_that_was_taken_back_can_be_given_again,
    test_a_volume_is_put_grown_and_dropped_each_as_often_as_you_like,
)
from tests.live.drains import KwokDriverRig, Place

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def rig(place: Place) -> AsyncIterator[KwokDriverRig]:
    await place.clear()
    one = KwokDriverRig(place)
    yield one
    await one.close()


async def test_nothing_of_the_suite_is_left_out() -> None:
    here = set(globals())
    for suite in (test_drivers, test_volumes_and_restarts):
        for name, test in vars(suite).items():
            if name.startswith("test_") and "rig" in getattr(test, "__annotations__", {}):
                assert name in here, name
