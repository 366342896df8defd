"""What every command that speaks to a server shares: its options, its client, and `--json`."""

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

if TYPE_CHECKING:
    from ebbtide.client import Client, Json

P = ParamSpec("P")

_PANEL = "Connection and output"
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "url": (
        Annotated[
            str | None,
            typer.Option(
                "--url", metavar="URL", help="The server [env: EBBTIDE_URL].", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    "key": (
        Annotated[
            str | None,
            typer.Option(
                "--key", metavar="KEY", help="The key [env: EBBTIDE_API_KEY].", rich_help_panel=_PANEL
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
}


@dataclass(frozen=True, slots=True)
class Session:
    """One run of one command: the client, and how to show what it answers."""

    client: Client
    as_json: bool

    def rows(self, answer: Sequence[Json], columns: Sequence[output.Column], *, empty: str) -> None:
        """A list of things: as a table, or as JSON."""
        if self.as_json:
            output.print_json(list(answer))
        else:
            output.print_table(answer, columns, empty=empty)

    def result(self, answer: Json, show: Callable[[Json], None]) -> None:
        """One thing: by `show`, or as JSON."""
        if self.as_json:
            output.print_json(answer)
        else:
            show(answer)


@contextmanager
def opened(url: str | None, key: str | None, data: Path, *, as_json: bool) -> Iterator[Session]:
    """A session to the server that the options, the environment or the data folder name."""
    found = connection.find(url, key, data)
    from ebbtide.client import Client

    with Client(found.url, found.key) as client:
        yield Session(client, as_json)


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Register a function that takes a Session first; its command gets the options that a session needs."""

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        signature = inspect.signature(function, eval_str=True)
        own = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in list(signature.parameters.values())[1:]
        ]
        shared = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, (annotation, default) in _OPTIONS.items()
        ]

        act: Callable[..., None] = function

        @functools.wraps(function)
        def run(**given: Any) -> None:
            url, key, data, as_json = (given.pop(each) for each in _OPTIONS)
            with opened(url, key, data, as_json=as_json) as session:
                act(session, **given)

        parameters = [*own, *shared]
        run.__dict__["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        app.command(name)(run)
        return function

    return register
