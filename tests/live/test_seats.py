"""Ebbtide's calls do not wait for a tenant's: its seats in the API server are its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ebbtide.clock import monotonic
from ebbtide.kube.client import KubeClient
from ebbtide.kube.controlplane import ControlPlane
from ebbtide.kube.errors import Unreachable
from ebbtide.kube.rights import Right, may
from tests.live.rights_bed import Bed, becomes, kubeconfig_of

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MAPS = "/api/v1/namespaces/default/configmaps"
CALLS = 250  # more than the common level has seats for, and fewer than its queues are long
SOON_S = 3.0


@pytest_asyncio.fixture
async def crowded(plane_alone: ControlPlane, bed: Bed) -> AsyncIterator[None]:
    """Every seat of the common level is taken by calls that wait for a webhook which never answers."""

    over = asyncio.Event()

    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    silent = await asyncio.start_server(never, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    hook = {
        "name": "silent.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        ],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "timeoutSeconds": 25,
    }
    config = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "silent"},
        "webhooks": [hook],
    }
    await bed.admin.create(HOOKS, config)
    await _until_silent(plane_alone)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "crowd"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [
            {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
            for name in ("crowd", "bystander")
        ],
    }
    base = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    await bed.admin.create(base, binding)
    crowd = KubeClient(kubeconfig_of(plane_alone, "crowd"), in_flight=CALLS, limit_s=30)
    bystander = KubeClient(kubeconfig_of(plane_alone, "bystander"), limit_s=SOON_S)
    may_create = Right("create", "", "configmaps", namespace="default")
    await becomes(lambda: may(crowd, may_create), "the crowd has its rights")
    calls = [asyncio.create_task(_hang(crowd, number)) for number in range(CALLS)]
    try:
        await _until_crowded(bystander)
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await crowd.close()
        await bystander.close()
        over.set()
        silent.close()
        await asyncio.sleep(0)
        await bed.admin.delete(f"{HOOKS}/silent")
        await bed.admin.delete(f"{base}/crowd")


async def _until_silent(plane: ControlPlane) -> None:
    """The webhook is asked, and does not answer."""
    probe = KubeClient(plane.access.kubeconfig(), limit_s=0.5)

    async def is_asked() -> bool:
        try:
            await probe.create(MAPS, _a_map("probe"), dryRun="All")
        except Unreachable:
            return True
        return False

    try:
        await becomes(is_asked, "the webhook is asked")
    finally:
        await probe.close()


def _a_map(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def _hang(crowd: KubeClient, number: int) -> None:
    with contextlib.suppress(Unreachable):
        await crowd.create(MAPS, _a_map(f"crowd-{number}"))


async def _until_crowded(bystander: KubeClient) -> None:
    """Somebody else of the common level gets no answer any more."""
    late = monotonic() + 15
    while monotonic() < late:
        try:
            await bystander.get("/api/v1/namespaces/default")
        except Unreachable:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the common level's seats did not fill")


@pytest.mark.usefixtures("crowded")
async def test_a_crowd_does_not_keep_us_waiting(bed: Bed) -> None:
    """Without the FlowSchema this takes until the API server lends the crowd more seats: some ten seconds."""
    began = monotonic()
    await bed.driver.observe(bed.cluster)
    await bed.ours.list("/api/v1/pods")
    assert monotonic() - began < SOON_S
