"""`ebbtide usage`: what was used, what it costs, and what preemptible time saved."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.core.words import many

Json = dict[str, Any]

_MONEY = ("microdollars", "saved_microdollars")
_TOTALS = ("total_microdollars", "total_saved_microdollars", "total_credit_microdollars")


def _columns(places: int, *, by_node: bool) -> tuple[Column, ...]:
    """places: decimals of every charge, so that they line up and add up to the eye."""
    return (
        Column("cluster", "cluster_name"),
        *((Column("node", "node"),) if by_node else ()),
        Column("class", "compute_class"),
        Column("gpu type", "gpu_type"),
        Column("node time", lambda line: output.span(line["node_seconds"]), right=True),
        Column("gpu-seconds", lambda line: f"{line['gpu_seconds']:,}", right=True),
        Column("$/gpu-hour", lambda line: output.dollars(line["microdollars_per_gpu_hour"]), right=True),
        Column("charge", lambda line: output.dollars(line["microdollars"], places) or "unpriced", right=True),
        Column("saved", lambda line: output.dollars(line["saved_microdollars"], places), right=True),
    )


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "usage")(usage)


def usage(
    session: Session,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Begin, such as 2026-01-02T00:00:00Z; the month's start."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End (exclusive); now.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="CLUSTER", help="Only this one's.")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="A line per `cluster` or per `node`.")
    ] = "cluster",
) -> None:
    """Show GPU time and its price, exact to the second."""
    from ebbtide.cli.clusters import resolve

    if by not in ("cluster", "node"):
        raise UsageError(f"--by takes cluster or node, not {by!r}")
    cluster_id = resolve(session.client, cluster)["cluster_id"] if cluster else None
    answer = session.client.usage(since=since, until=until, cluster_id=cluster_id, by=by)
    session.result(answer, lambda found: _show(found, by_node=by == "node"))


def _show(answer: Json, *, by_node: bool) -> None:
    amounts = [line[name] for line in answer["lines"] for name in _MONEY] + [answer[name] for name in _TOTALS]
    places = output.places_of(amounts)
    columns = _columns(places, by_node=by_node)
    output.print_table(answer["lines"], columns, empty="no GPU time was used in that period")
    output.say("")
    sealed = output.clock(answer["sealed_until"])
    output.print_facts(
        [
            ("period", f"{output.clock(answer['from'])} to {output.clock(answer['to'])}"),
            ("final until", sealed or "nothing yet; the meter runs every minute"),
            ("total", output.dollars(answer["total_microdollars"], places)),
            ("saved", output.dollars(answer["total_saved_microdollars"], places)),
            ("credits", output.dollars(answer["total_credit_microdollars"] or None, places)),
            (
                "unpriced",
                f"no rate yet for {many(answer['unpriced_lines'], 'line')}"
                if answer["unpriced_lines"]
                else None,
            ),
        ]
    )
