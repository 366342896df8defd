"""Each right that Ebbtide has in a cluster is needed: without it, something that it does there fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from ebbtide.clock import AnchoredClock
from ebbtide.core import marks
from ebbtide.core.drain import PodOrder
from ebbtide.core.events import Reason
from ebbtide.drivers.base import DriverError, Notice, OrderResult
from ebbtide.kube.client import PatchKind
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Forbidden
from ebbtide.kube.rights import Right, may, missing, rights
from tests.live.rights_bed import Bed, becomes, refused, without

Use = Callable[[Bed], Awaitable[None]]


class Nothing(AssertionError):
    """What the right is for did not happen, though nobody complained."""


def an_order(pod: dict) -> PodOrder:
    meta = pod["metadata"]
    return PodOrder(meta["uid"], meta["name"], 30, namespace=meta["namespace"])


async def look(bed: Bed) -> None:
    await bed.node()
    await bed.driver.observe(bed.cluster)


async def see_pods(bed: Bed) -> None:
    """Attachments that cannot be read count as one: without the right, a drain would last until its end."""
    seen = await bed.driver.pods(bed.cluster, await bed.node())
    if seen.attachments:
        raise Nothing("attachments cannot be read, so there is always one")


async def admit(bed: Bed) -> None:
    await bed.driver.admit(bed.cluster, await bed.node())


async def remove(bed: Bed) -> None:
    if not await bed.driver.remove(bed.cluster, await bed.node()):
        raise Nothing("something of the node is left")


async def notify(bed: Bed) -> None:
    """The cordon and the condition; and the event, which is not worth a drain."""
    node = await bed.node()
    deadline = AnchoredClock().now() + timedelta(seconds=300)
    await bed.driver.notify(bed.cluster, node, Notice(Reason.PREEMPTED, "demand", deadline))
    sent = await bed.admin.list(
        "/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={node.name}"
    )
    if not sent.items:
        raise Nothing("no event was sent")


async def signal(bed: Bed) -> OrderResult:
    """The condition that keeps Jobs from counting a failure, and the deletion."""
    node = await bed.node()
    pod = await bed.pod(node)
    labels = pod["metadata"]["labels"]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": pod["metadata"]["name"]},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
    await bed.admin.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    (result,) = await bed.driver.signal(bed.cluster, node, [an_order(pod)])
    told = await bed.admin.get(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
    assert told["metadata"]["deletionTimestamp"]
    conditions = told["status"].get("conditions", [])
    if not any(each["type"] == "DisruptionTarget" for each in conditions):
        raise Nothing("the pod has no condition DisruptionTarget")
    return result


async def tell(bed: Bed) -> None:
    await signal(bed)


async def say_which_budget(bed: Bed) -> None:
    if (await signal(bed)).overrode is None:
        raise Nothing("the budget that was not asked is not named")


async def evict(bed: Bed) -> None:
    node = await bed.node()
    pod = await bed.pod(node)
    (result,) = await bed.driver.evict(bed.cluster, node, [an_order(pod)])
    if result.refused:
        raise Nothing(result.refused)


async def join(bed: Bed) -> None:
    data = await bed.driver.join_data(bed.cluster, await bed.node())
    assert data["token"]
    if data["server"] != "https://announced.example:6443":
        raise Nothing(f"machines are sent to {data['server']}")


async def volume(bed: Bed) -> None:
    """Made, grown, dropped."""
    name = f"data-{(await bed.node()).uid}"
    manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"ebbtide.dev/volume-id": name}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Ti"},
            "csi": {"driver": "none.example", "volumeHandle": name},
        },
    }
    await bed.driver.put_volume(bed.cluster, manifest)
    await bed.driver.drop_volume(bed.cluster, name)


def watch(resource: str) -> Use:
    async def use(bed: Bed) -> None:
        path = f"/api/v1/{resource}"
        version = (await bed.ours.list(path)).resource_version
        async for _ in bed.ours.watch(path, resource_version=version, watch_s=1):
            break

    return use


USES: dict[str, Use] = {
    "get nodes": admit,
    "list nodes": look,
    "watch nodes": watch("nodes"),
    "patch nodes": admit,
    "delete nodes": remove,
    "patch nodes/status": notify,
    "list pods": see_pods,
    "watch pods": watch("pods"),
    "delete pods": tell,
    "patch pods/status": tell,
    "create pods/eviction": evict,
    "list poddisruptionbudgets": say_which_budget,
    "create events": notify,
    "list volumeattachments": see_pods,
    "get persistentvolumes": volume,
    "create persistentvolumes": volume,
    "patch persistentvolumes": volume,
    "delete persistentvolumes": volume,
    "create secrets in kube-system": join,
    "patch secrets in kube-system": join,
    "delete secrets in kube-system": remove,
    "delete leases in kube-node-lease": remove,
    "get configmaps cluster-info in kube-public": join,
}


def test_every_right_has_its_use() -> None:
    assert sorted(USES) == sorted(str(each) for each in rights())


async def test_with_all_rights_everything_works(bed: Bed) -> None:
    for use in dict.fromkeys(USES.values()):
        await use(bed)
    assert await missing(bed.ours) == []


async def test_without_any_one_right_something_fails(bed: Bed) -> None:
    """One after the other: taken away, used, given back."""
    useless: list[str] = []
    for right in rights():
        async with Taken(bed, right):
            try:
                await USES[str(right)](bed)
            except (DriverError, Forbidden, Nothing) as error:
                assert isinstance(error, Nothing) or "403" in str(error), f"{right}: {error}"  # noqa: PT017
            else:
                useless.append(str(right))
    assert useless == []


class Taken:
    """One right away for a while."""

    def __init__(self, bed: Bed, right: Right) -> None:
        self._bed = bed
        self._right = right
        kind = "roles" if right.namespace else "clusterroles"
        where = f"/namespaces/{right.namespace}" if right.namespace else ""
        self._path = f"/apis/rbac.authorization.k8s.io/v1{where}/{kind}/ebbtide"
        self._rules: list[dict] = []

    async def __aenter__(self) -> None:
        self._rules = (await self._bed.admin.get(self._path))["rules"]
        await self._write(without(self._rules, self._right))
        await becomes(self._is_away, f"{self._right} is away")

    async def __aexit__(self, *_: object) -> None:
        await self._write(self._rules)
        await becomes(lambda: may(self._bed.ours, self._right), f"{self._right} is back")

    async def _write(self, rules: list[dict]) -> None:
        await self._bed.admin.patch(self._path, {"rules": rules}, kind=PatchKind.MERGE)

    async def _is_away(self) -> bool:
        return not await may(self._bed.ours, self._right)


async def test_what_is_not_ours_is_out_of_reach(bed: Bed) -> None:
    """Roles cannot say it; the policy ebbtide-limits does."""
    node = await bed.node()
    (ours, theirs) = (await bed.pod(node), await bed.pod(None, nodeName="stranger"))
    pods, secrets = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/kube-system/secrets"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs"}}
    await bed.admin.create(secrets, secret)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "theirs"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Ti"},
            "csi": {"driver": "none.example", "volumeHandle": "x"},
        },
    }
    await bed.admin.create("/api/v1/persistentvolumes", volume)
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "stranger"}}
    await bed.admin.create(leases, lease)
    condition = {"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}
    for call in (
        bed.ours.delete("/api/v1/nodes/stranger"),
        bed.ours.patch("/api/v1/nodes/stranger", {"spec": {"unschedulable": True}}),
        bed.ours.patch("/api/v1/nodes/stranger/status", {"metadata": {"labels": {"a": "b"}}}),
        bed.ours.delete(f"{pods}/{theirs['metadata']['name']}"),
        bed.ours.patch(f"{pods}/{theirs['metadata']['name']}/status", condition),
        bed.ours.get(f"{secrets}/theirs"),
        bed.ours.list(secrets),
        bed.ours.patch(f"{secrets}/theirs", {}),
        bed.ours.delete(f"{secrets}/theirs"),
        bed.ours.create(secrets, {**secret, "metadata": {"name": "bootstrap-token-theirs"}}),
        bed.ours.delete("/api/v1/persistentvolumes/theirs"),
        bed.ours.patch("/api/v1/persistentvolumes/theirs", {"spec": {"capacity": {"storage": "2Ti"}}}),
        bed.ours.delete(f"{leases}/stranger"),
        bed.ours.get("/api/v1/namespaces/kube-public/configmaps/other"),
        bed.ours.get("/api/v1/namespaces/default/secrets/any"),
    ):
        with pytest.raises(Forbidden):
            await call
    assert not await refused(bed.ours.delete(f"{pods}/{ours['metadata']['name']}"))


async def test_our_calls_have_seats_of_their_own(bed: Bed) -> None:
    """The API server says under which level a call went; every other user shares the common one."""
    import aiohttp

    from ebbtide.kube.way_in import way_in

    schema = await bed.admin.get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/ebbtide")
    level = await bed.admin.get("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/ebbtide")
    way = way_in(bed.cluster.kubeconfig or "")
    async with aiohttp.ClientSession() as session:
        for path in ("/api/v1/nodes", "/version"):
            async with session.get(way.server + path, ssl=way.tls or True) as answer:
                assert answer.headers["X-Kubernetes-PF-FlowSchema-UID"] == schema["metadata"]["uid"]
                assert answer.headers["X-Kubernetes-PF-PriorityLevel-UID"] == level["metadata"]["uid"]


def test_the_bed_is_a_plane_of_its_own(plane_alone: ControlPlane) -> None:
    assert plane_alone.options.programs == ("etcd", "kube-apiserver")
    assert marks.LABEL_NODE_UID.startswith("ebbtide/")
