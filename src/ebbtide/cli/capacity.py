"""`ebbtide capacity`: what could be had now, and how long it took and lasted so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import resolve
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command, group

if TYPE_CHECKING:
    from ebbtide.client import Json

app = typer.Typer(help="What is free now; how long targets took and nodes lived.")

Region = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Only this one.")]
GpuType = Annotated[str | None, typer.Option("--gpu-type", metavar="MODEL", help="Only this GPU model.")]


def _gpus(name: str) -> Column:
    def told(offer: Json) -> str:
        return f"{offer[f'{name}_gpus']}{'+' if offer[f'{name}_more'] else ''}"

    return Column(name, told, right=True)


_OFFER = (
    Column("region", "region"),
    Column("gpu type", "gpu_type"),
    _gpus("standard"),
    _gpus("preemptible"),
    Column("$/gpu-hour", lambda offer: output.dollars(offer["microdollars_per_gpu_hour"]), right=True),
    Column(
        "preemptible $",
        lambda offer: output.dollars(offer["preemptible_microdollars_per_gpu_hour"]),
        right=True,
    ),
    Column("per host", "gpus_per_host", right=True, wide=True),
)


@group(app)
def now(session: Session, region: Region = None, gpu_type: GpuType = None) -> None:
    """Show how many GPUs one cluster could get now: as standard ones, and as preemptible ones."""
    session.result(session.client.capacity(region=region, gpu_type=gpu_type), _show)


def _show(found: Json) -> None:
    output.print_table(found["offers"], _OFFER, empty="no such region or GPU model")
    quota = found["quota_left"]
    left = [f"{quota[f'{name}_gpus']} {name}" for name in ("standard", "preemptible") if _limits(quota, name)]
    if left:
        output.say(f"your project's quota leaves {' and '.join(left)} GPUs", style="dim")


def _limits(quota: Json, name: str) -> bool:
    return quota[f"{name}_gpus"] is not None


def _figure(what: str, figure: str) -> Column:
    def told(row: Json) -> str | None:
        found = row[what]
        silent = found["enough"] or figure != "median_s"
        return output.span(found[figure]) or (None if silent else found["note"])

    return Column(f"{what} {figure.removesuffix('_s')}", told, right=True)


def _ended(found: Json) -> str:
    return f"{found['ended']} of {found['samples']}"


_HISTORY = (
    Column("region", "region"),
    Column("gpu type", "gpu_type"),
    _figure("fill", "median_s"),
    _figure("fill", "p90_s"),
    Column("fills ended", lambda row: _ended(row["fill"]), right=True),
    _figure("life", "median_s"),
    _figure("life", "p90_s"),
    Column("lives ended", lambda row: _ended(row["life"]), right=True),
    Column("since", lambda row: output.clock(row["since"])),
)


@command(app, "history")
def history(
    session: Session,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="CLUSTER", help="Of this one alone.")
    ] = None,
    region: Region = None,
    gpu_type: GpuType = None,
) -> None:
    """Show how long raised targets took until nodes ran, and how long nodes ran until they were taken."""
    if cluster is None:
        found = session.client.capacity_history(region=region, gpu_type=gpu_type)
    elif region or gpu_type:
        raise UsageError("a cluster has one region and one GPU model; leave --region and --gpu-type out")
    else:
        found = [session.client.cluster_history(resolve(session.client, cluster)["cluster_id"])]
    session.rows(found, _HISTORY, empty="no such region or GPU model")
