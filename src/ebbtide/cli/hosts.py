"""`ebbtide fleet hosts`: the operator's hosts, listed, and one by one."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.fleet import HOSTS, HostName, PoolFilter, cordon, uncordon
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command, group
from ebbtide.cli.waiting import Progress, until
from ebbtide.clock import AnchoredClock

Json = dict[str, Any]

app = typer.Typer(help="Hosts: list, show, add, cordon, drain for maintenance, return, remove.")

STAYS = (
    Column("node", "name"),
    Column("class", "compute_class"),
    Column("of", lambda stay: stay["cluster_name"], rare=True),
    Column("project", "project", rare=True),
    Column("from", lambda stay: output.clock(stay["placed_at"])),
    Column("until", lambda stay: output.clock(stay["left_at"]) or _still(stay)),
    Column("ended", lambda stay: _ended(stay)),
    Column("because", "why", rare=True),
    Column("last visit", "outcome", wide=True),
)
_SPAN = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_WAIT_LIMIT_S = 900.0


@group(app)
def hosts(session: Session, pool: PoolFilter = None) -> None:
    """List the hosts, and who has each. The commands below are for one host."""
    empty = "no hosts; `ebbtide fleet hosts add NAME --pool POOL` and `ebbtide fleet apply FILE` add some"
    session.rows(session.client.hosts(pool), HOSTS, empty=empty)


@command(app, "show")
def show(session: Session, host: HostName) -> None:
    """Show a host: who has it, who was disturbed by its maintenance, and who was on it before."""
    session.result(session.client.host(host), _show)


@command(app, "add")
def add(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="HOST...", help="Their names, unique in the fleet.")],
    pool: Annotated[str, typer.Option("--pool", metavar="POOL", help="To which pool.")],
    block: Annotated[
        str | None,
        typer.Option("--block", metavar="BLOCK", help="Their fabric block; `default` if not given."),
    ] = None,
) -> None:
    """Add hosts to a pool, lendable at once. The fleet file does not touch what was added so."""
    added = [session.client.add_host(name, pool, block) for name in names]
    session.rows(added, HOSTS, empty="")


command(app, "cordon")(cordon)
command(app, "uncordon")(uncordon)


@command(app, "drain")
def drain(
    session: Session,
    host: HostName,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the tenants who are disturbed read it, too.")
    ],
    until_: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="When it should be over: 90m, 2h, 1d, or 2026-01-02T03:04:05Z. Nothing happens by itself.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say who would be disturbed, and do nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until the host is empty and held.")] = False,
) -> None:
    """Empty a host and hold it for maintenance; a preemptible node gets notice, a standard one another host.

    Nobody gets the host until `ebbtide fleet hosts return`. Refused where a standard node cannot be replaced.
    """
    ends = _instant(until_) if until_ else None
    report = session.client.drain_host(host, reason, until=ends, dry_run=dry_run)
    if wait and not dry_run:
        until(lambda: _progress(session, host), limit_s=_WAIT_LIMIT_S)
        report = session.client.host(host)
    session.result(report, _show_maintenance)


@command(app, "return")
def give_back(session: Session, host: HostName) -> None:
    """Put a host back into service after maintenance. While it still drains: call the maintenance off."""
    report = session.client.return_host(host)
    session.result(report, lambda found: output.print_table([found["host"]], HOSTS, empty=""))


@command(app, "remove")
def remove(session: Session, host: HostName) -> None:
    """Take a free or drained host out of the inventory. Its history and its bills stay."""
    session.result(session.client.remove_host(host), lambda _: output.say(f"{host} is removed"))


def _still(stay: Json) -> str:
    return "has it" if stay["phase"] in ("RUNNING", "DRAINING", "REMOVING") else "is coming"


def _ended(stay: Json) -> str | None:
    if stay["phase"] == "DRAINING":
        return f"drains until {output.clock(stay['deadline'])}"
    if stay["phase"] == "REMOVING":
        return f"{stay['end_reason']}, host not free yet"
    found: str | None = stay["end_reason"]
    return found


_SOURCES = {"file": "the fleet file", "sync": "the synchronised inventory", "api": "the API"}


def _show(report: Json) -> None:
    host = report["host"]
    output.print_facts(
        [
            ("host", host["name"]),
            ("pool", f"{host['pool']}, block {host['fabric_block']}"),
            ("state", host["state"]),
            ("remark", host["state_reason"]),
            ("doing", host["bucket"].replace("_", " ")),
            ("lent to", host["lent_to"]),
            ("node", host["node_name"]),
            ("since", output.clock(host["since"])),
            ("added by", _SOURCES.get(host["source"], host["source"])),
        ]
    )
    if report["maintenance"]:
        output.say("")
        _show_maintenance(report)
    output.say("")
    output.say("who was on it, the latest first", "bold")
    output.print_table(report["history"], STAYS, empty="nobody yet")


def _show_maintenance(report: Json) -> None:
    found = report["maintenance"]
    output.say(f"maintenance of {report['host']['name']}: {found['reason']}", "bold")
    for sentence in _sentences(report):
        output.say(sentence)
    if found["disturbed"]:
        output.print_table(found["disturbed"], (Column("host", "host"), *STAYS), empty="")


def _sentences(report: Json) -> list[str]:
    found, name = report["maintenance"], report["host"]["name"]
    number = len(found["disturbed"])
    who = "nobody" if not number else f"{number} {'node' if number == 1 else 'nodes'}"
    if report["dry_run"]:
        return ["a dry run: nothing happened", f"{who} would be disturbed{':' if number else ''}"]
    said = [f"begun at {output.clock(found['began_at'])}"]
    if found["until"]:
        said[0] += f", to be over by {output.clock(found['until'])}"
    if found["state"] == "draining":
        said.append(f"not empty yet; `ebbtide fleet hosts show {name}` says when it is")
    elif found["state"] == "held":
        held = output.clock(found["held_at"])
        said.append(f"empty and held since {held}; `ebbtide fleet hosts return {name}` ends it")
    else:
        said.append(f"{found['ended_how']} at {output.clock(found['ended_at'])}")
    return [*said, f"{who} disturbed by it{':' if number else ''}"]


def _progress(session: Session, host: str) -> Progress:
    report = session.client.host(host)
    found = report["maintenance"]
    if found is None or found["state"] != "draining":
        return Progress("empty", done=True)
    going = [f"{stay['name']} is {stay['phase']}" for stay in report["history"][:1]]
    return Progress(", ".join(going) or "waiting", done=False)


def _instant(text: str) -> str:
    """A time of the wire from a span or a time. Raises UsageError."""
    span = _SPAN.fullmatch(text.strip())
    if span is None:
        if "T" not in text and " " not in text:
            raise UsageError(f"--until takes 90m, 2h, 1d, or a time like 2026-01-02T03:04:05Z, not {text!r}")
        return text
    ends = AnchoredClock().now() + timedelta(**{_UNITS[span[2]]: int(span[1])})
    return ends.strftime("%Y-%m-%dT%H:%M:%SZ")
