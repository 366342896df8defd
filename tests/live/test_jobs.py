"""A Job that may not fail once, on nodes that may go: what counts as a failure, and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.live.fleet import Fleet
from tests.live.kubectl import Json, Kubectl, eventually
from tests.live.templates import Manifest

FOLDER = Path(__file__).parents[2] / "docs" / "workloads" / "manifests"
DISRUPTED = "DisruptionTarget"


@pytest.fixture
def job(kubectl: Kubectl, fleet: Fleet) -> Iterator[Json]:
    """Our example of a Job, without retries, running on a preemptible node."""
    (one,) = [each for each in Manifest.read(FOLDER / "job.yaml").objects if each["kind"] == "Job"]
    one["metadata"]["namespace"] = "default"
    one["spec"]["backoffLimit"] = 0
    del one["spec"]["template"]["spec"]["volumes"]
    del one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    fleet.place("explicit")
    kubectl.apply(one)
    eventually(lambda: None if _running(kubectl) else "no pod runs")
    yield one
    kubectl("delete", "job", one["metadata"]["name"], "--cascade=foreground", "--timeout=60s")
    kubectl("uncordon", "--selector=kubernetes.io/hostname")


def _running(kubectl: Kubectl) -> list[Json]:
    pods = kubectl.items("pods", "--selector=app=train", "--namespace=default")
    return [
        pod
        for pod in pods
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def _as_a_reclaim_does(kubectl: Kubectl, pod: Json) -> None:
    """The condition first, then the deletion with the grace that is left."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": DISRUPTED, "status": "True", "reason": "Preempted", "lastTransitionTime": now}
    patch = json.dumps({"status": {"conditions": [condition]}})
    name = pod["metadata"]["name"]
    kubectl("patch", "pod", name, "--subresource=status", "--type=strategic", f"--patch={patch}")
    kubectl("delete", "pod", name, "--grace-period=297", "--wait=false")


def _by_eviction(kubectl: Kubectl, pod: Json) -> None:
    kubectl(
        "drain", pod["spec"]["nodeName"], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"
    )


def _plainly(kubectl: Kubectl, pod: Json) -> None:
    kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


@pytest.mark.parametrize("take", [_as_a_reclaim_does, _by_eviction], ids=["reclaim", "eviction"])
def test_a_disrupted_pod_is_replaced_and_counts_as_no_failure(
    kubectl: Kubectl, job: Json, take: Callable[[Kubectl, Json], None]
) -> None:
    (before,) = _running(kubectl)
    take(kubectl, before)

    def not_replaced() -> str | None:
        uids = [pod["metadata"]["uid"] for pod in _running(kubectl)]
        return None if uids and before["metadata"]["uid"] not in uids else f"running: {uids}"

    eventually(not_replaced)
    status = kubectl.one("job", job["metadata"]["name"])["status"]
    assert status.get("failed", 0) == 0
    assert [each for each in status.get("conditions", []) if each["type"].startswith("Fail")] == []


def test_a_pod_deleted_without_the_condition_fails_the_job(kubectl: Kubectl, job: Json) -> None:
    """So the condition is what the tests above depend on."""
    (before,) = _running(kubectl)
    _plainly(kubectl, before)

    def not_failed() -> str | None:
        status = kubectl.one("job", job["metadata"]["name"])["status"]
        failed = [each["reason"] for each in status.get("conditions", []) if each["type"] == "Failed"]
        return None if failed == ["BackoffLimitExceeded"] else str(status)

    eventually(not_failed)
