"""Provider `kwok` keeps the contract of all providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract import test_providers, test_volumes_and_restarts
from tests.live.kwok import KwokRig

CONTRACT = {
    name: test
    for module in (test_providers, test_volumes_and_restarts)
    for name, test in vars(module).items()
    if name.startswith("test_") and not set(test.__annotations__).isdisjoint({"machines", "rig"})
}
_DRIVERS = [
    name
    for name, test in CONTRACT.items()
    if test.__module__.endswith("test_volumes_and_restarts") and "machines" not in test.__annotations__
]
for name in _DRIVERS:
    del CONTRACT[name]
globals().update(CONTRACT)


@pytest.fixture
async def rig(tmp_path: Path, programs: object, kwok_program: object) -> AsyncIterator[KwokRig]:
    one = KwokRig(tmp_path / "kwok")
    await one.kwok.begin()
    yield one
    await one.kwok.close()


@pytest.fixture
def machines(rig: KwokRig) -> KwokRig:
    return rig


def test_the_whole_contract_is_here() -> None:
    assert len(CONTRACT) >= 11
