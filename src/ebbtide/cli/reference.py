"""The command line's reference as Markdown, made from the commands themselves. docs/cli.md holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

_SHARED = ("url", "key", "data", "as_json", "form")


def register(app: typer.Typer) -> None:
    """Add the hidden command that prints the reference."""

    @app.command("reference", hidden=True)
    def reference() -> None:
        print(markdown(app), end="")


def markdown(app: typer.Typer) -> str:
    """A section for every visible command, in the order of the tree."""
    return "\n".join(
        line
        for path, command in commands(typer.main.get_command(app), "ebbtide")
        for line in _section(path, command)
    )


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every visible command below, with its words, as the parser knows it.

    A group is one when it does something by itself.
    """
    inner = getattr(command, "commands", None)
    if inner is None or command.invoke_without_command:
        yield path, command
    if inner is None:
        return
    for name, child in inner.items():
        if not child.hidden:
            yield from commands(child, f"{path} {name}")


def _section(path: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    is_client = any(each.name == "url" for each in options)  # a server's --data means something of its own
    own = [each for each in options if not is_client or each.name not in _SHARED]
    words = [path, *(_argument(each) for each in arguments), *(["[OPTIONS]"] if options else [])]
    yield f"### `{path}`\n"
    yield f"{(command.help or '').strip()}\n"
    example = (command.epilog or "").removeprefix("Example: ")
    yield f"```\n{' '.join(words)}\n```\n"
    if arguments or own:
        yield "| | |\n|---|---|"
        yield from (_row(each) for each in (*arguments, *own))
        yield ""
    shared = [_flag(each) for each in options if each not in own]
    if shared:
        yield f"Also: {', '.join(f'`{flag}`' for flag in shared)}.\n"
    if example:
        yield f"Example: `{example}`\n"


def _argument(parameter: Any) -> str:
    name = _metavar(parameter)
    return name if parameter.required else f"[{name}]"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _flag(option: Any) -> str:
    return str(max(option.opts, key=len))


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{_metavar(parameter)}` | {_help(parameter)} |"
    flags = ", ".join(sorted(parameter.opts, key=len))
    takes = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    return f"| `{flags}{takes}` | {_help(parameter)}{_default(parameter)} |"


def _help(parameter: Any) -> str:
    return (parameter.help or "").replace("|", "\\|")


def _default(option: Any) -> str:
    if option.required:
        return " Required."
    if option.is_flag or option.default is None or option.default == "":
        return ""
    return f" Default: `{option.default}`."
