"""GPUs, what must run on a node before it can work, kubelets, and others who add and remove nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ebbtide.core import marks
from ebbtide.core.nodes import ComputeClass
from ebbtide.kube.client import KubeClient
from ebbtide.kube.doctor.finding import AS_ADMIN, Finding, note, ok, problem, some, unknown, warning
from ebbtide.kube.doctor.seen import Seen, images, is_daemon, labels, name, owner, tolerates
from ebbtide.kube.errors import Forbidden, KubeError

_PLUGINS = "/var/lib/kubelet/device-plugins"
_NETWORK = ("/etc/cni/net.d", "/opt/cni/bin")
_AUTOSCALERS = ("cluster-autoscaler", "karpenter")
_THEIR_MARKS = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
_THEIR_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
)
_KUBELETS_ASKED = 3


async def standard(client: KubeClient, selector: str) -> list[Finding]:
    """The nodes that would count as standard. Raises KubeError."""
    listed = (await client.list("/api/v1/nodes", labelSelector=selector)).items
    chosen = [each for each in listed if marks.LABEL_NODE_UID not in labels(each)]
    if not chosen:
        do = "choose labels that the cluster's own GPU nodes have; `kubectl get nodes --show-labels`"
        return [problem("standard nodes", f"no node has the labels {selector}", do)]
    total = sum(_amount(each) for each in chosen)
    return [ok("standard nodes", f"{len(chosen)} with {total} GPUs: {some([name(each) for each in chosen])}")]


async def gpus(_client: KubeClient, seen: Seen) -> list[Finding]:
    with_gpus = [each for each in seen.nodes if _amount(each) > 0]
    total = sum(_amount(each) for each in with_gpus)
    without = [name(each) for each in seen.ours if each not in with_gpus]
    if without:
        do = "look at the device plugin's pod there: Ebbtide waits until all GPUs are allocatable"
        return [warning("GPUs", f"nodes of Ebbtide's without any {marks.GPU}: {some(without)}", do)]
    if not with_gpus:
        do = "install the device plugin (or the GPU operator): without it no node ever counts as running"
        return [warning("GPUs", f"no node has {marks.GPU} to give", do)]
    return [ok("GPUs", f"{len(with_gpus)} of {len(seen.nodes)} nodes have {total} {marks.GPU} to give")]


async def node_daemons(_client: KubeClient, seen: Seen) -> list[Finding]:
    """What a new node needs must run on it while it still has the `initializing` taint."""
    return [
        *_must_tolerate("device plugin", "device plugins", [_PLUGINS], seen),
        *_must_tolerate("network", "the network's pods", list(_NETWORK), seen),
    ]


def _must_tolerate(check: str, what: str, paths: list[str], seen: Seen) -> Iterator[Finding]:
    found = {
        (each["metadata"]["namespace"], _owner_name(each)): each
        for each in seen.pods
        if is_daemon(each) and _mounts(each, paths)
    }
    if not found:
        yield note(check, f"no pod of a DaemonSet looks like one of {what}")
        return
    taints = [(marks.TAINT_INITIALIZING, "")]
    taints += [(marks.LABEL_CLASS, str(ComputeClass.PREEMPTIBLE))] if seen.is_explicit else []
    for key, value in taints:
        kept_out = [f"{space}/{one}" for (space, one), pod in found.items() if not tolerates(pod, key, value)]
        if kept_out:
            yield problem(
                check,
                f"{some(kept_out)} may not run on nodes with the taint {key}",
                f"add to the DaemonSet's tolerations: {{key: {key}, operator: Exists, effect: NoSchedule}}",
            )
            return
    yield ok(check, f"{what} run on new nodes: {some([f'{space}/{one}' for space, one in found])}")


async def kubelets(client: KubeClient, seen: Seen) -> list[Finding]:
    """A kubelet's own shutdown grace is what is left to pods when somebody else switches a machine off."""
    asked = (seen.ours or seen.preemptible or seen.nodes)[:_KUBELETS_ASKED]
    graces: dict[str, str] = {}
    try:
        for node in asked:
            config = await client.get(f"/api/v1/nodes/{name(node)}/proxy/configz")
            graces[name(node)] = str((config.get("kubeletconfig") or {}).get("shutdownGracePeriod", "0s"))
    except Forbidden:
        return [unknown("kubelets", "this account may not look at their configuration", AS_ADMIN)]
    except KubeError as error:
        return [unknown("kubelets", f"a kubelet does not answer: {error.message}", "look at the node")]
    none = [node for node, grace in graces.items() if grace in ("0s", "0", "")]
    if none:
        do = (
            "set shutdownGracePeriod in the kubelet's configuration if machines are ever switched off by hand"
        )
        return [note("kubelets", f"no shutdown grace: pods on {some(none)} end at once at a power-off", do)]
    told = some(sorted({f"{grace}" for grace in graces.values()}))
    return [ok("kubelets", f"shutdown grace {told}" if graces else "no kubelets yet")]


async def autoscalers(_client: KubeClient, seen: Seen) -> list[Finding]:
    acting = [name(each) for each in seen.ours if _is_theirs(each)]
    if acting:
        do = "take these nodes out of its groups: two that add and remove the same nodes undo each other"
        return [problem("other autoscalers", f"one acts on nodes of Ebbtide's: {some(acting)}", do)]
    running = [
        name(pod) for pod in seen.pods for image in images(pod) if any(one in image for one in _AUTOSCALERS)
    ]
    if running:
        do = "pods that wait for preemptible nodes may make it add nodes of its own; give it other labels"
        return [note("other autoscalers", f"{some(running)} runs here, not on Ebbtide's nodes", do)]
    return [ok("other autoscalers", "none is seen")]


def _is_theirs(node: dict[str, Any]) -> bool:
    taints = [str(taint.get("key")) for taint in node["spec"].get("taints") or ()]
    return any(one in labels(node) for one in _THEIR_MARKS) or any(one in taints for one in _THEIR_TAINTS)


def _owner_name(pod: dict[str, Any]) -> str:
    found = owner(pod)
    return found[1] if found else str(pod["metadata"]["name"])


def _mounts(pod: dict[str, Any], paths: list[str]) -> bool:
    mounted = [(each.get("hostPath") or {}).get("path", "") for each in pod["spec"].get("volumes") or ()]
    return any(str(each).rstrip("/") in paths for each in mounted)


def _amount(node: dict[str, Any]) -> int:
    text = str(((node.get("status") or {}).get("allocatable") or {}).get(marks.GPU, "0"))
    return int(text) if text.isdigit() else 0
