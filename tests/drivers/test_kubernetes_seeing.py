"""Looks at clusters in which most pods are on nodes of others."""

from __future__ import annotations

import pytest

from ebbtide.drivers.base import DriverError
from ebbtide.drivers.kubernetes import nodes, pods
from ebbtide.kube.errors import KubeError
from tests.drivers.fake_api import Call, Json, refusal
from tests.drivers.kubernetes_rig import CLUSTER, NODE, Rig

OTHERS = 1100  # three pages


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.api.pod(NODE.name, "first")
    for at in range(OTHERS):
        rig.api.pod("of-others", f"other-{at}")
    rig.api.pod(NODE.name, "last")
    return rig


def refuse_page(rig: Rig, number: int, error: KubeError, times: int = 1) -> None:
    """Answer the nth page of pods of each listing with an error, so many times."""
    pages, left = [0], [times]

    def before(call: Call) -> None:
        if call.what != f"LIST {pods.ALL}":
            return
        pages[0] += 1
        if pages[0] % number == 0 and left[0]:
            left[0] -= 1
            raise error

    rig.api.before = before


async def test_of_a_cluster_only_what_is_on_our_nodes_is_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    seen = nodes.seen

    def noting(listed: list[Json], work: list[Json]) -> object:
        kept.extend(pod["metadata"]["name"] for pod in work)
        return seen(listed, work)

    monkeypatch.setattr(nodes, "seen", noting)
    (one,) = await rig.driver.observe(CLUSTER)
    assert (one.uid, one.workload_pods) == (NODE.uid, 2)
    assert kept == ["first", "last"]
    assert rig.api.sent("LIST").count(f"LIST {pods.ALL}") == 3


async def test_a_look_whose_version_expires_between_two_pages_begins_again(rig: Rig) -> None:
    refuse_page(rig, 3, refusal(410, "the version is too old", "Expired"))
    (one,) = await rig.driver.observe(CLUSTER)
    assert one.workload_pods == 2, "nothing is counted twice"
    assert rig.api.sent("LIST").count(f"LIST {pods.ALL}") == 6

    refuse_page(rig, 3, refusal(410, "the version is too old", "Expired"), times=2)
    with pytest.raises(DriverError, match="too old"):
        await rig.driver.observe(CLUSTER)
