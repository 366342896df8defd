"""Telling from a command whether SIGTERM reaches the program behind it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_SEPARATORS = frozenset({";", "&&", "||", "&", ";;"})
_TERM = re.compile(r"\btrap\b[^\n;]*\b(SIG)?TERM\b|\btrap\b[^\n;]*\b15\b")


def program(word: str) -> str:
    """The name of a program without its folder."""
    return PurePosixPath(word).name


def shell_script(words: Sequence[str]) -> str | None:
    """The script of a shell that will be process 1, or the path of a script file; None when no shell is.

    Inits that forward signals to the whole process group, and `ebb run`, take the shell out of the way.
    """
    rest = list(words)
    while rest:
        name = program(rest[0])
        if name in ("tini", "tini-static", "catatonit", "docker-init", "dumb-init"):
            options = _leading_options(rest[1:])
            if _signals_the_group(name, options):
                return None
            rest = rest[1 + len(options) :]
        elif name == "env":
            rest = rest[1:]
            while rest and ("=" in rest[0] or rest[0].startswith("-")):
                rest = rest[1:]
        elif name in SHELLS:
            return _script(rest)
        else:
            return name if name.endswith((".sh", ".bash")) else None
    return None


def _signals_the_group(init: str, options: Sequence[str]) -> bool:
    if init == "dumb-init":
        return "-c" not in options and "--single-child" not in options
    return "-g" in options


def _leading_options(words: Sequence[str]) -> list[str]:
    options: list[str] = []
    for word in words:
        if not word.startswith("-"):
            break
        options.append(word)
        if word == "--":
            break
    return options


def _script(words: Sequence[str]) -> str | None:
    for index, word in enumerate(words[1:], start=1):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            return words[index + 1] if index + 1 < len(words) else ""
        if not word.startswith(("-", "+")) and word not in ("pipefail", "sh"):
            return word
    return None


def is_inline(words: Sequence[str]) -> bool:
    """Whether the shell's script stands in the command itself (-c)."""
    return any(re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", w) for w in words)


def hands_over(script: str) -> bool:
    """Whether the shell replaces itself by its last program (exec), or traps SIGTERM."""
    if _TERM.search(script):
        return True
    statements = _statements(script)
    if not statements:
        return False
    last = statements[-1]
    if last[0] in ("fi", "esac", "done"):
        return any("exec" in s[:2] for s in statements)
    return last[0] == "exec" and "|" not in last


def _statements(script: str) -> list[list[str]]:
    """The commands of a script, roughly: enough to know the last one."""
    joined = script.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*$", "", line) for line in joined.split("\n")]
    lexer = shlex.shlex(
        " ; ".join(line for line in lines if line.strip()), posix=True, punctuation_chars=True
    )
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        tokens = re.split(r"\s+", joined.strip())
    statements: list[list[str]] = [[]]
    for token in tokens:
        if token in _SEPARATORS:
            statements.append([])
        else:
            statements[-1].append(token)
    return [s for s in statements if s]
