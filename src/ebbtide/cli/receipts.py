"""`ebbtide clusters receipts`, `receipt`: what a drained node's pods were promised, got, and did with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import Ref, resolve
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.errors import NotFound
from ebbtide.ids import is_uuid4

if TYPE_CHECKING:
    from ebbtide.client import Client, Json


def register(app: typer.Typer) -> None:
    """Add the commands to the group of clusters."""
    command(app, "receipts")(list_receipts)
    command(app, "receipt")(get_receipt)


def offset(start: str, instant: str | None) -> str | None:
    """An instant as `+m:ss` after another; None stays None."""
    if instant is None:
        return None
    seconds = round((datetime.fromisoformat(instant) - datetime.fromisoformat(start)).total_seconds())
    sign, away = ("-", -seconds) if seconds < 0 else ("+", seconds)
    return f"{sign}{away // 60}:{away % 60:02}"


def _ends(drain: Json) -> str:
    words = {"exited": "exited", "killed": "killed", "unknown": "unseen", "there": "there"}
    found = [
        f"{drain['pods_by_end'][end]} {word}" for end, word in words.items() if drain["pods_by_end"][end]
    ]
    return ", ".join(found) or "no pods"


LIST = (
    Column("node", "node_id"),
    Column("reason", "reason"),
    Column("notice", lambda drain: output.clock(drain["noticed_at"])),
    Column("left", lambda drain: offset(drain["noticed_at"], drain["left_at"]), right=True),
    Column("because", lambda drain: drain["left_because"] or drain["state"]),
    Column("unused", lambda drain: output.span(drain["unused_s"]), right=True),
    Column("billed", lambda drain: output.span(drain["billed_s"]), right=True),
    Column("pods", _ends),
    Column("overridden", lambda drain: ", ".join(drain["budgets_overridden"]), rare=True),
    Column("arrived", "arrived_after_notice", right=True, rare=True),
    Column("late", lambda drain: "yes" if drain["late_notice"] else "", rare=True),
)


def list_receipts(
    session: Session,
    cluster: Ref,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, max=500, help="How many, the newest nodes first.")
    ] = 20,
) -> None:
    """List the drains of a cluster's nodes. One that was deleted is named by its id."""
    cluster_id = cluster if is_uuid4(cluster) else resolve(session.client, cluster)["cluster_id"]
    found = session.client.drains(cluster_id, limit=last)["drains"]
    session.rows(found, LIST, empty="no node of this cluster has drained yet")


def get_receipt(
    session: Session,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name, as Kubernetes has it.")],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="CLUSTER", help="Its cluster; looked for among yours if not given."
        ),
    ] = None,
) -> None:
    """Show the receipt of one node's drain: each pod's SIGTERM, grace asked and given, and end."""
    session.result(_find(session.client, node, cluster), show)


def _find(client: Client, node: str, cluster: str | None) -> Json:
    if cluster is not None:
        return client.drain(cluster if is_uuid4(cluster) else resolve(client, cluster)["cluster_id"], node)
    for one in _likely_first(client.clusters(), node):
        try:
            return client.drain(one["cluster_id"], node)
        except NotFound:
            continue
    raise NotFound(
        f"no node {node!r} of your clusters has drained; for a deleted cluster's give --cluster ID"
    )


def _likely_first(clusters: list[Json], node: str) -> Iterator[Json]:
    """Nodes of one cluster share the part of their names before the last dash."""
    group = node.rpartition("-")[0].rpartition("-")[2]
    known = [one for one in clusters if any(f"-{group}-" in each["node_id"] for each in _nodes(one))]
    yield from known
    yield from (one for one in clusters if one not in known)


def _nodes(cluster: Json) -> list[Json]:
    return [*cluster["gpu_worker_nodes"], *cluster["deleted_gpu_worker_nodes"]]


def show(drain: Json) -> None:
    """One receipt on a page. Times after the notice are minutes and seconds from it."""
    start = drain["noticed_at"]
    output.print_facts(
        [
            ("node", drain["node_id"]),
            ("reason", drain["reason"]),
            ("message", drain["message"]),
            ("notice", output.clock(start)),
            ("deadline", _at(start, drain["deadline"])),
            ("late until", _at(start, drain["ends_at"]) if drain["late_notice"] else None),
            ("cordoned", offset(start, drain["cordoned_at"])),
            ("SIGTERM due", offset(start, drain["sigterm_due_at"]) if drain["warned_s"] else None),
            ("first SIGTERM", offset(start, drain["first_sigterm_at"])),
            ("left", _left(drain)),
            ("unused", output.span(drain["unused_s"])),
            ("machine off", offset(start, drain["stopped_at"])),
            ("node removed", offset(start, drain["out_of_cluster_at"])),
            ("host free", offset(start, drain["host_free_at"])),
            ("billed", f"{output.span(drain['billed_s'])} from the notice on"),
            ("credits", ", ".join(_credit(one) for one in drain["credits"])),
            ("overridden", ", ".join(drain["budgets_overridden"])),
            ("refused", ", ".join(drain["budgets_refused"])),
        ]
    )
    output.say("")
    output.print_table(drain["pods"], _pods(start), empty="no pods were on it")


def _at(start: str, instant: str) -> str:
    return f"{offset(start, instant)}  ({output.clock(instant)})"


def _left(drain: Json) -> str | None:
    words = {
        "empty": "its pods were gone",
        "deadline": "its time was over",
        "cut_short": "its end came before",
    }
    if drain["left_at"] is None:
        return None
    return f"{offset(drain['noticed_at'], drain['left_at'])}  ({words[drain['left_because']]})"


def _credit(one: Json) -> str:
    return f"{output.dollars(one['microdollars']) or 'unpriced'} ({one['reason']})"


def _pods(start: str) -> tuple[Column, ...]:
    return (
        Column("pod", lambda pod: f"{pod['namespace']}/{pod['pod']}" if pod["namespace"] else pod["pod"]),
        Column("sigterm", lambda pod: offset(start, pod["sigterm_at"]), right=True),
        Column("by", "told_by"),
        Column("asked", lambda pod: f"{pod['grace_asked_s']}s", right=True),
        Column("given", _given, right=True),
        Column("used", lambda pod: None if pod["used_s"] is None else f"{pod['used_s']}s", right=True),
        Column("end", lambda pod: f"{pod['end']}, all used" if _all_used(pod) else pod["end"]),
        Column("at", lambda pod: offset(start, pod["ended_at"]), right=True),
        Column("overridden", "budget_overridden", rare=True),
        Column("refused", "budget_refused", rare=True),
        Column("came", lambda pod: _came(start, pod), rare=True),
        Column("uid", "pod_uid", wide=True),
    )


def _given(pod: Json) -> str | None:
    if pod["grace_given_s"] is None and pod["shortened_to_s"] is None:
        return None
    given = "-" if pod["grace_given_s"] is None else f"{pod['grace_given_s']}s"
    return given if pod["shortened_to_s"] is None else f"{given}, then {pod['shortened_to_s']}s"


def _all_used(pod: Json) -> bool:
    return pod["end"] == "exited" and bool(pod["grace_used_up"])


def _came(start: str, pod: Json) -> str:
    if not pod["arrived_after_notice"]:
        return ""
    return f"{offset(start, pod['first_seen_at'])}{', tolerates' if pod['tolerates_cordon'] else ''}"
