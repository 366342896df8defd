"""`ebbtide fleet sync` and `ebbtide fleet wipes`: inventory from elsewhere, and who wiped which host."""

from __future__ import annotations

import json
import subprocess
from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

MOST_BYTES = 16_000_000

WIPES = (
    Column("at", lambda wipe: output.clock(wipe["at"])),
    Column("host", "host"),
    Column("when", lambda wipe: f"{wipe['moment']} {wipe['node']}"),
    Column("project", "project_id", rare=True),
    Column("wiped by", "wiped_by"),
)
CARRYING = (
    Column("not wiped", "host"),
    Column("carries data of project", "project_id"),
)


def register(app: typer.Typer) -> None:
    """Add the commands to the fleet group."""
    command(app, "sync")(sync)
    command(app, "wipes")(wipes)


def sync(
    session: Session,
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="-- PROGRAM [ARGS]...", help="Prints the inventory as JSON; run here, by you."
        ),
    ],
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="POOL", help="The inventory lists the hosts of this pool only."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    most_removed: Annotated[
        int,
        typer.Option(
            "--most-removed",
            metavar="PERCENT",
            min=0,
            max=100,
            help="Of a pool's hosts, at once; else refuse.",
        ),
    ] = 20,
    force: Annotated[
        bool, typer.Option("--force", help="Let any number of hosts leave, and take over others' hosts.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long the program may take.")
    ] = 300,
) -> None:
    """Take inventory from a program of yours: run it, show what differs, and apply it like a fleet file."""
    inventory = _inventory(program, timeout)
    answer = session.client.sync_inventory(
        inventory, pool=pool, dry_run=dry_run, most_removed_percent=100 if force else most_removed
    )
    session.result(answer, _show)


def _show(answer: dict[str, Any]) -> None:
    before = "would be: " if answer["dry_run"] else ""
    if not answer["done"] and not answer["kept"]:
        output.say("nothing differs")
    for sentence in answer["done"]:
        output.say(before + sentence)
    for sentence in answer["kept"]:
        output.say(f"{before}kept: {sentence}", "yellow")


def _inventory(program: list[str], timeout_s: float) -> str:
    """What the program prints, as JSON of one form. Raises UsageError."""
    try:
        run = subprocess.run(program, stdout=subprocess.PIPE, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{program[0]} took longer than {timeout_s:g} s; nothing was changed") from None
    except OSError as error:
        raise UsageError(f"{program[0]} cannot be run: {error.strerror}") from error
    if run.returncode != 0:
        raise UsageError(f"{program[0]} ended with {run.returncode}; nothing was changed")
    if len(run.stdout) > MOST_BYTES:
        raise UsageError(f"{program[0]} printed more than {MOST_BYTES} bytes; split the inventory by pools")
    try:
        found = json.loads(run.stdout)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{program[0]} printed no JSON ({error}); nothing was changed") from error
    if not isinstance(found, dict | list):
        raise UsageError(f"{program[0]} printed neither an object nor a list; nothing was changed")
    return json.dumps(found, indent=1)


def wipes(
    session: Session,
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Only this host's.")] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Only around this node's stay.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="At most.")] = 100,
) -> None:
    """List who wiped which host when, the newest first, and hosts that carry somebody's data."""
    session.result(session.client.wipes(host=host, node=node, limit=limit), _show_wipes)


def _show_wipes(answer: dict[str, Any]) -> None:
    output.print_table(answer["wipes"], WIPES, empty="no wipes")
    if answer["carrying"]:
        output.print_table(answer["carrying"], CARRYING, empty="")
