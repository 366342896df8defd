"""`ebbtide secrets`: the keys that seal stored secrets (kubeconfigs, webhook secrets)."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True, help="Keys that seal stored secrets, for a server on your own PostgreSQL."
)


@app.command("new-key")
def new_key() -> None:
    """Print a fresh key for EBBTIDE_SECRET_KEYS. Put it in front of older ones, separated by commas."""
    from ebbtide.store import seal

    print(seal.new_key())
