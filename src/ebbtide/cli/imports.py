"""`ebbtide clusters import`: a cluster that exists gets preemptible nodes of this fleet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli import cluster_views as views
from ebbtide.cli import output, storage
from ebbtide.cli.clusters import Limit, Ref, Wait, resolve
from ebbtide.cli.exits import UsageError
from ebbtide.cli.session import Session, command
from ebbtide.cli.waiting import Progress, until
from ebbtide.client import Client, Json
from ebbtide.errors import BadInput

_LARGEST = 262_144

KubeconfigFile = Annotated[
    str,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Ebbtide's own way in, credentials within it; `-` reads it."
    ),
]
Selector = Annotated[
    str,
    typer.Option(
        "--standard-selector",
        metavar="LABELS",
        help="A label selector of the nodes that the cluster has: they count as standard, and stay.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the clusters group."""
    command(app, "import")(import_cluster)
    command(app, "renew-import")(renew_import)


def import_cluster(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called here.")],
    kubeconfig: KubeconfigFile,
    standard_selector: Selector,
    region: Annotated[
        str, typer.Option("--region", metavar="REGION", help="Where its preemptible nodes come from.")
    ],
    gpu_type: Annotated[
        str, typer.Option("--gpu-type", metavar="MODEL", help="The GPU model of its preemptible nodes.")
    ],
    preemptible_gpus: Annotated[
        int, typer.Option("--preemptible-gpus", metavar="N", help="Target of preemptible GPUs.")
    ] = 0,
    placement: Annotated[
        str,
        typer.Option(
            "--placement",
            metavar="HOW",
            help="explicit: preemptible nodes are tainted; open (the usual one): they are not.",
        ),
    ] = "open",
    volume: Annotated[
        str | None,
        typer.Option(
            "--volume", metavar="VOLUME", help="A storage volume that is to stand in it, by name or id."
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="Whose it is; the key's own if not given.")
    ] = None,
    wait: Wait = False,
    timeout: Limit = 120,
) -> None:
    """Take in a cluster that exists. Its own nodes are never touched; deleting it here detaches it."""
    order = {
        "cluster_name": name,
        "region": region,
        "gpu_type": gpu_type,
        "kubeconfig": _read(kubeconfig),
        "standard_selector": standard_selector,
        "num_preemptible_gpus": preemptible_gpus,
        "placement": placement,
        "project_id": project,
        "volume_id": None if volume is None else storage.resolve(session.client, volume)["volume_id"],
    }
    _finish(session, session.client.import_cluster(order), wait=wait, limit_s=timeout)


def renew_import(
    session: Session,
    cluster: Ref,
    kubeconfig: Annotated[
        str | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The new way in; `-` reads it."),
    ] = None,
    standard_selector: Annotated[
        str | None, typer.Option("--standard-selector", metavar="LABELS", help="The new selector.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Take another address also while it has preemptible nodes."),
    ] = False,
    wait: Wait = False,
    timeout: Limit = 120,
) -> None:
    """Give an imported cluster another kubeconfig (before a token ends, say), or another selector."""
    if kubeconfig is None and standard_selector is None:
        raise UsageError("nothing to change; give --kubeconfig or --standard-selector")
    change: dict[str, object] = {
        "kubeconfig": None if kubeconfig is None else _read(kubeconfig),
        "standard_selector": standard_selector,
    }
    if force:
        change["force"] = True
    found = resolve(session.client, cluster)
    renewed = session.client.renew_import(found["cluster_id"], change)
    _finish(session, renewed, wait=wait, limit_s=timeout)


def _read(file: str) -> str:
    """A kubeconfig's text. Raises UsageError."""
    try:
        text = sys.stdin.read(_LARGEST + 1) if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    if not text.strip() or len(text) > _LARGEST:
        raise UsageError(f"{file} is no kubeconfig: it is {'empty' if not text.strip() else 'too large'}")
    return text


def _finish(session: Session, made: Json, *, wait: bool, limit_s: float) -> None:
    if wait:
        made = _wait_until_seen(session.client, made["cluster_id"], limit_s)
    session.result(made, views.show)
    if not wait and session.for_people:
        output.note(f"it is looked at next; `ebbtide clusters get {made['cluster_id']}` says what came of it")


def _wait_until_seen(client: Client, cluster_id: str, limit_s: float) -> Json:
    seen: list[Json] = []

    def look() -> Progress:
        seen[:] = [client.cluster(cluster_id)]
        problem = (seen[0].get("imported") or {}).get("problem")
        told = f"{seen[0]['status']}, {seen[0]['num_gpus']} standard GPUs"
        ready = seen[0]["status"] == "Ready" and not problem
        return Progress(f"{told}: {problem}" if problem else told, ready)

    until(look, limit_s=limit_s)
    if (seen[0].get("imported") or {}).get("problem"):
        raise BadInput(seen[0]["imported"]["problem"])
    return seen[0]
