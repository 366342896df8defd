"""How the story is told: calm lines with the time since its beginning, aligned, one colour per tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ebbtide.cli import output
from ebbtide.clock import monotonic

if TYPE_CHECKING:
    from rich.text import Text

_MARGIN = 11


class Narrator:
    """Prints what happens and when. Times are T+minutes:seconds since the narrator was made."""

    def __init__(self) -> None:
        self._begun = monotonic()

    def since_begin_s(self) -> float:
        return monotonic() - self._begun

    def title(self, text: str, *lines: str) -> None:
        output.say("")
        output.say(f"  {text}", "bold")
        for line in lines:
            output.say(f"  {line}", "dim")

    def chapter(self, text: str) -> None:
        output.say("")
        self._line("", (text, "bold"))

    def act(self, who: str, text: str, style: str) -> None:
        """Somebody does something."""
        self._line(self._now(), (f"{who} ", f"bold {style}"), text)

    def sees(self, text: str) -> None:
        """Something that happened by itself, read from the API."""
        self._line(self._now(), ("› ", "dim"), text)

    def checked(self, text: str) -> None:
        """A promise that has just been checked against the API's answers."""
        self._line("", ("✓ ", "green"), text)

    def remark(self, text: str) -> None:
        self._line("", (f"  {text}", "dim"))

    def commands(self, text: str, commands: Sequence[str]) -> None:
        """Commands that somebody may want to copy, each on a line of its own, however long. None: nothing."""
        if commands:
            self.remark(text)
        for command in commands:
            output.say(f"{'':{_MARGIN + 4}}{command}", "cyan")

    def _now(self) -> str:
        seconds = int(self.since_begin_s())
        return f"T+{seconds // 60}:{seconds % 60:02}"

    def _line(self, at: str, *parts: str | tuple[str, str] | Text) -> None:
        """A line whose text stays to the right of the times, also where it is too long for the terminal."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid()
        grid.add_column(width=_MARGIN, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {at}", style="dim"), Text.assemble(*parts))
        output.console().print(grid, soft_wrap=False)
