"""`ebbtide remediations`: what is done about sick machines, and the operator's yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import resolve as resolve_cluster
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.errors import NotFound

if TYPE_CHECKING:
    from ebbtide.client import Client, Json

app = typer.Typer(
    no_args_is_help=True, help="Remediations: replace, restart or evict a sick machine; approve or reject."
)

ClusterRef = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's id, or its name.")]
Remedy = Annotated[str, typer.Argument(metavar="REMEDIATION", help="The remediation's id.")]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Why, for those who asked.")]
_MODES = "VM_ONLY, HOST_AWARE, EVICT_WITHOUT_REPLACEMENT, REBOOT_VM or HOST_POWER_CYCLE"


def _bare(name: str) -> Any:
    return lambda row: str(row[name]).removeprefix("REMEDIATION_MODE_").removeprefix("REMEDIATION_TRIGGER_")


REMEDIATIONS = (
    Column("asked", lambda row: output.clock(row["create_time"])),
    Column("node", "instance_name"),
    Column("mode", _bare("mode")),
    Column("state", "state"),
    Column("trigger", _bare("trigger")),
    Column("last step", lambda row: row.get("outcome"), rare=True),
    Column("id", "id"),
)


@command(app, "list")
def list_remediations(
    session: Session,
    cluster: ClusterRef,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATES", help="Only these, comma-separated.")
    ] = None,
) -> None:
    """List a cluster's remediations, the newest first."""
    cluster_id = resolve_cluster(session.client, cluster)["cluster_id"]
    session.rows(
        session.client.remediations(cluster_id, state=state),
        REMEDIATIONS,
        empty="no remediations; `ebbtide remediations create CLUSTER NODE --mode MODE` asks for one",
    )


@command(app, "create")
def create_remediation(
    session: Session,
    cluster: ClusterRef,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name, or its instance id.")],
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help=f"{_MODES}.")],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for those who read it.")
    ] = None,
) -> None:
    """Ask for a remediation of one node. Pods leave as in any drain before their machine goes."""
    found = resolve_cluster(session.client, cluster)
    instance = _instance(found, node)
    body = {"mode": _mode(mode), "reason": reason}
    session.result(session.client.remediate(found["cluster_id"], instance, body), show)


def _mode(word: str) -> str:
    return f"REMEDIATION_MODE_{word.upper().replace('-', '_').removeprefix('REMEDIATION_MODE_')}"


def _instance(cluster: Json, node: str) -> str:
    """The instance of a node that is named by its name or by the instance itself."""
    for each in cluster["gpu_worker_nodes"]:
        if each.get("instance_id") and node in (each["node_id"], each["instance_id"]):
            return str(each["instance_id"])
    raise NotFound(f"cluster {cluster['cluster_name']} has no node {node!r} with an instance")


@command(app, "get")
def get_remediation(session: Session, remediation: Remedy) -> None:
    """Show one remediation: its state, its last step, who asked and who reviewed."""
    session.result(_find(session.client, remediation), show)


@command(app, "approve")
def approve_remediation(
    session: Session,
    remediation: Remedy,
    comment: Comment = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="Do this instead (not HOST_POWER_CYCLE).")
    ] = None,
) -> None:
    """Let one begin that waits for approval."""
    body = {"comment": comment, "mode": _mode(mode) if mode else None}
    _review(session, remediation, "approve", body)


@command(app, "reject")
def reject_remediation(session: Session, remediation: Remedy, comment: Comment = None) -> None:
    """Refuse one that waits for approval."""
    _review(session, remediation, "reject", {"comment": comment})


@command(app, "cancel")
def cancel_remediation(session: Session, remediation: Remedy) -> None:
    """Take one back that has not begun."""
    _review(session, remediation, "cancel", None)


def _review(session: Session, remediation: str, verb: str, body: Json | None) -> None:
    found = _find(session.client, remediation)
    answer = session.client.review(found["cluster_id"], found["instance_id"], found["id"], verb, body)
    session.result(answer, show)


def _find(client: Client, remediation: str) -> Json:
    """The API asks for the cluster too; people know the id only. Raises NotFound."""
    for cluster in client.clusters():
        for each in client.remediations(cluster["cluster_id"]):
            if each["id"] == remediation:
                return each
    raise NotFound(f"there is no remediation {remediation!r}; `ebbtide remediations list CLUSTER` shows them")


def show(remediation: Json) -> None:
    """One remediation's facts."""
    output.print_facts(
        [
            ("id", remediation["id"]),
            ("node", remediation.get("instance_name") or remediation["instance_id"]),
            ("mode", _bare("mode")(remediation)),
            ("state", remediation["state"]),
            ("last step", remediation.get("outcome")),
            ("reason", remediation.get("reason")),
            ("error", remediation.get("error_message")),
            ("asked", output.clock(remediation.get("create_time"))),
            ("begun", output.clock(remediation.get("start_time"))),
            ("ended", output.clock(remediation.get("end_time"))),
            ("reviewed", output.clock(remediation.get("review_time"))),
            ("comment", remediation.get("review_comment")),
        ]
    )
