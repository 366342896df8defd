"""How an installation's progress looks: one moving line in a terminal, now and then a line elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.cli import output
from ebbtide.clock import monotonic
from ebbtide.kube.install import Progress

_LINE_EVERY_S = 20.0


class Lines(Progress):
    """For pipes and logs: what begins and ends, and in between a line every 20 s."""

    def __init__(self) -> None:
        self._begun = monotonic()
        self._last = self._begun

    def say(self, sentence: str) -> None:
        output.note(f"[{self._elapsed()}] {sentence}")
        self._last = monotonic()

    def advance(self, what: str, done: int, total: int, unit: str) -> None:
        if monotonic() - self._last >= _LINE_EVERY_S:
            self.say(_state(what, done, total, unit))

    def _elapsed(self) -> str:
        return output.span(int(monotonic() - self._begun)) or ""


class MovingLine(Lines):
    """For terminals."""

    def __init__(self) -> None:
        super().__init__()
        self.status = output.console(stderr=True).status("looking ...")

    def advance(self, what: str, done: int, total: int, unit: str) -> None:
        self.status.update(f"{_state(what, done, total, unit)}, {self._elapsed()}")


def _state(what: str, done: int, total: int, unit: str) -> str:
    return f"{what}: {min(done, total) if total else done}{f' of {total}' if total else ''} {unit}"


@contextmanager
def progress() -> Iterator[Progress]:
    """What fits standard error."""
    if not output.console(stderr=True).is_terminal:
        yield Lines()
        return
    line = MovingLine()
    with line.status:
        yield line
