"""`ebbtide doctor`: looks at a cluster and a fleet before they are used, and says what to do."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import connection, exits, output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column

if TYPE_CHECKING:
    from ebbtide.kube.doctor import Finding

_COLUMNS = (
    Column("result", "result"),
    Column("about", "about"),
    Column("check", "check"),
    Column("found", "found"),
)
_PROGRAMS = "EBBTIDE_EXEC_"
_TO_DO = ("problem", "warning", "unknown", "note")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command("doctor")(doctor)


def doctor(
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Look at this cluster, with this account. Nothing is written.",
        ),
    ] = None,
    standard_selector: Annotated[
        str | None,
        typer.Option(
            "--standard-selector", metavar="LABELS", help="The selector that you would import it with."
        ),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option("--fleet", metavar="FILE", help="Look at this fleet file.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Look at this server (env EBBTIDE_URL).")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Its key (env EBBTIDE_API_KEY).")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Data folder whose connection.env is used.")
    ] = connection.DEFAULT_DATA,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as problems, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Look at a cluster, a fleet file, the programs of EBBTIDE_EXEC_*, a server, and say what to do.

    With neither --kubeconfig nor --fleet the server is looked at. The programs are, if the environment names
    any: whether they are there, and what `list` answers. Exits with 1 if there is a problem.
    """
    rows: list[output.Row] = []
    if kubeconfig is not None:
        rows += _rows("cluster", asyncio.run(_cluster(_read(kubeconfig), standard_selector)))
    elif standard_selector is not None:
        raise UsageError("--standard-selector goes with --kubeconfig")
    pools: list[str] = []
    if fleet is not None:
        from ebbtide.cli.doctor_fleet import fleet_file

        findings, pools = fleet_file(_read(fleet))
        rows += _rows("fleet file", findings)
    if url or key or (kubeconfig is None and fleet is None):
        seen, known = _server(url, key, data, alone=not _names_programs())
        rows += seen
        pools = pools or known
    if _names_programs():
        from ebbtide.cli.doctor_fleet import programs

        rows += _rows("programs", asyncio.run(programs(os.environ, pools)))
    _show(rows, as_json=as_json)
    results = Counter(row["result"] for row in rows)
    if results["problem"] or (strict and results["warning"]):
        raise typer.Exit(exits.REFUSED)


async def _cluster(text: str, selector: str | None) -> list[Finding]:
    from ebbtide.clock import AnchoredClock
    from ebbtide.kube.client import KubeClient
    from ebbtide.kube.doctor import examine

    client = KubeClient(text)
    try:
        return await examine(client, text, AnchoredClock().now, selector=selector)
    finally:
        await client.close()


def _names_programs() -> bool:
    return any(name.startswith(_PROGRAMS) and value for name, value in os.environ.items())


def _server(
    url: str | None, key: str | None, data: Path, *, alone: bool
) -> tuple[list[output.Row], list[str]]:
    """What a server knows of, and its pools' names. alone: nothing else is looked at: one must be known."""
    try:
        known = connection.find(url, key, data)
    except UsageError:
        if alone or url or key:
            raise
        return [], []
    from ebbtide.cli.doctor_fleet import server
    from ebbtide.client import Client

    with Client(known.url, known.key) as client:
        found, pools = server(client)
    return _rows("server", found), pools


def _rows(about: str, findings: list[Finding]) -> list[output.Row]:
    return [
        {
            "about": about,
            "check": each.check,
            "result": each.verdict.value,
            "found": each.found,
            "do": each.do,
        }
        for each in findings
    ]


def _read(file: str) -> str:
    """Raises UsageError."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _show(rows: list[output.Row], *, as_json: bool) -> None:
    if as_json:
        output.print_json(rows)
        return
    output.print_table(rows, _COLUMNS, empty="nothing to look at")
    checks: dict[tuple[str, str], list[str]] = {}
    for result in _TO_DO:
        for row in rows:
            if row["result"] == result and row["do"]:
                checks.setdefault((result, row["do"]), []).append(row["check"])
    if checks:
        output.say("\nWhat to do")
    for (result, do), named in checks.items():
        output.say(f"  {', '.join(named)} ({result}): {do}")
