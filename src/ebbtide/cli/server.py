"""`ebbtide up`, `serve` and `worker`: the processes. Their parts are loaded only when one of them starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide import __version__
from ebbtide.cli import output
from ebbtide.cli.connection import DEFAULT_DATA
from ebbtide.cli.exits import UsageError

DEFAULT_PORT = 8080
DEMO_DRAIN_WINDOW_S = 20
DEMO_DRAIN_WINDOW_ON_KUBERNETES_S = 30

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="PostgreSQL's URL (env EBBTIDE_DATABASE_URL)."),
]
DataFolder = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="Folder of the database, the log and the connection file."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command("up")(up)
    app.command("serve")(serve)
    app.command("worker")(worker)


def up(
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="Your fleet file; without it a small simulated fleet."),
    ] = None,
    data: DataFolder = DEFAULT_DATA,
    host: Host = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="8080, or the next free one if not given; 0: any.",
        ),
    ] = None,
    drain_window: Annotated[
        int | None,
        typer.Option(
            "--drain-window",
            metavar="SECONDS",
            min=1,
            help="From notice to removal, of this start only (EBBTIDE_DRAIN_WINDOW_S lasts); 300, in the "
            "demo 20 or 30.",
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="simulated; kwok: real Kubernetes control planes here; exec: your programs. "
            "Else EBBTIDE_PROVIDER.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Play one story through the API, then go on.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --demo: end after the story; 0 if all of it happened.")
    ] = False,
) -> None:
    """Run everything in one process: API, workers, PostgreSQL in a data folder, and a fleet.

    Ctrl-C stops it; starting it again goes on where it was. SIGHUP reads the fleet file again.
    """
    if once and not demo:
        raise UsageError("--once ends after the story; give --demo too")
    if demo and fleet:
        raise UsageError("--demo plays on the fleet that comes with Ebbtide; leave --fleet out")
    # Said before the server's parts are loaded: that alone takes a second or two.
    output.note(f"ebbtide {__version__} starts, with its data in {data} ...")
    from ebbtide.cli.up import UpOptions, run_up

    options = UpOptions(data, fleet, host, port, drain_window, provider, demo, once)
    raise typer.Exit(run_up(options))


def serve(
    database: DatabaseUrl = None,
    host: Host = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="Where to listen; 0: any free one."),
    ] = DEFAULT_PORT,
    proxy_headers: Annotated[
        bool,
        typer.Option(
            "--proxy-headers", help="Believe X-Forwarded-* headers; only behind a proxy that sets them."
        ),
    ] = False,
) -> None:
    """Run the API alone, on a PostgreSQL of yours. `ebbtide worker` runs the loops beside it."""
    from ebbtide.cli.processes import run_api

    run_api(database_url(database), host, port, proxy_headers=proxy_headers)


def worker(
    database: DatabaseUrl = None,
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="A fleet file to apply at the start and on SIGHUP."),
    ] = None,
    data: DataFolder = DEFAULT_DATA,
) -> None:
    """Run the loops alone, on a PostgreSQL of yours, beside `ebbtide serve`.

    While the fleet is simulated, run one worker only: the simulated world lives in it.
    """
    from ebbtide.cli.processes import run_worker

    run_worker(database_url(database), fleet, data)


def database_url(given: str | None) -> str:
    """The URL from the flag or the environment. Raises UsageError when there is none."""
    import os

    url = given or os.environ.get("EBBTIDE_DATABASE_URL")
    if not url:
        raise UsageError(
            "no database is named; give --database postgresql://user@host/name or set EBBTIDE_DATABASE_URL "
            "(`ebbtide up` needs none: it brings its own)"
        )
    return url
