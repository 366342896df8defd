"""`ebbtide audit`: who changed what, from what, to what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

Json = dict[str, Any]

_PAGE = 500
_TOLD = 3  # of a list, in a table; --json has all of it


def _change(entry: Json) -> str:
    """Only what is told: `weight 1 -> 3`, or `name demo` where there was nothing before."""
    before, after = entry["before"] or {}, entry["after"] or {}
    return ", ".join(_told(name, before, after) for name in dict.fromkeys([*before, *after]))


def _told(name: str, before: Json, after: Json) -> str:
    if name in before and name in after:
        return f"{name} {_value(before[name])} -> {_value(after[name])}"
    return f"{name} {_value(after[name])}" if name in after else f"{name} was {_value(before[name])}"


def _value(value: object) -> str:
    if isinstance(value, list):
        more = [f"and {len(value) - _TOLD} more"] if len(value) > _TOLD else []
        return "; ".join([*(str(each) for each in value[:_TOLD]), *more])
    return "none" if value is None else str(value)


_COLUMNS = (
    Column("no", "number", right=True),
    Column("when", lambda entry: output.clock(entry["at"])),
    Column("key", lambda entry: entry["key_id"] or ("an operator" if entry["role"] else "the server")),
    Column("role", "role", wide=True),
    Column("project", "project_id", wide=True),
    Column("action", "action"),
    Column("subject", "subject"),
    Column("change", _change),
    Column("request", "request_id", wide=True),
)


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "audit")(audit)


def audit(
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many changes at most, the newest first.")
    ] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NO", min=1, help="Only changes with a lower number.")
    ] = None,
) -> None:
    """Show changes made with the project's keys or to its things (operators: all), the newest first."""
    found: list[Json] = []
    more = before
    while len(found) < limit:
        page = session.client.audit(before=more, limit=min(_PAGE, limit - len(found)))
        found += page["entries"]
        more = page["next_before"]
        if more is None:
            break
    session.rows(found, _COLUMNS, empty="no changes were made")
    if more is not None and session.for_people:
        output.note(f"older ones: ebbtide audit --before {more}")
