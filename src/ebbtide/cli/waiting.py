"""Waiting for something to become so: progress for the person, a limit, and an exit code when it runs out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbtide.cli import output
from ebbtide.cli.exits import OutOfTime
from ebbtide.clock import monotonic

if TYPE_CHECKING:
    from rich.status import Status

_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """What a look found: a sentence, and whether that is what was waited for."""

    sentence: str
    done: bool


def until(look: Callable[[], Progress], *, limit_s: float, every_s: float = _EVERY_S) -> None:
    """Look again and again until it is done; show each new sentence on standard error.

    Raises OutOfTime after `limit_s` seconds with the last sentence, and whatever `look` raises.
    """
    console = output.console(stderr=True)
    if not console.is_terminal:
        _watch(look, limit_s, every_s, output.note)
        return
    with console.status("looking ...") as status:
        _watch(look, limit_s, every_s, _on_terminal(status))


def _on_terminal(status: Status) -> Callable[[str], None]:
    from rich.markup import escape

    return lambda sentence: status.update(escape(sentence))


def _watch(look: Callable[[], Progress], limit_s: float, every_s: float, tell: Callable[[str], None]) -> None:
    begun = monotonic()
    told = ""
    pause = threading.Event()  # never set: its wait is a pause that Ctrl-C ends
    while True:
        progress = look()
        if progress.done:
            return
        if progress.sentence != told:
            told = progress.sentence
            tell(told)
        if monotonic() - begun >= limit_s:
            raise OutOfTime(f"not yet after {limit_s:g} s: {told}; nothing is lost, it goes on by itself")
        pause.wait(every_s)
