"""`ebbtide clusters credentials`: a cluster's kubeconfig, as a private file."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import Ref, resolve
from ebbtide.cli.exits import UsageError
from ebbtide.cli.session import Session, command
from ebbtide.errors import Conflict

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def register(app: typer.Typer) -> None:
    """Add the command to the clusters group."""
    command(app, "credentials")(credentials)


def credentials(
    session: Session,
    cluster: Ref,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="PATH", help="Where to; `-` prints it. Else NAME.kubeconfig, here."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that holds something else.")
    ] = False,
) -> None:
    """Write a cluster's kubeconfig, readable by you alone."""
    found = resolve(session.client, cluster)
    text = base64.b64decode(found["kube_config"] or "").decode()
    name, cluster_id = found["cluster_name"], found["cluster_id"]
    if found.get("imported"):
        raise Conflict(
            f"{name} was imported: its people have kubeconfigs of their own, Ebbtide has none to give"
        )
    if not text:
        status = found["status"]
        raise Conflict(f"{name} has no kubeconfig yet: it is {status}; `ebbtide clusters get` tells more")
    if file == "-":
        print(text, end="" if text.endswith("\n") else "\n")
        return
    path = Path(file or f"{name if _SAFE.fullmatch(name) else cluster_id}.kubeconfig")
    _write(path, text, force=force)
    session.result(
        {"cluster_id": cluster_id, "file": str(path)},
        lambda _: output.say(f"{path} leads to {name}: kubectl --kubeconfig {path} get nodes"),
    )


def _write(path: Path, text: str, *, force: bool) -> None:
    """Whole or not at all, and never open to others. Raises UsageError."""
    try:
        if not force and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise UsageError(f"{path} holds something else; name another file, or give --force")
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
