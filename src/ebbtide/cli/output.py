"""How answers look: tables that line up, JSON for programs, progress on standard error, calm colours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]

_UNLIMITED_COLUMNS = 100_000  # a pipe has no width; nothing is cut or wrapped there
_STYLES = {
    "Ready": "green", "RUNNING": "green", "Running": "green", "served": "green", "available": "green",
    "DRAINING": "yellow", "Draining": "yellow", "draining": "yellow", "open": "yellow", "cordoned": "yellow",
    "Degraded": "red", "quarantined": "red", "broken": "red", "FAILED": "red", "lost": "red",
    "Deleting": "dim", "REMOVING": "dim", "REMOVED": "dim", "ended": "dim", "retired": "dim",
    "revoked": "dim", "delivered": "green", "given up": "red", "waiting": "yellow",
    "preemptible": "cyan", "standard": "blue", "external": "magenta",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """title: the heading; value: a key of the row, or a function of it.

    right: set to the right. rare: left out where no row has a value (None, "" or 0).
    wide: shown with `--output wide` only.
    """

    title: str
    value: str | Callable[[Row], object]
    right: bool = False
    rare: bool = False
    wide: bool = False

    def of(self, row: Row) -> object:
        return row.get(self.value) if isinstance(self.value, str) else self.value(row)

    def text(self, row: Row) -> str:
        found = self.of(row)
        return "-" if found is None or found == "" else str(found)


@cache
def console(*, stderr: bool = False) -> Console:
    """Rich's console for one of the streams. It obeys NO_COLOR, and writes plainly to pipes."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNLIMITED_COLUMNS
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=True)


def forget_consoles() -> None:
    """Make new consoles at the next use. For tests, which exchange the streams."""
    console.cache_clear()


def print_json(answer: object) -> None:
    """The whole answer, as it came."""
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_yaml(answer: object) -> None:
    """The whole answer as YAML, its fields in the server's order."""
    import yaml

    text = yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=_UNLIMITED_COLUMNS)
    sys.stdout.write(text)
    sys.stdout.flush()


def print_table(rows: Sequence[Row], columns: Iterable[Column], *, empty: str, wide: bool = False) -> None:
    """Rows under headings; `empty` says what it means that there are none. wide: with every column."""
    if not rows:
        console().print(empty, style="dim", markup=False)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = tuple(
        each
        for each in columns
        if wide or not (each.wide or (each.rare and not any(each.of(row) for row in rows)))
    )
    for column in columns:
        table.add_column(column.title.upper(), justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        texts = (column.text(row) for column in columns)
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in texts))
    console().print(table, soft_wrap=False)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """One thing's facts, one to a line, their names lined up. None and "" are left out."""
    from rich.text import Text

    told = [(name, str(value)) for name, value in facts if value is not None and value != ""]
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        console().print(Text.assemble((f"{name:<{width}}  ", "dim"), (value, _STYLES.get(value, ""))))


def say(text: str, style: str = "") -> None:
    """A sentence for the person, on standard output."""
    console().print(text, style=style, markup=False)


def note(text: str, style: str = "dim") -> None:
    """Progress or a remark, on standard error, so that output can be piped."""
    console(stderr=True).print(text, style=style, markup=False)


def complain(message: str, step: str | None = None) -> None:
    """An error and the next step, on standard error."""
    from rich.text import Text

    first, *rest = message.splitlines() or [""]
    target = console(stderr=True)
    target.print(Text.assemble(("error: ", "bold red"), first))
    for line in rest:
        target.print(Text(f"       {line}"))
    if step:
        target.print(Text.assemble(("  try: ", "bold"), step))


def places_of(amounts: Iterable[int | None]) -> int:
    """Decimals for amounts that stand below each other: 2, or 6 if one of them needs them."""
    return max((_places(abs(amount)) for amount in amounts if amount is not None), default=2)


def _places(amount: int) -> int:
    return 2 if amount % 10_000 == 0 or amount >= 1_000_000 else 6


def dollars(microdollars: int | None, places: int | None = None) -> str | None:
    """Money to the cent, or as exactly as it must be below one; None stays None (unpriced).

    places: decimals, where several amounts are to look alike
    """
    if microdollars is None:
        return None
    sign, amount = ("-", -microdollars) if microdollars < 0 else ("", microdollars)
    places = _places(amount) if places is None else places
    scale = 10 ** (6 - places)
    units = (amount + scale // 2) // scale
    whole, part = divmod(units, 10**places)
    return f"{sign}${whole:,}.{part:0{places}}"


def span(seconds: int | None) -> str | None:
    """Seconds as `1h 02m 03s`."""
    if seconds is None:
        return None
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h {minutes:02}m {left:02}s"
    return f"{minutes}m {left:02}s" if minutes else f"{left}s"


def clock(instant: str | None) -> str | None:
    """An instant of the wire, kept to the second."""
    return None if instant is None else instant.replace("T", " ").removesuffix("Z") + " UTC"
