"""`ebbtide clusters set`: a warning before SIGTERM, and where pods may be placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import Ref, resolve
from ebbtide.cli.session import Session, command

if TYPE_CHECKING:
    from ebbtide.client import Json


def register(app: typer.Typer) -> None:
    """Add the command to the group of clusters."""
    command(app, "set")(set_cluster)


def set_cluster(
    session: Session,
    cluster: Ref,
    warn_first: Annotated[
        int | None,
        typer.Option(
            "--warn-first",
            metavar="SECONDS",
            min=0,
            help="SIGTERM comes so long after the notice; the deadline does not move.",
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            metavar="WORD",
            help="open, or explicit: only pods that ask for it come onto preemptible nodes.",
        ),
    ] = None,
) -> None:
    """Change settings, for drains and nodes that begin from now on; without options, show them."""
    cluster_id = resolve(session.client, cluster)["cluster_id"]
    wanted = {"warn_first_s": warn_first, "placement": placement}
    change = {name: value for name, value in wanted.items() if value is not None}
    client = session.client
    found = client.set_cluster(cluster_id, change) if change else client.cluster_settings(cluster_id)
    session.result(found, _show)


def _show(found: Json) -> None:
    warned = f"{found['warn_first_s']} s before SIGTERM, of {found['longest_warn_first_s']} s at most"
    output.print_facts([("warn first", warned), ("placement", found["placement"])])
