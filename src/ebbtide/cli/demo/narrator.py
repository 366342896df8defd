"""How the story is told: calm lines with the time since its beginning, aligned, one colour per tenant."""

from __future__ import annotations

from ebbtide.cli import output
from ebbtide.clock import monotonic

_INDENT = " " * 11


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
        output.say(f"{_INDENT}{text}", "bold")

    def act(self, who: str, text: str, style: str) -> None:
        """Somebody does something."""
        self._line(who, text, style)

    def sees(self, text: str) -> None:
        """Something that happened by itself, read from the API."""
        self._line("", text, "")

    def checked(self, text: str) -> None:
        """A promise that has just been checked against the API's answers."""
        from rich.text import Text

        output.console().print(Text.assemble(_INDENT, ("✓ ", "green"), text))

    def remark(self, text: str) -> None:
        output.say(f"{_INDENT}  {text}", "dim")

    def _line(self, who: str, text: str, style: str) -> None:
        from rich.text import Text

        seconds = int(self.since_begin_s())
        at = f"T+{seconds // 60}:{seconds % 60:02}"
        lead = ("› ", "dim") if not who else (f"{who} ", f"bold {style}")
        output.console().print(Text.assemble((f"  {at:<8} ", "dim"), lead, text))
