"""The command `ebb`: a table of subcommands, each in its own module and imported only when it is called.

A subcommand's module offers `add_arguments(parser)` and `main(args) -> int`. Commands that start another
program declare a positional `child` with `nargs=argparse.REMAINDER`; what follows `--` is added to it here,
because argparse treats `--` differently from one Python version to the next.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from . import __version__
from .exits import EXIT_USAGE


@dataclass(frozen=True)
class Command:
    """One subcommand: where it lives (module in this package) and one line of help."""

    module: str
    help: str
    takes_child: bool = False


COMMANDS = {
    "run": Command("run", "run a job as a right PID 1: ebb run -- python train.py", takes_child=True),
    "rehearse": Command(
        "rehearse", "preempt a real job on purpose and grade how it took it", takes_child=True
    ),
    "lint": Command("lint", "find what will hurt at preemption in Kubernetes manifests"),
    "window": Command("window", "will the checkpoint fit the window, and how often to save"),
    "checkpoints": Command("checkpoints_command", "list and verify the checkpoints in a folder"),
    "notice": Command("notice_command", "tell a running job that it is being preempted (for preStop hooks)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ebb` with `argv` (default: the process's own) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        print(f"ebb {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        print(f"ebb: no such command: {words[0]}\n\n{_overview()}", file=sys.stderr)
        return EXIT_USAGE
    return _call(words[0], command, words[1:])


def _call(name: str, command: Command, words: list[str]) -> int:
    module = importlib.import_module(f"{__package__}.{command.module}")
    parser = argparse.ArgumentParser(prog=f"ebb {name}", description=command.help)
    module.add_arguments(parser)
    own, after = _split(words) if command.takes_child else (words, [])
    args = parser.parse_args(own)
    if after:
        args.child = [*args.child, "--", *after] if args.child else after
    return int(module.main(args))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Ours and the child's words: the child's are those after the first `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _overview() -> str:
    lines = ["usage: ebb COMMAND [options]", "", "Make a job survive preemption.", ""]
    lines += [f"  {name:<12} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "ebb COMMAND --help says more."])
