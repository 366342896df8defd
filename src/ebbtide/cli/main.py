"""The `ebbtide` command: its tree, and how errors leave it: a sentence, a next step, an exit code."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Annotated

import typer

from ebbtide import __version__
from ebbtide.cli import (
    access,
    audit,
    capacity,
    claims,
    cluster_settings,
    clusters,
    credentials,
    doctor,
    examples,
    exits,
    fleet,
    hosts,
    imports,
    inventory,
    kube,
    kube_rights,
    live_settings,
    nodes,
    organizations,
    output,
    playground,
    receipts,
    reference,
    remediations,
    secrets,
    server,
    storage,
    usage,
    watch,
    webhooks,
)
from ebbtide.errors import EbbtideError

app = typer.Typer(
    name="ebbtide",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lend a GPU fleet's unused hosts as preemptible nodes, and take them back within five minutes.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ebbtide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


server.register(app)
credentials.register(clusters.app)
imports.register(clusters.app)
cluster_settings.register(clusters.app)
receipts.register(clusters.app)
app.add_typer(clusters.app, name="clusters")
app.add_typer(capacity.app, name="capacity")
watch.register(app)
app.add_typer(storage.app, name="storage")
app.add_typer(remediations.app, name="remediations")
nodes.register(fleet.app)
claims.register(fleet.app)
inventory.register(fleet.app)
fleet.app.add_typer(hosts.app, name="hosts")
fleet.app.add_typer(live_settings.app, name="settings")
app.add_typer(fleet.app, name="fleet")
doctor.register(app)
usage.register(app)
app.add_typer(organizations.app, name="organizations")
app.add_typer(access.projects, name="projects")
app.add_typer(access.keys, name="keys")
audit.register(app)
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(secrets.app, name="secrets")
app.add_typer(playground.app, name="playground")
kube_rights.register(kube.app)
app.add_typer(kube.app, name="kube")
reference.register(app)
examples.attach(app)


def run() -> None:
    """The console script. Exits with one of the codes in `exits`."""
    sys.excepthook = _on_fault
    if any(not _is_text(word) for word in sys.argv):
        output.complain("an argument is not UTF-8; nothing was done")
        sys.exit(exits.USAGE)
    try:
        try:
            typer.main.get_command(app)()  # Typer's own call would put its excepthook before ours
        finally:
            sys.stdout.flush()
    except EbbtideError as error:
        output.complain(error.message, exits.next_step(error))
        sys.exit(exits.code_of(error))
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has gone. Standard output goes elsewhere, or Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exits.REFUSED)


def _is_text(word: str) -> bool:
    """Python hands undecodable bytes of the command line on as lone surrogates; no server takes them."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _on_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A fault of ours: still one sentence, and the traceback for whoever asks for it."""
    if os.environ.get("EBBTIDE_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    step = "set EBBTIDE_DEBUG=1 and run it again; then report what it prints"
    output.complain(f"ebbtide has a fault of its own: {kind.__name__}: {error}", step)
