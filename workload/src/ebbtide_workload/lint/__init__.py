"""`ebb lint`: find what will hurt at preemption in Kubernetes manifests, before it does.

Rules, their reasons and their fixes: docs/workloads/lint.md.
"""

from __future__ import annotations

import argparse
import sys

from . import report
from .engine import UnknownRule, at_least, check, chosen
from .model import SEVERITIES
from .sources import Unreadable, load, tell

EXIT_CLEAN, EXIT_FOUND, EXIT_USAGE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ebb lint`."""
    parser.epilog = "exit code: 0 clean, 1 findings as heavy as --fail-on, 2 wrong usage or unreadable input"
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help='files or folders; "-" is standard input (helm template . | ebb lint -)',
    )
    add(
        "--select",
        action="append",
        default=[],
        metavar="RULES",
        help="only these rules (a,b or patterns like grace-*)",
    )
    add("--ignore", action="append", default=[], metavar="RULES", help="not these rules")
    add(
        "--fail-on",
        choices=SEVERITIES,
        default="warning",
        help="lightest finding that fails (default warning)",
    )
    add("--window", type=int, default=300, metavar="S", help="seconds from notice to removal (default 300)")
    add("--json", action="store_true", help="print the findings as JSON")
    add("--list-rules", action="store_true", help="print the rules and stop")


def main(args: argparse.Namespace) -> int:
    """Lint; returns 0, or 1 when something was found, 2 for wrong usage or unreadable input."""
    if args.list_rules:
        print(report.rules_as_text())
        return EXIT_CLEAN
    sources = args.paths or ([] if sys.stdin.isatty() else ["-"])
    if not sources:
        tell("name a file, a folder, or - for standard input")
        return EXIT_USAGE
    try:
        rules = chosen(_names(args.select), _names(args.ignore))
        documents = load(sources, sys.stdin, tell)
    except (Unreadable, UnknownRule) as error:
        tell(str(error))
        return EXIT_USAGE
    findings = check(documents, rules, args.window)
    print(report.as_json(findings, documents) if args.json else report.as_text(findings, documents))
    return EXIT_FOUND if any(at_least(f, args.fail_on) for f in findings) else EXIT_CLEAN


def _names(given: list[str]) -> list[str]:
    return [name.strip() for part in given for name in part.split(",") if name.strip()]
