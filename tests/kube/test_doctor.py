"""The doctor's checks, each against a cluster that has what it looks for and one that has not."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.core import marks
from ebbtide.kube.certificates import Authority, Subject
from ebbtide.kube.client import KubeList
from ebbtide.kube.doctor import Finding, Verdict, examine
from ebbtide.kube.errors import Forbidden, KubeError, NotFound, Unreachable
from ebbtide.kube.kubeconfig import Access

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GROUP_REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
VERSION = {"major": "1", "minor": "37", "gitVersion": "v1.37.2"}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LIMITS = f"{ADMISSION}/validatingadmissionpolicies/ebbtide-limits"
PLACEMENT = f"{ADMISSION}/mutatingadmissionpolicies/ebbtide-placement-explicit"
SEATS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/ebbtide"
TOLERATES = [{"operator": "Exists"}]


@dataclass
class Away:
    seconds: float = 0.0

    def difference(self, ours: datetime) -> timedelta:
        return timedelta(seconds=self.seconds)


@dataclass
class FakeCluster:
    """Answers like an API server that has these things. One that is an error is raised."""

    nodes: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    lists: dict[str, list[Json] | KubeError] = field(default_factory=dict)
    objects: dict[str, Json | KubeError] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    is_admin: bool = False
    group_may: set[str] = field(default_factory=lambda: {"", "nodeclient"})
    dry_run: KubeError | None = None
    server_time: Away = field(default_factory=Away)
    wrote: list[str] = field(default_factory=list)

    async def get(self, path: str, **_: object) -> Json:
        found = {"/version": VERSION, **self.objects}.get(path, NotFound(path, 404))
        if isinstance(found, KubeError):
            raise found
        return found

    async def list(self, path: str, **params: Any) -> KubeList:
        known: dict[str, Any] = {"/api/v1/nodes": self.nodes, "/api/v1/pods": self.pods, **self.lists}
        found = known.get(path, [])
        if isinstance(found, KubeError):
            raise found
        selector = params.get("labelSelector")
        if selector:
            key, _, value = selector.partition("=")
            found = [each for each in found if each["metadata"].get("labels", {}).get(key) == value]
        return KubeList(found, "1")

    async def create(self, path: str, body: Mapping[str, Any], **_: object) -> Json:
        attributes = body["spec"]["resourceAttributes"]
        if path == GROUP_REVIEW:
            return {"status": {"allowed": attributes["subresource"] in self.group_may}}
        assert path == REVIEW
        if attributes["verb"] == "*":
            return {"status": {"allowed": self.is_admin}}
        return {"status": {"allowed": f"{attributes['verb']} {attributes['resource']}" not in self.lacking}}

    async def patch(self, path: str, body: object, **params: object) -> Json:
        assert (body, params) == ({}, {"dryRun": "All"})
        if self.dry_run is not None:
            raise self.dry_run
        return {}


def a_node(
    name: str, *, ours: bool = True, gpus: int = 8, taints: list[Json] | None = None, **labels: str
) -> Json:
    own = {marks.LABEL_NODE_UID: name, marks.LABEL_CLASS: "preemptible"} if ours else {}
    return {
        "metadata": {"name": name, "labels": {**own, **labels}},
        "spec": {"taints": taints or []},
        "status": {"allocatable": {marks.GPU: str(gpus)}},
    }


def a_pod(
    name: str,
    node: str = "n",
    *,
    namespace: str = "default",
    kind: str = "ReplicaSet",
    labels: dict[str, str] | None = None,
    mounts: str = "",
    image: str = "app",
    tolerations: list[Json] | None = None,
    phase: str = "Running",
) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels or {},
            "ownerReferences": [{"kind": kind, "name": f"{name}-owner", "controller": True}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"image": image}],
            "volumes": [{"hostPath": {"path": mounts}}] if mounts else [],
            "tolerations": tolerations or [],
        },
        "status": {"phase": phase},
    }


async def look(cluster: FakeCluster, kubeconfig: str = "{}", **more: Any) -> dict[str, Finding]:
    found = await examine(cluster, kubeconfig, lambda: NOW, **more)
    for each in found:
        assert each.found
        assert each.do or each.verdict in (Verdict.OK, Verdict.NOTE), each
    return {each.check: each for each in found}


def a_good_cluster(**changes: Any) -> FakeCluster:
    there: Json = {"metadata": {}}
    objects = dict.fromkeys((LIMITS, PLACEMENT, SEATS), there)
    objects["/api/v1/namespaces/kube-public/configmaps/cluster-info"] = there
    objects["/api/v1/nodes/n/proxy/configz"] = {"kubeletconfig": {"shutdownGracePeriod": "30s"}}
    plugin = a_pod(
        "plugin",
        namespace="kube-system",
        kind="DaemonSet",
        mounts="/var/lib/kubelet/device-plugins",
        tolerations=TOLERATES,
    )
    network = a_pod("net", kind="DaemonSet", mounts="/etc/cni/net.d", tolerations=TOLERATES)
    return FakeCluster(**{"nodes": [a_node("n")], "pods": [plugin, network], "objects": objects, **changes})


async def test_where_all_is_well_nothing_is_to_be_done() -> None:
    found = await look(a_good_cluster())
    assert {each.verdict for each in found.values()} == {Verdict.OK}, found
    assert len(found) == 17


async def test_one_that_does_not_answer() -> None:
    cluster = a_good_cluster()
    cluster.objects["/version"] = Unreachable("GET /version: no answer in time")
    found = await look(cluster)
    assert list(found) == ["credentials", "API server"]
    assert found["API server"].verdict is Verdict.PROBLEM
    assert "no answer in time" in found["API server"].found


async def test_one_that_may_see_nothing() -> None:
    found = await look(a_good_cluster(lists={"/api/v1/pods": Forbidden("GET", 403)}))
    assert "kube manifests" in found["API server"].do


async def test_what_may_not_be_seen_is_said_and_stops_nothing() -> None:
    no = Forbidden("GET", 403, "Forbidden", "no")
    cluster = a_good_cluster(
        objects={LIMITS: no, PLACEMENT: no, SEATS: no, "/api/v1/nodes/n/proxy/configz": no},
        lists={f"{ADMISSION}/validatingwebhookconfigurations": no},
    )
    cluster.nodes[0]["spec"]["taints"] = [{"key": marks.LABEL_CLASS, "value": "preemptible"}]
    cluster.nodes.append(a_node("theirs", ours=False))
    cluster.dry_run = Forbidden("PATCH", 403, "Forbidden", "policy ebbtide-limits denied")
    found = await look(cluster)
    unseen = {check for check, each in found.items() if each.verdict is Verdict.UNKNOWN}
    assert unseen == {"seats", "placement", "kubelets", "webhooks"}
    assert found["limits"].verdict is Verdict.OK
    cluster.dry_run = None
    assert "theirs" in (await look(cluster))["limits"].found
    assert (await look(cluster))["limits"].verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("minor", "verdict"), [("29", Verdict.PROBLEM), ("31+", Verdict.NOTE), ("36", Verdict.OK)]
)
async def test_versions(minor: str, verdict: Verdict) -> None:
    cluster = a_good_cluster()
    cluster.objects["/version"] = {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}
    assert (await look(cluster))["version"].verdict is verdict


async def test_clocks_that_differ() -> None:
    found = await look(a_good_cluster(server_time=Away(-90.0)))
    assert found["clock"].verdict is Verdict.WARNING
    assert "90 s" in found["clock"].found


@pytest.mark.parametrize(
    ("days", "verdict"), [(-366, Verdict.PROBLEM), (-360, Verdict.WARNING), (0, Verdict.OK)]
)
async def test_certificates_end(tmp_path: Path, days: int, verdict: Verdict) -> None:
    authority = Authority(tmp_path, NOW + timedelta(days=days))
    access = Access("c", "https://a", authority.pair.certificate, authority.issue("x", Subject("x")))
    assert (await look(a_good_cluster(), access.kubeconfig()))["credentials"].verdict is verdict


@pytest.mark.parametrize(
    ("hours", "verdict"), [(-1, Verdict.PROBLEM), (24, Verdict.WARNING), (24 * 90, Verdict.OK)]
)
async def test_tokens_end(hours: int, verdict: Verdict) -> None:
    claims = json.dumps({"exp": int((NOW + timedelta(hours=hours)).timestamp())}).encode()
    token = f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c"
    config = {
        "contexts": [{"name": "x", "context": {"user": "u"}}],
        "current-context": "x",
        "users": [{"name": "u", "user": {"token": token}}],
    }
    assert (await look(a_good_cluster(), json.dumps(config)))["credentials"].verdict is verdict


@pytest.mark.parametrize("text", ["", "{", "[1]", "contexts: 1", "current-context: x"])
async def test_credentials_that_cannot_be_read_are_no_reason_to_stop(text: str) -> None:
    assert "do not say" in (await look(a_good_cluster(), text))["credentials"].found


async def test_rights() -> None:
    found = await look(a_good_cluster(lacking={"delete nodes", "create pods"}))
    assert found["rights"].verdict is Verdict.PROBLEM
    assert found["rights"].found == "missing: delete nodes, create pods/eviction"
    found = await look(a_good_cluster(is_admin=True))
    assert found["rights"].verdict is Verdict.NOTE


async def test_what_was_not_applied() -> None:
    cluster = a_good_cluster()
    for path in (LIMITS, PLACEMENT, SEATS):
        del cluster.objects[path]
    found = await look(cluster)
    assert (found["limits"].verdict, found["seats"].verdict) == (Verdict.WARNING, Verdict.WARNING)
    assert found["placement"].verdict is Verdict.NOTE
    cluster.nodes[0]["spec"]["taints"] = [{"key": marks.LABEL_CLASS, "value": "preemptible"}]
    assert (await look(cluster))["placement"].verdict is Verdict.PROBLEM


async def test_gpus() -> None:
    none = await look(a_good_cluster(nodes=[a_node("n", ours=False, gpus=0)]))
    assert "no node has" in none["GPUs"].found
    one = await look(a_good_cluster(nodes=[a_node("n"), a_node("m", gpus=0)]))
    assert one["GPUs"].verdict is Verdict.WARNING
    assert "m" in one["GPUs"].found


@pytest.mark.parametrize(
    ("tolerations", "verdict"),
    [
        ([], Verdict.PROBLEM),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], Verdict.PROBLEM),
        ([{"operator": "Exists", "effect": "NoExecute"}], Verdict.PROBLEM),
        ([{"key": marks.TAINT_INITIALIZING, "operator": "Exists", "effect": "NoSchedule"}], Verdict.OK),
        ([{"key": marks.TAINT_INITIALIZING}], Verdict.OK),
        (TOLERATES, Verdict.OK),
    ],
)
async def test_what_a_node_needs_must_get_onto_it(tolerations: list[Json], verdict: Verdict) -> None:
    """Else no node ever shows its GPUs, and every one is sent back."""
    cluster = a_good_cluster()
    cluster.pods[0]["spec"]["tolerations"] = tolerations
    found = await look(cluster)
    assert found["device plugin"].verdict is verdict
    assert found["network"].verdict is Verdict.OK


async def test_where_preemptible_nodes_are_tainted_it_must_tolerate_that_too() -> None:
    cluster = a_good_cluster()
    cluster.nodes[0]["spec"]["taints"] = [{"key": marks.LABEL_CLASS, "value": "preemptible"}]
    cluster.pods[0]["spec"]["tolerations"] = [{"key": marks.TAINT_INITIALIZING, "operator": "Exists"}]
    found = await look(cluster)
    assert found["device plugin"].verdict is Verdict.PROBLEM
    assert marks.LABEL_CLASS in found["device plugin"].do


async def test_kubelets_without_a_grace() -> None:
    cluster = a_good_cluster()
    cluster.objects["/api/v1/nodes/n/proxy/configz"] = {"kubeletconfig": {"shutdownGracePeriod": "0s"}}
    assert (await look(cluster))["kubelets"].verdict is Verdict.NOTE


async def test_other_autoscalers() -> None:
    running = a_pod("ca", namespace="kube-system", image="registry.k8s.io/autoscaling/cluster-autoscaler:v1")
    cluster = a_good_cluster()
    cluster.pods.append(running | {"spec": {**running["spec"], "nodeName": "elsewhere"}})
    assert (await look(cluster))["other autoscalers"].verdict is Verdict.NOTE
    for sign in (
        a_node("m", **{"karpenter.sh/nodepool": "x"}),
        a_node("m", taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]),
    ):
        found = await look(a_good_cluster(nodes=[a_node("n"), sign]))
        assert found["other autoscalers"].verdict is Verdict.PROBLEM
        assert "m" in found["other autoscalers"].found


async def test_pods_that_should_not_go_with_a_node() -> None:
    cluster = a_good_cluster()
    cluster.pods += [
        a_pod("dns", namespace="kube-system"),
        a_pod("ray", labels={"ray.io/node-type": "head"}),
        a_pod("worker", labels={"ray.io/node-type": "worker"}),
        a_pod("done", namespace="kube-system", phase="Succeeded"),
        a_pod("proxy", namespace="kube-system", kind="DaemonSet"),
        a_pod("elsewhere", "other", namespace="kube-system"),
    ]
    found = await look(cluster)
    assert found["system pods"].found == "on preemptible nodes: kube-system/dns"
    assert found["coordinators"].found == "on preemptible nodes: default/ray"


async def test_budgets_that_allow_nothing() -> None:
    def budget(name: str, expected: int, allowed: int) -> Json:
        status = {"expectedPods": expected, "disruptionsAllowed": allowed}
        return {"metadata": {"name": name, "namespace": "default"}, "status": status}

    listed = [budget("shut", 2, 0), budget("open", 2, 1), budget("empty", 0, 0)]
    found = await look(a_good_cluster(lists={"/apis/policy/v1/poddisruptionbudgets": listed}))
    assert found["budgets"].found == "allow no disruption now: default/shut"


@pytest.mark.parametrize(
    ("hook", "risky"),
    [
        ({"rules": [{"apiGroups": [""], "operations": ["DELETE"], "resources": ["pods"]}]}, True),
        ({"rules": [{"apiGroups": ["*"], "operations": ["*"], "resources": ["*/*"]}]}, True),
        ({"rules": [{"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods/*"]}]}, True),
        ({"rules": [{"apiGroups": [""], "operations": ["UPDATE"], "resources": ["nodes"]}]}, True),
        ({"rules": [{"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"]}]}, False),
        ({"rules": [{"apiGroups": ["apps"], "operations": ["*"], "resources": ["*"]}]}, False),
        (
            {
                "failurePolicy": "Ignore",
                "rules": [{"apiGroups": ["*"], "operations": ["*"], "resources": ["*"]}],
            },
            False,
        ),
    ],
)
async def test_webhooks_that_stop_us(hook: Json, risky: bool) -> None:
    config = {"metadata": {"name": "c"}, "webhooks": [{"name": "w.example", **hook}]}
    cluster = a_good_cluster(lists={f"{ADMISSION}/validatingwebhookconfigurations": [config]})
    found = (await look(cluster))["webhooks"]
    assert found.verdict is (Verdict.WARNING if risky else Verdict.OK)
    assert ("w.example" in found.found) is risky


@pytest.mark.parametrize(
    ("group_may", "verdict"),
    [(set(), Verdict.WARNING), ({""}, Verdict.WARNING), ({"", "nodeclient"}, Verdict.OK)],
)
async def test_whether_a_token_is_enough_to_join(group_may: set[str], verdict: Verdict) -> None:
    assert (await look(a_good_cluster(group_may=group_may)))["joining"].verdict is verdict


async def test_the_nodes_that_would_count_as_standard() -> None:
    cluster = a_good_cluster()
    cluster.nodes += [a_node("own-a", ours=False, pool="gpu"), a_node("m", pool="gpu")]
    found = (await look(cluster, selector="pool=gpu"))["standard nodes"]
    assert found.found == "1 with 8 GPUs: own-a"
    assert (await look(cluster, selector="pool=cpu"))["standard nodes"].verdict is Verdict.PROBLEM


@pytest.mark.parametrize(
    ("server", "verdict"),
    [("https://10.0.0.1:6443", Verdict.NOTE), ("https://127.0.0.1:6443", Verdict.WARNING)],
)
async def test_the_address_that_machines_are_told(server: str, verdict: Verdict) -> None:
    cluster = a_good_cluster()
    del cluster.objects["/api/v1/namespaces/kube-public/configmaps/cluster-info"]
    config = f"clusters: [{{name: c, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}]"
    found = await look(cluster, config)
    assert found["address to join"].verdict is verdict
    assert server in found["address to join"].found
    assert found["trust"].verdict is Verdict.WARNING
