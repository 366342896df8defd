"""Reading Kubernetes' objects, which may lack anything: what is not there reads as empty.

An imported cluster's API server is a stranger's program. Whatever it writes must read as something that can
be compared, shown and stored: a drain that cannot write down what it saw would never end.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]

LONGEST_NAME = 253
LONGEST_S = 2**31 - 1


def part(thing: Json, *path: str) -> Json:
    """The object at that path, empty where there is none."""
    for key in path:
        found = thing.get(key)
        thing = found if isinstance(found, dict) else {}
    return thing


def items(thing: Json, *path: str) -> list[Json]:
    """The list of objects at that path, empty where there is none."""
    found = part(thing, *path[:-1]).get(path[-1])
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def words(thing: Json, *path: str) -> list[str]:
    """The list of words at that path."""
    found = part(thing, *path[:-1]).get(path[-1])
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def text(thing: Json, *path: str) -> str:
    """The word at that path, empty where there is none."""
    found = part(thing, *path[:-1]).get(path[-1])
    return found if isinstance(found, str) else ""


def plain(written: str, longest: int = LONGEST_NAME) -> str:
    """The same as one line of printable characters, cut to a length."""
    cut = written[:longest]
    return cut if cut.isprintable() else "".join(one if one.isprintable() else " " for one in cut)


def name(thing: Json) -> str:
    return plain(text(thing, "metadata", "name"))


def uid(thing: Json) -> str:
    """Kubernetes' own uid of an object. The ledger's is a label of nodes."""
    return plain(text(thing, "metadata", "uid"))


def namespace(thing: Json) -> str:
    return plain(text(thing, "metadata", "namespace"))


def labels(thing: Json) -> Json:
    return part(thing, "metadata", "labels")


def notes(thing: Json) -> Json:
    return part(thing, "metadata", "annotations")


def instant(written: str) -> datetime | None:
    """An instant as Kubernetes writes it, None where there is none."""
    try:
        return datetime.fromisoformat(written).astimezone(UTC) if written else None
    except (ValueError, OverflowError):
        return None


def shifted(at: datetime, by: timedelta) -> datetime:
    """at + by, or the end of time."""
    try:
        return at + by
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if by > timedelta(0) else datetime.min.replace(tzinfo=UTC)


def seconds(thing: Json, *path: str) -> int | None:
    """The number of seconds at that path, as far as they can be stored; None where there is none."""
    found = part(thing, *path[:-1]).get(path[-1])
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return max(0, min(found, LONGEST_S))


def condition(thing: Json, kind: str) -> Json:
    """The condition of that type, empty where there is none."""
    return next((one for one in items(thing, "status", "conditions") if one.get("type") == kind), {})


def earliest(moments: Iterable[datetime | None]) -> datetime | None:
    return min((moment for moment in moments if moment), default=None)
