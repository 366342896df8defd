"""`ebbtide fleet settings`: what a running server's settings are, and changing those that can change."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command, group

app = typer.Typer(help="Settings of the running server: list, set, reset.")

SETTINGS = (
    Column("setting", "name"),
    Column("value", lambda one: _shown(one["value"]), right=True),
    Column("from", "source"),
    Column("default", lambda one: _shown(one["default"]), right=True),
    Column("range", lambda one: _range(one), rare=True),
    Column("changed", lambda one: output.clock(one["changed_at"]), rare=True),
    Column("by key", "changed_by", rare=True),
    Column("what", "about"),
    Column("variable", "variable", wide=True),
)

SettingName = Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as cooldown_s.")]


@group(app)
def settings(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", help="Those too that need a restart, by their environment variables.")
    ] = False,
) -> None:
    """List the settings that can change while the server runs: value, where it comes from, who changed it."""
    found = session.client.settings()
    _show(session, [one for one in found if every or one["live"]])
    left = sum(not one["live"] for one in found)
    if session.for_people and left and not every:
        output.note(f"{left} more change with a restart only; --all lists them")


@command(app, "set")
def set_(
    session: Session,
    name: SettingName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value.")],
) -> None:
    """Change a setting for every process, within seconds and across restarts. Deadlines given stay."""
    _show_one(session, session.client.change_settings({name: _read(value)}), name)


@command(app, "reset")
def reset(session: Session, name: SettingName) -> None:
    """Let a setting have what the processes' environment says again."""
    _show_one(session, session.client.change_settings({}, [name]), name)


def _show(session: Session, rows: list[dict[str, Any]]) -> None:
    session.rows(rows, SETTINGS, empty="no settings")


def _show_one(session: Session, answer: dict[str, Any], name: str) -> None:
    _show(session, [one for one in answer["settings"] if one["name"] == name])


def _read(text: str) -> object:
    """A whole number or true or false where it reads as one; the server knows what it should be."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.removeprefix("-").isdecimal() else text


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}" if value != "" else "empty"


def _range(one: dict[str, Any]) -> str | None:
    return None if one["least"] is None else f"{one['least']}-{one['most']}"
