"""How clusters, their nodes and their events are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ebbtide.cli import output
from ebbtide.cli.output import Column

Json = dict[str, Any]

_EVENTS_SHOWN = 8


def preemptible(cluster: Json) -> str:
    """Allocated of desired, such as `8/16`."""
    return f"{cluster['allocated_preemptible_gpus']}/{cluster['desired_preemptible_gpus']}"


LIST = (
    Column("name", "cluster_name"),
    Column("status", "status"),
    Column("region", "region"),
    Column("gpu type", "gpu_type"),
    Column("standard", "num_gpus", right=True),
    Column("preemptible", preemptible, right=True),
    Column("nodes", lambda cluster: len(cluster["gpu_worker_nodes"]), right=True, wide=True),
    Column("driver", "nvidia_driver_version", wide=True),
    Column("cuda", "cuda_version", wide=True),
    Column("project", "project_id", wide=True),
    Column("id", "cluster_id"),
)


def compute_class(node: Json) -> str:
    """The wire has no field for it: the name tells."""
    return "preemptible" if str(node["node_id"]).startswith("gpu-preemptible-") else "standard"


def node_status(node: Json) -> str:
    return "Draining" if node.get("marked_for_deletion") else str(node["status"])


def _since(node: Json) -> str | None:
    changes = node["phase_transitions"]
    return output.clock(changes[-1]["transition_time"]) if changes else None


NODES = (
    Column("node", "node_id"),
    Column("class", compute_class),
    Column("status", node_status),
    Column("gpus", "num_gpus", right=True),
    Column("since", _since),
)


def show(cluster: Json) -> None:
    """One cluster on a page: facts, live nodes, latest events."""
    output.print_facts(
        [
            ("name", cluster["cluster_name"]),
            ("id", cluster["cluster_id"]),
            ("status", cluster["status"]),
            ("region", f"{cluster['region']}, {cluster['gpu_type']}"),
            ("project", cluster["project_id"]),
            ("standard", f"{cluster['num_gpus']} GPUs"),
            ("imported", (cluster.get("imported") or {}).get("standard_selector")),
            ("problem", (cluster.get("imported") or {}).get("problem")),
            ("preemptible", f"{preemptible(cluster)} GPUs"),
            ("why not more", (cluster.get("preemptible_fill") or {}).get("pending_reason")),
        ]
    )
    if cluster["gpu_worker_nodes"]:
        output.say("")
        output.print_table(cluster["gpu_worker_nodes"], NODES, empty="")
    if cluster.get("node_lifecycle_events"):
        output.say("")
        print_events(_without_aliases(cluster["node_lifecycle_events"])[-_EVENTS_SHOWN:], as_json=False)


def _without_aliases(events: Sequence[Json]) -> list[Json]:
    """An event that is also shown under its older name comes twice in a row; the first is enough."""
    told: list[Json] = []
    for event in events:
        before = told[-1] if told else {}
        if any(event[field] != before.get(field) for field in ("node_id", "message", "timestamp")):
            told.append(event)
    return told


def print_events(events: Sequence[Json], *, as_json: bool) -> None:
    """Events one to a line: when, what, which node, why."""
    for event in events:
        if as_json:
            print(json.dumps(event, ensure_ascii=False), flush=True)
        else:
            head = f"{event['timestamp']}  {event['reason']:<26}  {event['node_id']}"
            output.say(f"{head}  {event['message']}")


def is_settled(cluster: Json) -> bool:
    """Ready, with as many preemptible GPUs as were asked for and nothing on its way in or out."""
    return (
        cluster["status"] == "Ready"
        and cluster["allocated_preemptible_gpus"] == cluster["desired_preemptible_gpus"]
        and all(node_status(node) == "Running" for node in cluster["gpu_worker_nodes"])
    )


def progress(cluster: Json) -> str:
    """One sentence on how far a cluster is."""
    running = {"standard": 0, "preemptible": 0}
    coming: dict[str, int] = {}
    for node in cluster["gpu_worker_nodes"]:
        if node["status"] == "Running":
            running[compute_class(node)] += node["num_gpus"]
        else:
            coming[node["status"].lower()] = coming.get(node["status"].lower(), 0) + 1
    told = [
        cluster["status"],
        f"standard {running['standard']}/{cluster['num_gpus']} GPUs",
        f"preemptible {preemptible(cluster)} GPUs",
        *(f"{count} {status}" for status, count in sorted(coming.items())),
    ]
    reason = (cluster.get("preemptible_fill") or {}).get("pending_reason")
    return ", ".join(told) + (f" ({reason})" if reason else "")
