"""Things that commands name by id, or by a name that need not be unique."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.exits import UsageError
from ebbtide.core.words import many
from ebbtide.errors import NotFound

if TYPE_CHECKING:
    from ebbtide.client import Json

ProjectFilter = Annotated[str | None, typer.Option("--project", metavar="ID", help="Only this project's.")]


def only_one(found: Iterable[Json], what: str, name: str, *, lists: str) -> Json:
    """The thing of that name among all there are. what: `cluster`, as its fields begin; lists: the command.

    Raises NotFound, and UsageError when several have the name.
    """
    named = [each for each in found if each[f"{what}_name"] == name]
    if not named:
        raise NotFound(f"there is no {what} {name!r}; `{lists}` shows yours")
    if len(named) > 1:
        ids = ", ".join(str(each[f"{what}_id"]) for each in named)
        raise UsageError(f"{many(len(named), what)} are named {name!r}; give an id: {ids}")
    return named[0]
