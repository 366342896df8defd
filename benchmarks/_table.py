"""Write the results table of docs/benchmarks.md from the JSON files of `make bench`.

python benchmarks/_table.py [FOLDER]      (build/bench by default)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def lines(folder: Path) -> Iterator[str]:
    yield "| program | load | what | value | beside | its value | ratio | aim |"
    yield "|---|---|---|---|---|---|---|---|"
    for file in sorted(folder.glob("*.json")):
        report: dict[str, Any] = json.loads(file.read_text())
        if "machine" not in report:
            continue  # the workload's benchmarks have a form of their own
        name = report["benchmark"] + (" (quick)" if report["quick"] else "")
        for one in report["results"]:
            aim = (
                "" if one["aim"] is None else f"{number(one['aim'])}: {'met' if one['met'] else '**missed**'}"
            )
            cells = (
                name,
                str(report["machine"]["load_before"]),
                one["what"],
                number(one["value"], one["unit"]),
                one["peer"],
                number(one["peer_value"], one["unit"]),
                number(one["ratio"]),
                aim,
            )
            yield "| " + " | ".join(cells) + " |"
    notes = [
        f"- {one['what']}: {one['note']}"
        for file in sorted(folder.glob("*.json"))
        for one in json.loads(file.read_text())["results"]
        if one.get("note")
    ]
    yield from ("", "Notes:", "", *notes)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "bench"
    page = ROOT / "docs" / "benchmarks.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{page} has no place for results: {BEGIN.strip()} ... {END}")
    page.write_text(before + BEGIN + "\n".join(lines(folder)) + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
