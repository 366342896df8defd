"""`ebbtide kube`: the Kubernetes programs that real control planes on this machine need."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import exits, output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column

if TYPE_CHECKING:
    from ebbtide.kube.places import Places

app = typer.Typer(
    no_args_is_help=True, help="Kubernetes programs for control planes on this machine (no cluster needed)."
)

_COLUMNS = (
    Column("program", "program"),
    Column("version", "version"),
    Column("from", "source"),
    Column("path", "path"),
)
_VERSION_LIMIT_S = 20

Only = Annotated[
    str | None,
    typer.Option("--only", metavar="A,B", help="These programs; else all that can run here."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@app.command("install")
def install(only: Only = None, as_json: AsJson = False) -> None:
    """Find the programs, and get those that are missing.

    Looked for in the folder that EBBTIDE_KUBE_DIR or KUBEBUILDER_ASSETS names, then in the cache; what is in
    neither comes from the projects' release files, or is built with Go. May be interrupted and run again.
    """
    from ebbtide.cli.kube_progress import progress
    from ebbtide.kube.install import install as get
    from ebbtide.kube.places import places

    where = places()
    with progress() as hears:
        asyncio.run(get(_names(only, where), where, hears))
    _show(only, where, as_json=as_json)


@app.command("status")
def status(only: Only = None, as_json: AsJson = False) -> None:
    """Say which programs are there, and where. Exits with 1 if one is missing."""
    from ebbtide.kube.places import places

    if not _show(only, places(), as_json=as_json):
        if not as_json:
            output.note("`ebbtide kube install` gets what is missing")
        raise typer.Exit(exits.REFUSED)


def _names(only: str | None, where: Places) -> tuple[str, ...]:
    from ebbtide.kube.programs import PROGRAMS, wanted_here

    if only is None:
        return wanted_here(where.platform)
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown or not names:
        raise UsageError(f"--only {only}: there are {', '.join(PROGRAMS)}")
    return names


def _show(only: str | None, where: Places, *, as_json: bool) -> bool:
    """Print the table; whether all are there."""
    from ebbtide.kube.programs import named

    rows: list[output.Row] = []
    for program in named(_names(only, where)):
        found = where.find(program)
        rows.append(
            {
                "program": program.name,
                "wanted": program.project.version,
                "version": None if found is None else _version(str(found.path)),
                "source": "missing" if found is None else found.source,
                "path": None if found is None else str(found.path),
            }
        )
    if as_json:
        output.print_json(rows)
    else:
        output.print_table(rows, _COLUMNS, empty="no program was asked for")
    return all(row["path"] for row in rows)


def _version(path: str) -> str:
    """What the program calls its version: the first word of its answer that has a digit in it."""
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {type(error).__name__}"
    words = (word for word in ran.stdout.split() if any(each.isdigit() for each in word))
    return next(words, "unknown")
