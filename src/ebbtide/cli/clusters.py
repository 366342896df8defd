"""`ebbtide clusters`: the tenant's side. Clusters are named by id, or by name where that is unambiguous."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import cluster_views as views
from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.naming import ProjectFilter, only_one
from ebbtide.cli.session import Session, command
from ebbtide.cli.waiting import Progress, until
from ebbtide.core.words import many
from ebbtide.errors import EbbtideError, NotFound
from ebbtide.ids import is_uuid4

if TYPE_CHECKING:
    from ebbtide.client import Client, Json

app = typer.Typer(no_args_is_help=True, help="Clusters: order, look, change, delete.")

Ref = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's id, or its name.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is so, and show the progress.")]
Limit = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long to wait at most.")
]


def resolve(client: Client, ref: str) -> Json:
    """The cluster of that id or name. Raises NotFound, and UsageError when several have the name."""
    if is_uuid4(ref):
        return client.cluster(ref)
    found = only_one(client.clusters(), "cluster", ref, lists="ebbtide clusters list")
    return client.cluster(found["cluster_id"])


@command(app, "list")
def list_clusters(session: Session, project: ProjectFilter = None) -> None:
    """List the clusters that the key may see."""
    found = session.client.clusters(project)
    hint = "`ebbtide clusters create NAME` orders one, `ebbtide clusters import NAME` takes one that exists"
    session.rows(found, views.LIST, empty=f"no clusters; {hint}")


@command(app, "get")
def get_cluster(session: Session, cluster: Ref) -> None:
    """Show one cluster: its state, its nodes, its latest events."""
    session.result(resolve(session.client, cluster), views.show)


@command(app, "create")
def create_cluster(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new cluster's name.")],
    region: Annotated[
        str | None,
        typer.Option(
            "--region", metavar="REGION", help="Where; needed when several regions offer the GPU model."
        ),
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option(
            "--gpu-type",
            metavar="MODEL",
            help="The GPU model, such as H100_SXM; needed when there are several.",
        ),
    ] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", metavar="N", help="Standard GPUs, never taken back; in whole hosts.")
    ] = 8,
    preemptible_gpus: Annotated[
        int,
        typer.Option(
            "--preemptible-gpus", metavar="N", help="Target of preemptible GPUs, at half the price."
        ),
    ] = 0,
    driver: Annotated[
        str | None,
        typer.Option(
            "--driver", metavar="ID", help="A driver version of the region; its first if not given."
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="The key's own if not given.")
    ] = None,
    wait: Wait = False,
    timeout: Limit = 600,
) -> None:
    """Order a cluster. Standard GPUs are promised at once or refused; preemptible ones follow."""
    place = _choose_region(session.client, region, gpu_type)
    order = {
        "cluster_name": name,
        "billing_type": "ON_DEMAND",
        "region": place["name"],
        "gpu_type": gpu_type or _only(place["supported_instance_types"], "GPU models", "--gpu-type"),
        "num_gpus": gpus,
        "num_preemptible_gpus": preemptible_gpus,
        "nvidia_version_id": driver or place["driver_versions"][0]["id"],
        "project_id": project or session.client.whoami()["project"]["id"],
    }
    _warn_of_namesakes(session, name)
    made = session.client.create_cluster(order)
    _finish(session, made, wait=wait, limit_s=timeout)


def _warn_of_namesakes(session: Session, name: str) -> None:
    """Names need not be unique; who gives one twice wants to know before a command asks for an id."""
    with contextlib.suppress(EbbtideError):  # a remark that cannot be made keeps nobody from ordering
        found = [str(one["cluster_id"]) for one in session.client.clusters() if one["cluster_name"] == name]
        if found:
            told = f"there is a cluster named {name!r} already ({', '.join(found)})"
            output.note(f"{told}; from now on commands need ids to tell them apart", "yellow")


def _choose_region(client: Client, region: str | None, gpu_type: str | None) -> Json:
    regions = client.regions()
    if region is not None:
        named = [each for each in regions if each["name"] == region]
        if not named:
            raise NotFound(
                f"there is no region {region!r}; there is: {', '.join(each['name'] for each in regions)}"
            )
        return named[0]
    offering = [each for each in regions if gpu_type is None or gpu_type in each["supported_instance_types"]]
    if not offering:
        raise NotFound(f"no region offers {gpu_type}; `tg clusters list-regions` shows what there is")
    name = _only([each["name"] for each in offering], "regions", "--region")
    return next(each for each in offering if each["name"] == name)


def _only(choices: list[str], what: str, option: str) -> str:
    if len(choices) != 1:
        raise UsageError(f"there are several {what}: {', '.join(choices)}; choose one with {option}")
    return choices[0]


@command(app, "update")
def update_cluster(
    session: Session,
    cluster: Ref,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="New number of standard GPUs.")
    ] = None,
    preemptible_gpus: Annotated[
        int | None,
        typer.Option(
            "--preemptible-gpus", metavar="N", help="New target of preemptible GPUs; 0 turns them off."
        ),
    ] = None,
    wait: Wait = False,
    timeout: Limit = 600,
) -> None:
    """Change the number of standard GPUs, or the preemptible target."""
    if gpus is None and preemptible_gpus is None:
        raise UsageError("nothing to change; give --gpus or --preemptible-gpus")
    wanted = {"num_gpus": gpus, "num_preemptible_gpus": preemptible_gpus}
    change = {name: value for name, value in wanted.items() if value is not None}
    found = resolve(session.client, cluster)
    made = session.client.update_cluster(found["cluster_id"], change)
    _finish(session, made, wait=wait, limit_s=timeout)


def _finish(session: Session, made: Json, *, wait: bool, limit_s: float) -> None:
    if wait:
        made = _wait_until_settled(session.client, made["cluster_id"], limit_s)
    session.result(made, views.show)
    if not wait and session.for_people and not views.is_settled(made):
        output.note(f"not settled yet; watch with `ebbtide clusters get {made['cluster_id']}`")


def _wait_until_settled(client: Client, cluster_id: str, limit_s: float) -> Json:
    seen: list[Json] = []

    def look() -> Progress:
        seen[:] = [client.cluster(cluster_id)]
        return Progress(views.progress(seen[0]), views.is_settled(seen[0]))

    until(look, limit_s=limit_s)
    return seen[0]


@command(app, "delete")
def delete_cluster(
    session: Session,
    cluster: Ref,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Wait = False,
    timeout: Limit = 600,
) -> None:
    """Delete a cluster and give its hosts back; an imported one is detached, and stays where it is."""
    found = resolve(session.client, cluster)
    name, cluster_id = found["cluster_name"], found["cluster_id"]
    verb, done, going = ("Detach", "detached", "being detached")
    if not found.get("imported"):
        verb, done, going = ("Delete", "deleted", "being deleted")
    if (
        not yes
        and session.for_people
        and not typer.confirm(f"{verb} cluster {name} ({cluster_id})?", err=True)
    ):
        raise typer.Abort
    answer = session.client.delete_cluster(cluster_id)
    if wait:
        until(lambda: _gone(session.client, cluster_id), limit_s=timeout)
    session.result(answer, lambda _: output.say(f"{name} is {done if wait else going}"))


def _gone(client: Client, cluster_id: str) -> Progress:
    try:
        seen = client.cluster(cluster_id)
    except NotFound:
        return Progress("gone", done=True)
    ours = [
        node
        for node in seen["gpu_worker_nodes"]
        if not seen.get("imported") or views.compute_class(node) == "preemptible"
    ]
    return Progress(f"deleting: {many(len(ours), 'node')} left", done=False)


@command(app, "events")
def cluster_events(
    session: Session,
    cluster: Ref,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Only events with a higher number.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what happened to a cluster's nodes, oldest first. With --json one event per line."""
    as_json = session.line_by_line
    cluster_id = resolve(session.client, cluster)["cluster_id"]

    def look() -> Progress:
        nonlocal after
        while (page := session.client.events(cluster_id, after=after))["events"]:
            after = page["next_after"]
            views.print_events(page["events"], as_json=as_json)
        return Progress(f"waiting for events after number {after}", done=not follow)

    until(look, limit_s=float("inf"), every_s=1.0)
