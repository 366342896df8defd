"""Sizes, rates and times as people write them. Integers inside: bytes, bytes per second; times are
seconds."""

from __future__ import annotations

import re

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*"


class BadQuantity(ValueError):
    """A text that is no quantity; the message says what would be."""


def parse_bytes(text: str) -> int:
    """ "3.5TB" (decimal), "3.2TiB" (binary), "512" (bytes)."""
    match = re.fullmatch(_NUMBER + r"([kmgtpe]?)(i?)b?", text, re.IGNORECASE)
    if match is None:
        raise BadQuantity(f"{text!r} is no size such as 3.5TB or 900GiB")
    unit: int = (1024 if match.group(3) else 1000) ** _POWERS[match.group(2).lower()]
    return round(float(match.group(1)) * unit)


def parse_rate(text: str) -> int:
    """ "14.6GB/s", "14.6GBps", or "14.6GB", which is taken per second. Bits are refused: 10Gb/s is not 10
    GB/s."""
    if re.search(r"\db(it)?(s|/s|ps)|[kKMGT]b(it)?(s|/s|ps)", text):
        raise BadQuantity(f"{text!r} looks like bits; give bytes per second, such as 14.6GB/s")
    try:
        rate = parse_bytes(re.sub(r"(/s|ps)$", "", text.strip()))
    except BadQuantity as error:
        raise BadQuantity(f"{text!r} is no rate such as 14.6GB/s") from error
    if rate <= 0:
        raise BadQuantity("a rate must be more than 0")
    return rate


def parse_count(text: str) -> int:
    """ "70B", "250e9", "1.5T": a number of parameters."""
    match = re.fullmatch(_NUMBER + r"([kmbt]?)", text, re.IGNORECASE)
    if match is None:
        raise BadQuantity(f"{text!r} is no number of parameters such as 70B")
    return round(float(match.group(1)) * _COUNTS[match.group(2).lower()])


def parse_seconds(text: str) -> float:
    """ "90", "90s", "5m", "6h", "2d"."""
    match = re.fullmatch(_NUMBER + r"(s|m|min|h|d)?", text, re.IGNORECASE)
    if match is None:
        raise BadQuantity(f"{text!r} is no time such as 90s, 5m, 6h or 2d")
    return float(match.group(1)) * _TIMES[(match.group(2) or "s").lower()]


def show_bytes(count: float) -> str:
    """Three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def show_seconds(seconds: float) -> str:
    """As a person would say it: "22 s", "4 min", "4 min 30 s", "2 h 10 min"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    for big, small, size in (("min", "s", 60), ("h", "min", 3600), ("d", "h", 86400)):
        if whole < size * (60 if big == "min" else 48 if big == "h" else 10**9):
            rest = round((whole % size) / (1 if big == "min" else 60 if big == "h" else 3600))
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
