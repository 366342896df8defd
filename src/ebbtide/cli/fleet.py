"""`ebbtide fleet`: the operator's side. Pools, hosts and nodes; the fleet file; reclaims on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.errors import NotFound

_HELP = (
    "The fleet (operator): pools, hosts, claims, the fleet file, settings.\n\n"
    "An operator's day: `hosts` says who has what; `hosts add` adds some; `hosts cordon` keeps new occupants "
    "away; `hosts drain` empties one to be worked on (--dry-run: who would be disturbed); `hosts show` says "
    "who was; `hosts return` puts it back into service."
)
app = typer.Typer(no_args_is_help=True, help=_HELP)

PoolFilter = Annotated[str | None, typer.Option("--pool", metavar="POOL", help="Only this pool's.")]

HostName = Annotated[str, typer.Argument(metavar="HOST", help="The host's name.")]

_MOST_FILE_BYTES = 16_000_000


def _count(bucket: str, *, rare: bool = True) -> Column:
    return Column(bucket.replace("_", " "), lambda pool: pool["counts"].get(bucket, 0), right=True, rare=rare)


POOLS = (
    Column("pool", "name"),
    Column("region", "region"),
    Column("gpu type", "gpu_type"),
    Column("$/gpu-hour", lambda pool: output.dollars(pool["microdollars_per_gpu_hour"]), right=True),
    Column("hosts", "hosts", right=True),
    *(_count(bucket, rare=False) for bucket in ("free", "standard", "preemptible")),
    *(
        _count(bucket)
        for bucket in ("headroom", "external", "draining", "turning_over", "cordoned", "broken")
    ),
    Column("promised", "promised", right=True, rare=True),
    Column("wipe", lambda pool: None if pool.get("wipe") == "always" else pool.get("wipe"), rare=True),
)
HOSTS = (
    Column("host", "name"),
    Column("pool", "pool"),
    Column("block", "fabric_block"),
    Column("state", "state"),
    Column("doing", "bucket"),
    Column("lent to", "lent_to", rare=True),
    Column("node", "node_name", rare=True),
    Column("since", lambda host: output.clock(host["since"]), rare=True),
    Column("remark", "state_reason", rare=True),
)
NODES = (
    Column("node", "name"),
    Column("class", "compute_class"),
    Column("phase", "phase"),
    Column("host", "host"),
    Column("deadline", lambda node: output.clock(node["deadline"]), rare=True),
    Column("last visit", "outcome"),
    Column("its program said", lambda node: node.get("said"), rare=True),
)


@command(app, "pools")
def pools(session: Session) -> None:
    """List the pools, with their hosts counted by what they are doing."""
    session.rows(session.client.pools(), POOLS, empty="no pools; `ebbtide fleet apply FILE` adds some")


@command(app, "nodes")
def nodes(
    session: Session,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="CLUSTER", help="Only this one's.")
    ] = None,
) -> None:
    """List nodes with their phase, their deadline and what their last visit found."""
    from ebbtide.cli.clusters import resolve

    cluster_id = resolve(session.client, cluster)["cluster_id"] if cluster else None
    session.rows(session.client.nodes(cluster_id), NODES, empty="no nodes")


@command(app, "reclaim")
def reclaim(
    session: Session,
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="From which pool.")],
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", min=1, help="How many hosts, at most.")] = 1,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, as the tenants read it in their events.")
    ] = "the operator asked for it",
) -> None:
    """Take preemptible nodes back now, with the full notice. Standard nodes are never touched."""
    answer = session.client.reclaim(pool, hosts, reason)
    session.result(
        answer, lambda found: output.print_table(found["nodes"], NODES, empty="no node could be taken back")
    )
    if len(answer["nodes"]) < hosts:
        output.note(f"{len(answer['nodes'])} of {hosts}: the pool has no more preemptible nodes to take")


@command(app, "cordon")
def cordon(
    session: Session,
    host: HostName,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; shown with the host.")
    ] = None,
) -> None:
    """Keep a host from new occupants; the present one stays."""
    session.rows([session.client.cordon(host, reason)], HOSTS, empty="")


@command(app, "uncordon")
def uncordon(session: Session, host: HostName) -> None:
    """Let a host have occupants again; this also ends a quarantine."""
    session.rows([session.client.uncordon(host)], HOSTS, empty="")


@command(app, "why")
def why(
    session: Session,
    what: Annotated[str, typer.Argument(metavar="NAME", help="A node or a cluster, by name or id.")],
) -> None:
    """Say why a node is where it is, or why a cluster's target is not met, and what comes next."""
    from ebbtide.cli.clusters import resolve

    try:
        found = session.client.why_node(what)
    except NotFound:
        found = session.client.why_target(resolve(session.client, what)["cluster_id"])
    session.result(found, _show_sentences)


def _show_sentences(answer: dict[str, Any]) -> None:
    for sentence in answer["sentences"]:
        output.say(sentence)


@command(app, "ownership")
def ownership(session: Session) -> None:
    """Show who owns which field: the fleet file, or the API."""
    columns = (Column("what", "what"), Column("owner", "owner"), Column("note", "note"))
    session.rows(session.client.ownership(), columns, empty="")


@command(app, "apply")
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fleet file (YAML).")],
) -> None:
    """Apply a fleet file to the running server: adds and changes; never forgets a host that is lent."""
    session.result(session.client.apply_fleet_file(read_fleet_file(file)), show_changes)


def show_changes(changes: dict[str, Any]) -> None:
    """What applying a file did, and what it left for later."""
    for sentence in changes["done"] or ["nothing to change"]:
        output.say(sentence)
    for sentence in changes["kept"]:
        output.say(f"kept: {sentence}", "yellow")


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fleet file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Check a fleet file without a server: prints what it holds, or every mistake with its line."""
    from ebbtide.services import fleet_file

    found = fleet_file.parse(read_fleet_file(file), str(file))
    rows: list[dict[str, Any]] = [
        {
            "pool": pool.name,
            "region": pool.region,
            "gpu_type": pool.gpu_type,
            "hosts": len(pool.hosts),
            "gpus": len(pool.hosts) * pool.gpus_per_host,
            "blocks": len({host.fabric_block for host in pool.hosts}),
            "microdollars_per_gpu_hour": pool.microdollars_per_gpu_hour,
        }
        for pool in found.pools
    ]
    if as_json:
        output.print_json({"regions": [region.name for region in found.regions], "pools": rows})
        return
    columns = (
        *(Column(name.replace("_", " "), name) for name in ("pool", "region", "gpu_type")),
        *(Column(name, name, right=True) for name in ("hosts", "gpus", "blocks")),
        Column("$/gpu-hour", lambda row: output.dollars(row["microdollars_per_gpu_hour"]), right=True),
    )
    output.print_table(rows, columns, empty="")


@app.command("example")
def example() -> None:
    """Print the fleet file that `ebbtide up` uses when it is given none; a start for your own."""
    print(packaged_fleet_file(), end="")


def packaged_fleet_file() -> str:
    """The text of the fleet file that comes with Ebbtide."""
    from importlib import resources

    return resources.files("ebbtide").joinpath("fleets", "demo.yaml").read_text(encoding="utf-8")


def read_fleet_file(path: Path) -> bytes:
    """A fleet file's bytes; the parser reads them. Raises UsageError for a file that cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_FILE_BYTES:
        raise UsageError(f"{path} is too large for a fleet file; use `count` or `blocks` for many hosts")
    return data
