"""`ebbtide organizations`: to which the projects belong."""

from __future__ import annotations

from typing import Annotated

import typer

from ebbtide.cli import output
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

app = typer.Typer(no_args_is_help=True, help="Organizations (operator): each project belongs to one.")

_ORGANIZATIONS = (
    Column("name", "name"),
    Column("projects", "projects", right=True),
    Column("made", lambda one: output.clock(one["created_at"])),
    Column("disabled", lambda one: output.clock(one["disabled_at"]), rare=True),
    Column("id", "id"),
)

Name = Annotated[str, typer.Argument(metavar="ORGANIZATION", help="Its name or id.")]


@command(app, "list")
def list_organizations(session: Session) -> None:
    """List the organizations with how many projects each has; for a tenant its own."""
    session.rows(session.client.organizations(), _ORGANIZATIONS, empty="no organizations")


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name for people; unique.")],
) -> None:
    """Make an organization. `ebbtide projects create --organization` then makes projects in it."""
    session.rows([session.client.create_organization(name)], _ORGANIZATIONS, empty="")


@command(app, "rename")
def rename(
    session: Session,
    organization: Name,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Give an organization another name; its id stays."""
    changed = session.client.change_organization(organization, name=name)
    session.rows([changed], _ORGANIZATIONS, empty="")


@command(app, "disable")
def disable(session: Session, organization: Name) -> None:
    """Refuse the keys of an organization's projects. Its clusters, and their bills, go on."""
    changed = session.client.change_organization(organization, disabled=True)
    session.rows([changed], _ORGANIZATIONS, empty="")


@command(app, "enable")
def enable(session: Session, organization: Name) -> None:
    """Take the keys of a disabled organization's projects again."""
    changed = session.client.change_organization(organization, disabled=False)
    session.rows([changed], _ORGANIZATIONS, empty="")
