"""Nodes as Ebbtide makes them, standard and preemptible, without machines behind them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.live.kubectl import Json, Kubectl

CLASS = "together.ai/compute-class"
GPUS = 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """Three standard nodes and five preemptible ones, with eight GPUs each."""

    kubectl: Kubectl

    def create(self) -> None:
        """Make the nodes and wait until they are ready."""
        names = {"standard": 3, "preemptible": 5}
        nodes = [_node(f"{kind}-{at}", kind) for kind, count in names.items() for at in range(count)]
        self.kubectl.apply(*nodes)
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")

    def place(self, placement: str) -> None:
        """ "explicit": preemptible nodes are tainted. "open": they are not, and there are more of them."""
        if placement == "explicit":
            taint = f"{CLASS}=preemptible:NoSchedule"
            self.kubectl("taint", "nodes", f"--selector={CLASS}=preemptible", "--overwrite", taint)
        elif any(taint["key"] == CLASS for taint in self._taints()):
            self.kubectl("taint", "nodes", f"--selector={CLASS}=preemptible", f"{CLASS}:NoSchedule-")

    def _taints(self) -> list[Json]:
        return [taint for node in self.kubectl.items("nodes") for taint in node["spec"].get("taints", [])]

    def class_of(self, node: str) -> str:
        """The compute class of a node."""
        return node.rsplit("-", 1)[0]


def _node(name: str, kind: str) -> Json:
    capacity = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {CLASS: kind, "kubernetes.io/hostname": name}},
        "status": {"allocatable": capacity, "capacity": capacity},
    }
