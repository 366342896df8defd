"""`ebbtide fleet node`: one node's whole story. `ebbtide fleet regions`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

Json = dict[str, Any]

_REGIONS = (
    Column("region", "region"),
    Column("pool", "name"),
    Column("gpu type", "gpu_type"),
    Column("hosts", "hosts", right=True),
    Column("$/gpu-hour", lambda pool: output.dollars(pool["microdollars_per_gpu_hour"]), right=True),
    Column("provider", "provider"),
    Column("driver versions", "drivers"),
)
_EVENTS = (
    Column("at", lambda one: output.clock(one["at"])),
    Column("what", lambda one: one.get("reason") or one["phase"]),
    Column("message", "message", rare=True),
)


def register(app: typer.Typer) -> None:
    """Add the commands to the fleet group."""
    command(app, "node")(node)
    command(app, "regions")(regions)


def node(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NODE", help="Its name or uid; removed ones, too.")],
) -> None:
    """Show one node: what it is, why it is where it is, its timeline, what its machine's programs said."""
    session.result(session.client.node(name), _show)


def regions(session: Session) -> None:
    """List the regions with their pools and driver versions."""
    found = session.client.fleet_regions()
    if not session.for_people:
        session.rows(found, (), empty="")
        return
    rows = [
        {
            **pool,
            "region": region["name"],
            "drivers": ", ".join(one["id"] for one in region["driver_versions"]),
        }
        for region in found
        for pool in region["pools"]
    ]
    session.rows(rows, _REGIONS, empty="no regions; `ebbtide fleet apply FILE` adds some")


def _show(report: Json) -> None:
    stay, why, machine = report["stay"], report["why"], report["machine"]
    output.print_facts(
        [
            ("node", stay["name"]),
            ("uid", stay["uid"]),
            ("class", stay["compute_class"]),
            ("phase", stay["phase"]),
            ("cluster", stay["cluster_name"]),
            ("project", stay["project"]),
            ("host", stay["host"]),
            ("pool", why["pool"]),
            ("deadline", output.clock(stay["deadline"])),
            ("ended", stay["end_reason"]),
        ]
    )
    output.say("")
    for sentence in why["sentences"]:
        output.say(sentence)
    output.say("")
    rows = sorted([*report["timeline"], *report["events"]], key=lambda one: one["at"])
    output.print_table(rows, _EVENTS, empty="nothing happened yet")
    if machine:
        _show_machine(machine)


def _show_machine(machine: Json) -> None:
    output.say("")
    ended = "took too long" if machine["exit_code"] is None else f"ended with {machine['exit_code']}"
    output.print_facts(
        [
            ("machine", machine["instance_id"]),
            ("address", machine["address"]),
            ("state", machine["state"]),
            ("last program", f"{machine['verb']} {ended}" if machine["verb"] else None),
            ("ran", output.clock(machine["ran_at"])),
            ("gone", output.clock(machine["gone_at"])),
            ("wiped by", machine["wiped_by"]),
        ]
    )
    if machine["output"]:
        output.say("what it said:", "dim")
        output.say(machine["output"].rstrip())
