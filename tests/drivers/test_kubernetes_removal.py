"""Taking a node out of its cluster: what is forced, what is waited for, and interruptions."""

from __future__ import annotations

import contextlib

import pytest

from ebbtide.core import marks
from ebbtide.drivers.base import DriverError
from tests.drivers.fake_api import ATTACHMENTS, NODES, PODS, Call
from tests.drivers.kubernetes_rig import BUSY, CLUSTER, NODE, PATH, WEBHOOK, Rig, go_on, stop_at


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_an_empty_node_leaves_without_force_and_nothing_is_left(rig: Rig) -> None:
    await rig.driver.admit(CLUSTER, NODE)
    owner = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
    rig.api.pod(NODE.name, "shipper", metadata=owner)
    rig.api.pod(NODE.name, "done")["status"]["phase"] = "Succeeded"
    rig.api.things[f"{PODS}/done"]["status"]["phase"] = "Succeeded"
    rig.api.calls.clear()
    assert await rig.driver.remove(CLUSTER, NODE, stopped=False)
    assert not [one for one in rig.api.calls if "taints" in str(one.body)]
    assert rig.api.names(NODES) == set()
    assert rig.api.names(PODS) == set()
    assert not [path for path in rig.api.things if "leases" in path or "secrets" in path]
    deletes = rig.api.sent("DELETE")
    assert deletes[0] == f"DELETE {PATH}"  # else the daemon's pod comes again


async def test_what_came_onto_a_node_that_may_run_is_told_with_its_own_grace(rig: Rig) -> None:
    rig.api.pod(NODE.name, "late", grace_s=45)
    assert not await rig.driver.remove(CLUSTER, NODE, stopped=False, patient=False)
    assert rig.node["spec"]["unschedulable"]
    assert rig.api.things[f"{PODS}/late"]["metadata"]["deletionGracePeriodSeconds"] == 45


async def test_on_a_stopped_machine_the_taint_comes_first_then_force_then_the_node(rig: Rig) -> None:
    rig.api.pod(NODE.name, "a", exits_after_s=None)
    rig.api.off.add(NODE.name)
    assert await rig.driver.remove(CLUSTER, NODE)
    writes = [one for one in rig.api.calls if not one.what.startswith(("LIST", "GET"))]
    assert "out-of-service" in str(writes[0].body)
    assert writes[1].what == f"PATCH {PODS}/a/status"
    assert writes[1].body["status"]["phase"] == "Failed"
    assert (writes[2].what, writes[2].grace_s) == (f"DELETE {PODS}/a", 0)
    assert writes[3].what == f"DELETE {PATH}"


async def test_attachments_are_waited_for_until_patience_is_over(rig: Rig) -> None:
    rig.api.attachment("v", NODE.name)
    rig.api.attachment("w", "another-node")
    assert not await rig.driver.remove(CLUSTER, NODE)
    assert PATH in rig.api.things
    assert "out-of-service" in str(rig.node["spec"]["taints"])
    assert await rig.driver.remove(CLUSTER, NODE, patient=False)
    assert PATH not in rig.api.things


async def test_a_pod_that_somebody_else_holds_keeps_the_node_until_patience_is_over(rig: Rig) -> None:
    rig.api.pod(NODE.name, "held", metadata={"finalizers": ["theirs/hold"]})
    rig.api.off.add(NODE.name)
    assert not await rig.driver.remove(CLUSTER, NODE)
    assert await rig.driver.remove(CLUSTER, NODE, patient=False)
    assert rig.api.names(PODS) == {"held"}


async def test_a_rule_of_the_clusters_against_deletions_is_named_and_keeps_the_node_for_a_while(
    rig: Rig,
) -> None:
    rig.api.pod(NODE.name, "a")
    rig.api.off.add(NODE.name)
    rig.refuse("DELETE", f"{PODS}/a", WEBHOOK)
    with pytest.raises(DriverError, match="webhook"):
        await rig.driver.remove(CLUSTER, NODE)
    assert PATH in rig.api.things
    assert await rig.driver.remove(CLUSTER, NODE, patient=False)
    assert PATH not in rig.api.things


async def test_a_kubelet_that_registers_again_at_once_is_seen(rig: Rig) -> None:
    def again(call: Call) -> None:
        if call.what == f"DELETE {PATH}" and PATH not in rig.api.things:
            rig.api.node(NODE.uid, NODE.name)
            rig.api.after = lambda call: None

    rig.api.after = again
    assert not await rig.driver.remove(CLUSTER, NODE)
    assert await rig.driver.remove(CLUSTER, NODE)


async def test_a_removal_interrupted_anywhere_ends_the_same(rig: Rig) -> None:
    def begun() -> Rig:
        one = Rig()
        one.node["metadata"]["finalizers"] = [marks.FINALIZER]
        one.api.pod(NODE.name, "a", exits_after_s=None)
        one.api.off.add(NODE.name)
        return one

    whole = begun()
    assert await whole.driver.remove(CLUSTER, NODE)
    for number in range(1, len(whole.api.calls) + 1):
        for moment in ("before", "after"):
            one = begun()
            stop_at(one.api, number, moment)
            with contextlib.suppress(DriverError):  # a call that finds nothing has no moment after it
                assert not await one.driver.remove(CLUSTER, NODE) or moment == "after"
            go_on(one.api)
            assert await one.driver.remove(CLUSTER, NODE)
            assert {path for path in one.api.things if "/events/" not in path} == set()


async def test_a_node_that_is_being_deleted_is_admitted_without_a_hold(rig: Rig) -> None:
    rig.node["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["theirs/hold"]}
    await rig.driver.admit(CLUSTER, NODE)
    assert rig.node["metadata"]["finalizers"] == ["theirs/hold"]
    (seen,) = await rig.driver.observe(CLUSTER)
    assert seen.deleting


async def test_a_cordon_that_is_refused_keeps_no_node_for_ever(rig: Rig) -> None:
    rig.refuse("PATCH", PATH, WEBHOOK)
    with pytest.raises(DriverError):
        await rig.driver.remove(CLUSTER, NODE)
    assert await rig.driver.remove(CLUSTER, NODE, patient=False)
    assert PATH not in rig.api.things


def _with_volume(rig: Rig, name: str, claim: str, *, daemon: bool) -> None:
    owners = [{"kind": "DaemonSet", "controller": True}] if daemon else []
    volumes = [{"persistentVolumeClaim": {"claimName": claim}}, {"emptyDir": {}}]
    rig.api.pod(NODE.name, name, metadata={"ownerReferences": owners}, spec={"volumes": volumes})
    claim_ref = {"namespace": "default", "name": claim}
    volume = {"metadata": {"name": f"pv-{claim}"}, "spec": {"claimRef": claim_ref}}
    rig.api.put(f"/api/v1/persistentvolumes/pv-{claim}", volume)
    source = {"persistentVolumeName": f"pv-{claim}"}
    attachment = {"metadata": {"name": claim}, "spec": {"nodeName": NODE.name, "source": source}}
    rig.api.put(f"{ATTACHMENTS}/{claim}", attachment)


async def test_a_volume_that_only_a_daemon_uses_is_not_waited_for(rig: Rig) -> None:
    _with_volume(rig, "cache", "datasets", daemon=True)
    assert (await rig.driver.pods(CLUSTER, NODE)).attachments == 0
    _with_volume(rig, "job", "checkpoints", daemon=False)
    assert (await rig.driver.pods(CLUSTER, NODE)).attachments == 2
    del rig.api.things[f"{PODS}/job"]  # it is gone, and its volume is still attached
    assert (await rig.driver.pods(CLUSTER, NODE)).attachments == 1
    del rig.api.things[f"{ATTACHMENTS}/checkpoints"]
    assert await rig.driver.remove(CLUSTER, NODE, stopped=False)


async def test_a_volume_of_which_nothing_is_known_is_waited_for(rig: Rig) -> None:
    _with_volume(rig, "cache", "datasets", daemon=True)
    del rig.api.things["/api/v1/persistentvolumes/pv-datasets"]
    rig.api.attachment("inline", NODE.name)
    assert (await rig.driver.pods(CLUSTER, NODE)).attachments == 2


@pytest.mark.parametrize(("verb", "part"), [("LIST", ATTACHMENTS), ("GET", "/persistentvolumes")])
async def test_attachments_that_cannot_be_read_count_as_one_and_hide_no_pod(
    rig: Rig, verb: str, part: str
) -> None:
    _with_volume(rig, "cache", "datasets", daemon=True)
    rig.refuse(verb, part, BUSY)
    seen = await rig.driver.pods(CLUSTER, NODE)
    assert ([pod.name for pod in seen.pods], seen.attachments) == (["cache"], 1)
