#!/usr/bin/env python3
"""Two verbs of the provider `exec` for machines that are only pretended: `machine.py FOLDER`.

FOLDER is the one of `your_cluster.py`. Where a real program would boot a host and run `kubeadm join` on it,
this one puts a Node into that cluster; where it would wipe, it writes a line into FOLDER/wiped.log. What it
keeps of each machine is a file, so that it finds it when it is asked a second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
WIPED_BY = "a line in wiped.log"  # an auditor will read this


def main() -> None:
    folder, asked = Path(sys.argv[1]), json.load(sys.stdin)
    machines = folder / "machines"
    machines.mkdir(exist_ok=True)
    # Whose machine a host is: this file says. A host that another node has is not touched.
    file = machines / asked["host_name"]
    has = file.read_text() if file.exists() else None
    answer = VERBS[asked["verb"]](folder, file, has, asked)
    print(json.dumps(answer))


def create(folder: Path, file: Path, has: str | None, asked: Json) -> Json:
    if has is None:
        if asked["wipe_first"]:  # somebody had the host whose data may still be there
            wipe(folder, asked["host_name"], "before", asked["node_name"])
        file.write_text(asked["node_uid"])
        return {"state": "starting", "why": "it boots"}  # and is asked again in some seconds
    if has != asked["node_uid"]:
        print(f"the host still has node {has}", file=sys.stderr)
        sys.exit(69)  # not on this host; another may do
    made = node(asked["node_name"], asked["labels"], asked["taints"])
    run = kubectl(folder, "apply", "--filename=-", said=json.dumps(made))
    print(run.stdout + run.stderr, file=sys.stderr)
    if run.returncode != 0:
        sys.exit(75)  # try again later
    return {"state": "up", "address": "192.0.2.1", "wiped_by": WIPED_BY if asked["wipe_first"] else None}


def delete(folder: Path, file: Path, has: str | None, asked: Json) -> Json:
    if has == asked["node_uid"]:
        run = kubectl(folder, "label", "node", asked["node_name"], "machine-")  # its kubelet falls silent
        if run.returncode != 0 and "not found" not in run.stderr:
            print(run.stderr, file=sys.stderr)
            sys.exit(75)
        wipe(folder, asked["host_name"], "after", asked["node_name"])
        file.unlink()
    return {"gone": True, "wiped_by": WIPED_BY}


def wipe(folder: Path, host: str, when: str, node_name: str) -> None:
    with (folder / "wiped.log").open("a") as log:
        log.write(f"{host} {when} {node_name}\n")


def kubectl(folder: Path, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    argv = ["kubectl", f"--kubeconfig={folder / 'kubeconfig'}", *words]
    return subprocess.run(argv, input=said, capture_output=True, text=True, timeout=20, check=False)


def node(name: str, labels: Json, taints: list[str]) -> Json:
    """A Node with eight GPUs, as a kubelet would register it; kwok makes it Ready."""
    resources = {"cpu": "96", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": "8"}
    marks = []
    for text in taints:  # key=value:Effect
        mark, _, effect = text.rpartition(":")
        key, _, value = mark.partition("=")
        marks.append({"key": key, "value": value, "effect": effect})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "machine": "on", **labels},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": marks},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "False", "reason": "Booting", "message": "soon"}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        },
    }


VERBS = {"create": create, "delete": delete}

if __name__ == "__main__":
    main()
