"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

AS_ADMIN = "run it once more with an administrator's kubeconfig to see that"


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # as it may be; good to know
    WARNING = "warning"  # works, with a catch
    PROBLEM = "problem"  # does not work like this
    UNKNOWN = "unknown"  # could not be looked at


@dataclass(frozen=True, slots=True)
class Finding:
    """check: a few words, the same each time. found: a sentence. do: what helps; empty where nothing is to be
    done.
    """

    check: str
    verdict: Verdict
    found: str
    do: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def note(check: str, found: str, do: str = "") -> Finding:
    return Finding(check, Verdict.NOTE, found, do)


def warning(check: str, found: str, do: str) -> Finding:
    return Finding(check, Verdict.WARNING, found, do)


def problem(check: str, found: str, do: str) -> Finding:
    return Finding(check, Verdict.PROBLEM, found, do)


def unknown(check: str, found: str, do: str) -> Finding:
    return Finding(check, Verdict.UNKNOWN, found, do)


def some(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
