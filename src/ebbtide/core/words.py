"""How numbers of things are said."""

from __future__ import annotations


def many(number: int, thing: str, things: str | None = None) -> str:
    """`1 host`, `2 hosts`, `1,200 hosts`. things: where it is not the thing with an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
