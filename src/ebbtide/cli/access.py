"""`ebbtide projects` and `ebbtide keys`: who may use the server (operator)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.server import DatabaseUrl, database_url
from ebbtide.cli.session import Session, command

projects = typer.Typer(no_args_is_help=True, help="Projects (operator): whose clusters and bills are whose.")
keys = typer.Typer(no_args_is_help=True, help="Keys (operator): issue, list, revoke.")

_PROJECTS = (
    Column("slug", "slug"),
    Column("name", "name"),
    Column("weight", "weight", right=True),
    Column("id", "id"),
)
_KEYS = (
    Column("id", "id"),
    Column("project", "project_name"),
    Column("role", "role"),
    Column("ends in", "hint"),
    Column("created", lambda key: output.clock(key["created_at"])),
    Column("expires", lambda key: output.clock(key["expires_at"]), rare=True),
    Column("revoked", lambda key: output.clock(key["revoked_at"]), rare=True),
)
_ROLES = ("member", "admin", "operator")

Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="member, admin or operator.")]


@command(projects, "list")
def list_projects(session: Session) -> None:
    """List the projects that the key may see."""
    session.rows(session.client.projects(), _PROJECTS, empty="no projects")


@command(projects, "create")
def create_project(
    session: Session,
    slug: Annotated[
        str, typer.Argument(metavar="SLUG", help="Its short name: lower-case letters, digits and dashes.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name for people; the slug if not given.")
    ] = None,
    weight: Annotated[
        int, typer.Option("--weight", metavar="N", min=1, help="Its share of spare hosts beside others.")
    ] = 1,
) -> None:
    """Make a project. `ebbtide keys create` then issues its first key."""
    session.result(session.client.create_project(slug, name, weight), _show_project)


def _show_project(project: dict[str, Any]) -> None:
    output.print_facts([("slug", project["slug"]), ("name", project["name"]), ("id", project["id"])])
    output.note(f"next: ebbtide keys create --project {project['slug']}")


@command(keys, "list")
def list_keys(session: Session) -> None:
    """List keys, without their secret part."""
    session.rows(session.client.keys(), _KEYS, empty="no keys")


@command(keys, "create")
def create_key(
    session: Session,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="PROJECT", help="Its id or slug; the caller's own if not given."),
    ] = None,
    role: Role = "member",
) -> None:
    """Issue a key. It is shown this once; the server keeps only its hash."""
    _check_role(role)
    target = project or session.client.whoami()["project"]["id"]
    session.result(session.client.create_key(target, role), _show_key)


@keys.command("first")
def first_key(
    database: DatabaseUrl = None,
    project: Annotated[
        str, typer.Option("--project", metavar="SLUG", help="Its project, made if it is not there.")
    ] = "default",
    role: Role = "operator",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Write a key straight into the database: the first one of a server on a PostgreSQL of yours."""
    _check_role(role)
    from ebbtide.cli.processes import issue_first_key

    issued = issue_first_key(database_url(database), project, role)
    details = issued.details
    key = {
        "key": issued.secret,
        "id": details.id,
        "project_id": details.project_id,
        "project_name": details.project_name,
        "role": details.role.value,
    }
    if as_json:
        output.print_json(key)
    else:
        _show_key(key)


def _check_role(role: str) -> None:
    if role not in _ROLES:
        raise UsageError(f"--role takes {', '.join(_ROLES)}, not {role!r}")


def _show_key(key: dict[str, Any]) -> None:
    facts = [("key", key["key"]), ("id", key["id"]), ("project", key["project_name"]), ("role", key["role"])]
    output.print_facts(facts)
    output.note("keep the key now: it is not shown again")


@command(keys, "revoke")
def revoke_key(
    session: Session, key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id.")]
) -> None:
    """Revoke a key; from now on it opens nothing."""
    session.result(session.client.revoke_key(key_id), lambda _: output.say(f"{key_id} is revoked"))
