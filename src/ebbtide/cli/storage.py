"""`ebbtide storage`: volumes. They are named by id, or by name where that is unambiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import Limit, Wait
from ebbtide.cli.exits import UsageError
from ebbtide.cli.naming import ProjectFilter, only_one
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.cli.waiting import Progress, until
from ebbtide.ids import is_uuid4

if TYPE_CHECKING:
    from ebbtide.client import Client, Json

app = typer.Typer(no_args_is_help=True, help="Storage volumes: order, look, grow, delete.")

Ref = Annotated[str, typer.Argument(metavar="VOLUME", help="The volume's id, or its name.")]

VOLUMES = (
    Column("name", "volume_name"),
    Column("tib", "size_tib", right=True),
    Column("status", "status"),
    Column("id", "volume_id"),
)
_SETTLED = ("available", "bound", "failed")


def resolve(client: Client, ref: str) -> Json:
    """The volume of that id or name. Raises NotFound, and UsageError when several have the name."""
    if is_uuid4(ref):
        return client.volume(ref)
    return only_one(client.volumes(), "volume", ref, lists="ebbtide storage list")


@command(app, "list")
def list_volumes(session: Session, project: ProjectFilter = None) -> None:
    """List the volumes that the key may see."""
    empty = "no volumes; `ebbtide storage create NAME --size-tib N` orders one"
    session.rows(session.client.volumes(project), VOLUMES, empty=empty)


@command(app, "get")
def get_volume(session: Session, volume: Ref) -> None:
    """Show one volume."""
    session.result(resolve(session.client, volume), show)


@command(app, "create")
def create_volume(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, also inside the cluster: a-z, 0-9 and dashes.")
    ],
    size_tib: Annotated[int, typer.Option("--size-tib", metavar="N", help="Its size in whole TiB.")],
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="REGION", help="Where; needed when there are several regions."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep it when a cluster that it was made with goes.")
    ] = False,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="The key's own if not given.")
    ] = None,
    wait: Wait = False,
    timeout: Limit = 600,
) -> None:
    """Order a volume. `tg clusters create --volume ID` then gives it to a cluster."""
    order = {
        "volume_name": name,
        "size_tib": size_tib,
        "region": region or _only_region(session.client),
        "is_lifecycle_independent": keep,
        "project_id": project,
    }
    _finish(session, session.client.create_volume(order), wait=wait, limit_s=timeout)


def _only_region(client: Client) -> str:
    names = [str(each["name"]) for each in client.regions()]
    if len(names) != 1:
        raise UsageError(f"there are several regions: {', '.join(names)}; choose one with --region")
    return names[0]


@command(app, "grow")
def grow_volume(
    session: Session,
    volume: Ref,
    size_tib: Annotated[
        int, typer.Option("--size-tib", metavar="N", help="Its new size in whole TiB; never less than now.")
    ],
) -> None:
    """Make a volume larger. It can be used meanwhile, and its cluster shows the new size."""
    found = resolve(session.client, volume)
    session.result(session.client.grow_volume(found["volume_id"], size_tib), show)


@command(app, "delete")
def delete_volume(
    session: Session,
    volume: Ref,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a volume and its data. Refused while a cluster has it."""
    found = resolve(session.client, volume)
    name, volume_id = found["volume_name"], found["volume_id"]
    sure = yes or session.as_json or typer.confirm(f"Delete volume {name} and its data?", err=True)
    if not sure:
        raise typer.Abort
    answer = session.client.delete_volume(volume_id)
    session.result(answer, lambda _: output.say(f"{name} is being deleted"))


def _finish(session: Session, made: Json, *, wait: bool, limit_s: float) -> None:
    seen = [made]

    def look() -> Progress:
        seen[:] = [session.client.volume(made["volume_id"])]
        return Progress(f"{made['volume_name']}: {seen[0]['status']}", seen[0]["status"] in _SETTLED)

    if wait:
        until(look, limit_s=limit_s)
    session.result(seen[0], show)


def show(volume: Json) -> None:
    """One volume's facts."""
    output.print_facts(
        [
            ("name", volume["volume_name"]),
            ("id", volume["volume_id"]),
            ("status", volume["status"]),
            ("size", f"{volume['size_tib']} TiB"),
        ]
    )
