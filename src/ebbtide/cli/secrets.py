"""`ebbtide secrets`: the keys that seal stored secrets (kubeconfigs, webhook secrets)."""

from __future__ import annotations

import typer

from ebbtide.cli import output
from ebbtide.cli.server import DatabaseUrl, database_url

app = typer.Typer(
    no_args_is_help=True, help="Keys that seal stored secrets, for a server on your own PostgreSQL."
)


@app.command("new-key")
def new_key() -> None:
    """Print a fresh key for EBBTIDE_SECRET_KEYS. Put it in front of older ones, separated by commas."""
    from ebbtide.store import seal

    print(seal.new_key())


@app.command("reseal")
def reseal(database: DatabaseUrl = None) -> None:
    """Seal every stored secret with the first key in EBBTIDE_SECRET_KEYS; the old ones can go afterwards."""
    import asyncio

    from ebbtide import assembly
    from ebbtide.cli.processes import secret_keys

    count = asyncio.run(assembly.reseal(database_url(database), secret_keys()))
    output.say(f"{count} secrets are sealed with the newest key")
