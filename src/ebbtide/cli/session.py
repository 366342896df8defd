"""What every command that speaks to a server shares: its options, its client, and how it prints."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from ebbtide.cli import connection, output
from ebbtide.cli.exits import UsageError

if TYPE_CHECKING:
    from ebbtide.client import Client, Json

P = ParamSpec("P")

_PANEL = "Connection and output"
FORMS = ("table", "wide", "yaml", "json")
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "url": (
        Annotated[
            str | None,
            typer.Option(
                "--url", metavar="URL", help="The server (env EBBTIDE_URL).", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    "key": (
        Annotated[
            str | None,
            typer.Option(
                "--key", metavar="KEY", help="The key (env EBBTIDE_API_KEY).", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    "data": (
        Annotated[
            Path,
            typer.Option(
                "--data",
                metavar="DIR",
                help="Data folder whose connection.env is used.",
                rich_help_panel=_PANEL,
            ),
        ],
        connection.DEFAULT_DATA,
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", help="Print the answer as JSON.", rich_help_panel=_PANEL)],
        False,
    ),
    "form": (
        Annotated[
            str,
            typer.Option(
                "--output",
                "-o",
                metavar="FORM",
                help="table, wide (every column), yaml or json.",
                rich_help_panel=_PANEL,
            ),
        ],
        "table",
    ),
}


@dataclass(frozen=True, slots=True)
class Session:
    """One run of one command: the client, and how to show what it answers.

    form: one of `FORMS`
    """

    client: Client
    form: str = "table"

    @property
    def as_json(self) -> bool:
        return self.form == "json"

    @property
    def for_people(self) -> bool:
        return self.form in ("table", "wide")

    @property
    def line_by_line(self) -> bool:
        """For what comes one by one: whether as JSON, one object per line. Raises UsageError for YAML."""
        if self.form == "yaml":
            raise UsageError("this comes one by one; --json prints one object per line, YAML cannot")
        return self.form == "json"

    def rows(self, answer: Sequence[Json], columns: Sequence[output.Column], *, empty: str) -> None:
        """A list of things: as a table, or as JSON."""
        if self.for_people:
            output.print_table(answer, columns, empty=empty, wide=self.form == "wide")
        else:
            self._print(list(answer))

    def result(self, answer: Json, show: Callable[[Json], None]) -> None:
        """One thing: by `show`, or as JSON."""
        if self.for_people:
            show(answer)
        else:
            self._print(answer)

    def _print(self, answer: object) -> None:
        output.print_yaml(answer) if self.form == "yaml" else output.print_json(answer)


def _chosen(form: str, *, as_json: bool) -> str:
    if form not in FORMS:
        raise UsageError(f"--output takes {', '.join(FORMS)}, not {form!r}")
    return "json" if as_json else form


@contextmanager
def opened(url: str | None, key: str | None, data: Path, *, form: str) -> Iterator[Session]:
    """A session to the server that the options, the environment or the data folder name."""
    found = connection.find(url, key, data)
    from ebbtide.client import Client

    with Client(found.url, found.key) as client:
        yield Session(client, form)


def group(
    app: typer.Typer,
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Let a group do something by itself, when it is called without one of its commands."""

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        run = _with_session(function)
        signature = inspect.signature(run)

        @functools.wraps(run)
        def unless_another(context: typer.Context, **given: Any) -> None:
            if context.invoked_subcommand is None:
                run(**given)

        first = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [first, *signature.parameters.values()]
        unless_another.__dict__["__signature__"] = signature.replace(parameters=parameters)
        unless_another.__annotations__ = {each.name: each.annotation for each in parameters} | {
            "return": None
        }
        app.callback(invoke_without_command=True)(unless_another)
        return function

    return register


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Register a function that takes a Session first; its command gets the options that a session needs."""

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        app.command(name)(_with_session(function))
        return function

    return register


def _with_session(function: Callable[..., None]) -> Callable[..., None]:
    """The function as a command: with the options of a session, instead of the session."""
    signature = inspect.signature(function, eval_str=True)
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in list(signature.parameters.values())[1:]
    ]
    shared = [
        inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for each, (annotation, default) in _OPTIONS.items()
    ]

    act: Callable[..., None] = function

    @functools.wraps(function)
    def run(**given: Any) -> None:
        url, key, data, as_json, form = (given.pop(each) for each in _OPTIONS)
        with opened(url, key, data, form=_chosen(form, as_json=as_json)) as session:
            act(session, **given)

    parameters = [*own, *shared]
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return run
