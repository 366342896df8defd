"""The doctor at a real API server, as its administrator and as Ebbtide."""

from __future__ import annotations

from ebbtide.clock import AnchoredClock
from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.doctor import Finding, Verdict, examine
from ebbtide.kube.rights import Account, apply, manifests, path_of
from tests.live.rights_bed import Bed, becomes, kubeconfig_of


async def look(client: KubeClient, kubeconfig: str = "") -> dict[str, Finding]:
    found = await examine(client, kubeconfig, AnchoredClock().now)
    return {each.check: each for each in found}


UNSEEN = {"seats", "webhooks", "kubelets", "joining", "placement"}  # by an account with no more than it needs


async def test_as_ebbtide(bed: Bed) -> None:
    found = await look(bed.ours, bed.cluster.kubeconfig or "")
    assert {check for check, each in found.items() if each.verdict is Verdict.UNKNOWN} <= UNSEEN
    for check in ("credentials", "version", "clock", "rights", "limits", "budgets", "address to join"):
        assert found[check].verdict is Verdict.OK, found[check]
    assert "they end at" in found["credentials"].found


async def test_as_administrator(bed: Bed) -> None:
    node = await bed.node()
    pod = await bed.pod(node, priorityClassName="system-cluster-critical")
    assert pod["spec"]["nodeName"] == node.name
    hook = {
        "name": "guard.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"nobody": "here"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    config = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "guard"},
        "webhooks": [hook],
    }
    await bed.admin.create(path, config)
    try:
        found = await look(bed.admin)
    finally:
        await bed.admin.delete(f"{path}/guard")
    assert "guard.example.com (DELETE pods)" in found["webhooks"].found
    assert found["rights"].verdict is Verdict.NOTE
    assert "administrator" in found["rights"].found
    for check in ("seats", "limits", "placement"):
        assert found[check].verdict is Verdict.OK
    assert found["joining"].verdict is Verdict.WARNING  # nobody set this plane up for tokens
    assert found["GPUs"].verdict is Verdict.WARNING


async def test_nothing_is_written(bed: Bed) -> None:
    """Not even the dry run leaves a trace."""
    before = (await bed.admin.get("/api/v1/nodes/stranger"))["metadata"]["resourceVersion"]
    await look(bed.ours)
    await look(bed.admin)
    assert (await bed.admin.get("/api/v1/nodes/stranger"))["metadata"]["resourceVersion"] == before


async def test_an_account_without_rights(plane_alone: ControlPlane) -> None:
    client = KubeClient(kubeconfig_of(plane_alone, "nobody"))
    try:
        found = await look(client)
    finally:
        await client.close()
    assert found["API server"].verdict is Verdict.PROBLEM
    assert "ebbtide kube manifests" in found["API server"].do


async def test_tokens_that_lead_to_certificates(bed: Bed) -> None:
    """What `ebbtide kube manifests --joining` prints is all that was missing."""
    with_joining, without = (manifests(Account.user("ebbtide"), joining=each) for each in (True, False))
    bindings = [each for each in with_joining if each not in without]
    await apply(bed.admin, bindings)
    try:

        async def is_well() -> bool:
            return (await look(bed.admin))["joining"].verdict is Verdict.OK

        await becomes(is_well, "tokens lead to certificates")
    finally:
        for each in bindings:
            await bed.admin.delete(path_of(each))
