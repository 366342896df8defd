"""`ebbtide projects` and `ebbtide keys`: who may use the server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.exits import UsageError
from ebbtide.cli.output import Column
from ebbtide.cli.server import DatabaseUrl, database_url
from ebbtide.cli.session import Session, command

projects = typer.Typer(no_args_is_help=True, help="Projects (operator): whose clusters and bills are whose.")
keys = typer.Typer(no_args_is_help=True, help="Keys: issue, list, rotate, revoke.")

_PROJECTS = (
    Column("slug", "slug"),
    Column("name", "name"),
    Column("weight", "weight", right=True),
    Column("standard quota", lambda project: _limit(project, "standard_gpus_limit"), right=True),
    Column("preemptible quota", lambda project: _limit(project, "preemptible_gpus_limit"), right=True),
    Column("organization", "organization_name", wide=True),
    Column("id", "id"),
)
_KEYS = (
    Column("id", "id"),
    Column("name", "name", rare=True),
    Column("project", "project_name"),
    Column("role", "role"),
    Column("ends in", "hint"),
    Column("created", lambda key: output.clock(key["created_at"])),
    Column("last used", lambda key: output.clock(key["last_used_at"]) or "never"),
    Column("expires", lambda key: output.clock(key["expires_at"]), rare=True),
    Column("revoked", lambda key: output.clock(key["revoked_at"]), rare=True),
)
_ROLES = ("member", "admin", "operator")

Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="member, admin or operator.")]


def _limit(project: dict[str, Any], name: str) -> str:
    return "none" if project[name] is None else f"{project[name]} GPUs"


@command(projects, "list")
def list_projects(session: Session) -> None:
    """List the projects that the key may see, with their quotas."""
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
    organization: Annotated[
        str | None,
        typer.Option(
            "--organization", metavar="ORGANIZATION", help="Its organization, by name or id; else yours."
        ),
    ] = None,
) -> None:
    """Make a project. `ebbtide keys create` then issues its first key."""
    session.result(session.client.create_project(slug, name, weight, organization), _show_project)


def _show_project(project: dict[str, Any]) -> None:
    output.print_facts([("slug", project["slug"]), ("name", project["name"]), ("id", project["id"])])
    output.note(f"next: ebbtide keys create --project {project['slug']}")


@command(projects, "set")
def set_project(
    session: Session,
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Its slug or id.")],
    weight: Annotated[
        int | None, typer.Option("--weight", metavar="N", min=1, help="Its share of spare hosts.")
    ] = None,
    standard_gpus_limit: Annotated[
        str | None,
        typer.Option(
            "--standard-gpus-limit", metavar="N", help="Standard GPUs it may order; `none`: no quota."
        ),
    ] = None,
    preemptible_gpus_limit: Annotated[
        str | None,
        typer.Option(
            "--preemptible-gpus-limit",
            metavar="N",
            help="Preemptible GPUs its targets may add up to; `none`: no quota.",
        ),
    ] = None,
) -> None:
    """Set a project's weight and quotas (operator). What is not given stays; what is ordered stays too."""
    wanted = {
        "weight": weight,
        "standard_gpus_limit": _quota("--standard-gpus-limit", standard_gpus_limit),
        "preemptible_gpus_limit": _quota("--preemptible-gpus-limit", preemptible_gpus_limit),
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    if not changes:
        raise UsageError(
            "nothing to change; give --weight, --standard-gpus-limit or --preemptible-gpus-limit"
        )
    session.result(session.client.set_project(project, changes), _show_settings)


def _quota(option: str, given: str | None) -> int | None:
    """The wire's number: below 0 takes the quota away. Raises UsageError."""
    if given is None:
        return None
    if given == "none":
        return -1
    if not (given.isascii() and given.isdecimal()):
        raise UsageError(f"{option} takes a number of GPUs, or none; not {given!r}")
    return int(given)


def _show_settings(project: dict[str, Any]) -> None:
    output.print_facts(
        [
            ("slug", project["slug"]),
            ("weight", project["weight"]),
            ("standard quota", _limit(project, "standard_gpus_limit")),
            ("preemptible quota", _limit(project, "preemptible_gpus_limit")),
        ]
    )


@command(keys, "list")
def list_keys(session: Session) -> None:
    """List the project's keys (operators: all), without their secret part; last use is to the minute."""
    session.rows(session.client.keys(), _KEYS, empty="no keys")


@command(keys, "create")
def create_key(
    session: Session,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="PROJECT", help="Its id or slug; the caller's own if not given."),
    ] = None,
    role: Role = "member",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is for, to find it again.")
    ] = None,
    expires_in_days: Annotated[
        int | None,
        typer.Option("--expires-in-days", metavar="N", min=1, help="It ends by itself then; else never."),
    ] = None,
) -> None:
    """Issue a key. It is shown this once; the server keeps only its hash."""
    _check_role(role)
    target = project or session.client.whoami()["project"]["id"]
    made = session.client.create_key(target, role, name=name, expires_in_days=expires_in_days)
    session.result(made, _show_key)


@command(keys, "rotate")
def rotate_key(
    session: Session,
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The old key's id.")],
    overlap: Annotated[
        int,
        typer.Option(
            "--overlap", metavar="SECONDS", min=0, max=604_800, help="How long the old key still works."
        ),
    ] = 3_600,
) -> None:
    """Issue a key in place of another, which works on for the overlap, so that nobody is cut off."""
    session.result(session.client.rotate_key(key_id, overlap), _show_key)


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
    output.print_facts(
        [
            ("key", key["key"]),
            ("id", key["id"]),
            ("name", key.get("name")),
            ("project", key["project_name"]),
            ("role", key["role"]),
            ("expires", output.clock(key.get("expires_at"))),
        ]
    )
    output.note("keep the key now: it is not shown again")


@command(keys, "revoke")
def revoke_key(
    session: Session, key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id.")]
) -> None:
    """Revoke a key; from now on it opens nothing."""
    session.result(session.client.revoke_key(key_id), lambda _: output.say(f"{key_id} is revoked"))
