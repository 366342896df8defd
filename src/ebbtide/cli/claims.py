"""`ebbtide fleet claim` and its kin: hosts for demand that lives in another system."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.fleet import PoolFilter
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command
from ebbtide.cli.waiting import Progress, until

Json = dict[str, Any]

CLAIMS = (
    Column("ref", "ref"),
    Column("kind", "kind"),
    Column("pool", "pool"),
    Column("state", "state"),
    Column("hosts", "hosts", right=True),
    Column("given", lambda claim: len(claim["given"]), right=True),
    Column("draining", lambda claim: len(claim["draining"]), right=True, rare=True),
    Column("waiting", "waiting", right=True, rare=True),
    Column("for", "for"),
    Column("since", lambda claim: output.clock(claim["created_at"])),
)


def register(app: typer.Typer) -> None:
    """Add the commands to the fleet group."""
    command(app, "claims")(claims)
    command(app, "claim")(claim)
    command(app, "return")(give_back)


def claims(session: Session, pool: PoolFilter = None) -> None:
    """List the claims: demands that may displace preemptible nodes."""
    session.rows(session.client.claims(pool), CLAIMS, empty="no claims")


def claim(
    session: Session,
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="From which pool.")],
    ref: Annotated[
        str,
        typer.Option(
            "--ref", metavar="REF", help="Your system's own name for this demand; repeating it is harmless."
        ),
    ],
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", min=1, help="How many hosts.")] = 1,
    for_whom: Annotated[
        str, typer.Option("--for", metavar="WHOM", help="For whom, as people read it; the ref if not given.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every host is handed over.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long to wait at most.")
    ] = 600,
) -> None:
    """Claim hosts: handed over by name at once, or draining with their deadlines, or refused. Never half."""
    answer = session.client.claim(pool, hosts, ref, for_whom or ref)
    seen = [answer]

    def look() -> Progress:
        seen[:] = [session.client.find_claim(ref)]
        return Progress(_progress(seen[0]), seen[0]["state"] != "open")

    if wait and answer["state"] == "open":
        until(look, limit_s=timeout)
    session.result(seen[0], show)


def _progress(claim: Json) -> str:
    told = [f"{len(claim['given'])} of {claim['hosts']} hosts given"]
    deadlines = [each["deadline"] for each in claim["draining"] if each["deadline"]]
    if deadlines:
        told.append(f"{len(claim['draining'])} draining, the last until {output.clock(max(deadlines))}")
    return ", ".join(told)


def show(claim: Json) -> None:
    """One claim: which hosts are there, which are on their way out and until when."""
    output.print_facts(
        [
            ("ref", claim["ref"]),
            ("state", claim["state"]),
            ("pool", claim["pool"]),
            ("for", claim["for"]),
            ("given", ", ".join(claim["given"]) or "none yet"),
            ("waiting for", claim["waiting"] or None),
        ]
    )
    if claim["draining"]:
        columns = (
            Column("draining", "host"),
            Column("deadline", lambda each: output.clock(each["deadline"])),
        )
        output.say("")
        output.print_table(claim["draining"], columns, empty="")


def give_back(
    session: Session,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The claim's reference.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="Only this host; may be repeated.")
    ] = None,
) -> None:
    """Give a claim's hosts back, all of them or those named, so that they can be lent again."""
    session.result(session.client.give_back(ref, host or None), show)
