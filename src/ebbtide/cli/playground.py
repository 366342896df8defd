"""`ebbtide playground`: levers of the simulated world. Only where the fleet is simulated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import Ref, resolve
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

app = typer.Typer(no_args_is_help=True, help="The simulated world (operator): run pods, make hosts vanish.")

_PODS = (
    Column("pod", "name"),
    Column("state", "state"),
    Column("node", "node"),
    Column("kind", "kind"),
    Column("behaviour", "behaviour"),
    Column("grace", lambda pod: f"{pod['grace_s']} s", right=True),
    Column("told", lambda pod: output.clock(pod["told_at"]), rare=True),
    Column("ends by", lambda pod: output.clock(pod["ends_by"]), rare=True),
)


@command(app, "pods")
def pods(session: Session, cluster: Ref) -> None:
    """List the pods of a simulated cluster."""
    found = session.client.pods(resolve(session.client, cluster)["cluster_id"])
    session.rows(found, _PODS, empty="no pods; `ebbtide playground run CLUSTER NAME` starts some")


@command(app, "run")
def run(
    session: Session,
    cluster: Ref,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pods' name.")] = "job",
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many pods.")] = 1,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="On this node; else where there is room.")
    ] = None,
    behaviour: Annotated[
        str,
        typer.Option(
            "--behaviour",
            metavar="WHAT",
            help="On SIGTERM: obeys, dawdles, ignores_sigterm or kubelet_doubles_grace.",
        ),
    ] = "obeys",
    exits_after: Annotated[
        float | None, typer.Option("--exits-after", metavar="SECONDS", help="From SIGTERM to the pod's end.")
    ] = None,
    finishes_after: Annotated[
        float | None,
        typer.Option(
            "--finishes-after", metavar="SECONDS", help="Completes by itself so long after its start."
        ),
    ] = None,
    grace: Annotated[
        int, typer.Option("--grace", min=0, metavar="SECONDS", help="The pod's own grace period.")
    ] = 30,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs that each pod takes.")] = 0,
) -> None:
    """Start pods in a simulated cluster: obedient, dawdling, or deaf to SIGTERM."""
    spec: dict[str, Any] = {
        "name": name,
        "count": count,
        "behaviour": behaviour,
        "grace_s": grace,
        "gpus": gpus,
    }
    wishes = {"node": node, "exits_after_s": exits_after, "finishes_after_s": finishes_after}
    spec |= {field: value for field, value in wishes.items() if value is not None}
    cluster_id = resolve(session.client, cluster)["cluster_id"]
    session.result(
        session.client.add_pods(cluster_id, spec),
        lambda made: output.print_table(made["pods"], _PODS, empty="no pods were started"),
    )


@command(app, "delete-node")
def delete_node(
    session: Session,
    cluster: Ref,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")],
) -> None:
    """Delete a node in a simulated cluster, as kubectl would: a preemptible one is given back."""
    cluster_id = resolve(session.client, cluster)["cluster_id"]
    session.result(
        session.client.delete_node(cluster_id, node),
        lambda _: output.say(f"{node} is deleted; a preemptible node goes when its pods are gone"),
    )


@command(app, "vanish")
def vanish(
    session: Session, host: Annotated[str, typer.Argument(metavar="HOST", help="The host's name.")]
) -> None:
    """Let a simulated host vanish without notice, as if its power supply had failed."""
    session.result(session.client.vanish(host), lambda _: output.say(f"{host} is gone"))
