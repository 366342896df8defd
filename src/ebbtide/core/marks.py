"""What marks a node of ours in its cluster: labels, taints, annotations, the condition and the finalizer.

Machines register with `labels` and `taints`; the rest is written by the Kubernetes driver. Everything that
must
tell our nodes from others goes by LABEL_NODE_UID, the ledger's uid: names may come again, uids never do.
"""

from __future__ import annotations

from ebbtide.core.nodes import ComputeClass

LABEL_CLASS = "together.ai/compute-class"
LABEL_NODE_UID = "ebbtide/node-uid"
LABEL_FABRIC_BLOCK = "ebbtide/fabric-block"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_REGION = "topology.kubernetes.io/region"
LABEL_ZONE = "topology.kubernetes.io/zone"

TAINT_INITIALIZING = "ebbtide/initializing"  # until all of the node is there; nothing is scheduled onto it
INITIALIZING = f"{TAINT_INITIALIZING}=:NoSchedule"
EXPLICIT = (
    f"{LABEL_CLASS}={ComputeClass.PREEMPTIBLE}:NoSchedule"  # placement `explicit`: only who asks gets there
)

ANNOTATION_DEADLINE = "ebbtide/drain-deadline"  # RFC 3339
ANNOTATION_REASON = "ebbtide/drain-reason"
CONDITION_DRAINING = "EbbtideDraining"
FINALIZER = "ebbtide/release"  # turns `kubectl delete node` into a release

GPU = "nvidia.com/gpu"


def labels(
    uid: str, compute_class: ComputeClass, *, region: str, gpu_type: str, fabric_block: str | None
) -> dict[str, str]:
    """The labels that a node registers with. A region is one zone."""
    marks = {
        LABEL_CLASS: str(compute_class),
        LABEL_NODE_UID: uid,
        LABEL_INSTANCE_TYPE: gpu_type,
        LABEL_REGION: region,
        LABEL_ZONE: region,
    }
    return {**marks, LABEL_FABRIC_BLOCK: fabric_block} if fabric_block else marks


def taints(compute_class: ComputeClass, *, explicit: bool) -> tuple[str, ...]:
    """The taints that a node registers with, as `key=value:Effect`."""
    return (
        (INITIALIZING, EXPLICIT)
        if explicit and compute_class is ComputeClass.PREEMPTIBLE
        else (INITIALIZING,)
    )
