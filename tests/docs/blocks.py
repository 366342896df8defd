"""The parts of the documentation that follow from the code: tables and diagrams between two comments.

    python -m tests.docs.blocks

writes them anew; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from prometheus_client import REGISTRY

from ebbtide.api import http_metrics
from ebbtide.core import clusters, nodes
from ebbtide.core.events import ALIASES, Reason
from ebbtide.metrics import METRICS
from ebbtide.settings import Settings, variable

_BLOCK = re.compile(r"(<!-- written from the code: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# By the end of a setting's name; the first that fits.
_UNITS = {
    "per_s": "requests a second",
    "burst": "requests",
    "_s": "seconds",
    "_percent": "percent",
    "_bytes": "bytes",
    "_tib": "TiB",
    "_gpus": "GPUs",
    "_days": "days",
    "_samples": "samples",
    "boot_failures_limit": "failures",
    "max_joining": "nodes",
    "exec_at_once": "programs",
    "kwok_clusters_limit": "control planes",
    "pod_events_limit": "pods",
}


def unit(name: str, default: object) -> str:
    """What a setting counts."""
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, str):
        return "text"
    for ending, word in _UNITS.items():
        if name.endswith(ending):
            return word
    raise AssertionError(f"the setting {name} does not say its unit: end its name with one of {list(_UNITS)}")


def settings_table() -> str:
    lines = ["| variable | default | unit | live | what |", "|---|---|---|---|---|"]
    for one in fields(Settings):
        shown = str(one.default).lower() if isinstance(one.default, bool) else f"{one.default}"
        what = one.metadata["about"]
        quoted = f"`{shown}`" if shown else "empty"
        live = "yes" if one.metadata["live"] else ""
        unit_ = unit(one.name, one.default)
        lines.append(f"| `{variable(one.name)}` | {quoted} | {unit_} | {live} | {what} |")
    return "\n".join(lines)


def node_diagram() -> str:
    phases = list(nodes.Phase)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {phases[0]}"]
    for before in phases:
        lines += [f"    {before} --> {after}" for after in phases if after in nodes.MOVES[before]]
    return "\n".join([*lines, f"    {phases[-1]} --> [*]", "```"])


def cluster_diagram() -> str:
    """Live phases lead to one another and to DELETING; drawn as one state with phases inside."""
    phase, moves = clusters.ClusterPhase, clusters.MOVES
    live = [one for one in phase if phase.DELETING in moves[one]]
    for one in live:
        assert moves[one] == {*live, phase.DELETING} - {one}, "draw the cluster's phases anew"
    inside = [f"        {one}" for one in live]
    rest = [
        (one, after) for one in phase if one not in live for after in phase if after in clusters.MOVES[one]
    ]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> live",
            "    state live {",
            *inside,
            "    }",
            f"    live --> {phase.DELETING}",
            *(f"    {before} --> {after}" for before, after in rest),
            f"    {phase.DELETED} --> [*]",
            "```",
        ]
    )


def fleet_metrics_table() -> str:
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels) or "none"
        lines.append(f"| `{one.shown}` | {one.kind} | {labels} | {one.about} |")
    return "\n".join(lines)


def process_metrics_table() -> str:
    """Our own metrics of one process, as prometheus-client knows them."""
    assert http_metrics.observe is not None  # importing it registers them
    lines = ["| metric | kind | what |", "|---|---|---|"]
    found = sorted(REGISTRY.collect(), key=lambda family: family.name)
    for family in found:
        if family.name.startswith("ebbtide_"):
            shown = f"{family.name}_total" if family.type == "counter" else family.name
            lines.append(f"| `{shown}` | {family.type} | {family.documentation} |")
    return "\n".join(lines)


def aliases_table() -> str:
    lines = ["| stored and shown as | also shown as |", "|---|---|"]
    lines += [f"| `{reason}` | `{ALIASES[reason]}` |" for reason in Reason if reason in ALIASES]
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "node-phases": node_diagram,
    "cluster-phases": cluster_diagram,
    "fleet-metrics": fleet_metrics_table,
    "process-metrics": process_metrics_table,
    "event-aliases": aliases_table,
}


def names(text: str) -> list[str]:
    """The blocks of a page."""
    return [match["name"] for match in _BLOCK.finditer(text)]


def renewed(text: str) -> str:
    """The page with its blocks as the code has them now."""
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match['name']]()}\n{match[3]}", text)


def pages(root: Path) -> list[Path]:
    return sorted((root / "docs").rglob("*.md"))


def write(root: Path) -> None:
    for page in pages(root):
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2])
