"""`ebb notice`: tell the job in this container that it is being preempted. Meant for preStop hooks.

    lifecycle: {preStop: {exec: {command: [ebb, notice, --grace, "300"]}}}

It only writes the notice file and returns; SIGTERM follows when the hook ends, and is not acted on twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import settings
from .deadline import after
from .exits import EXIT_USAGE
from .sources_file import write_notice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ebb notice`."""
    parser.add_argument(
        "--grace", type=float, metavar="SECONDS", help="seconds until the kill (EBBTIDE_GRACE_S, else 30)"
    )
    parser.add_argument("--reason", default="preStop hook", help="why, for the job's log")
    parser.add_argument(
        "--file",
        type=Path,
        help=f"the notice file (EBBTIDE_NOTICE_FILE, else {settings.DEFAULT_NOTICE_FILE})",
    )


def main(args: argparse.Namespace) -> int:
    """Write the notice; 0 when done."""
    try:
        grace_s = args.grace if args.grace is not None else settings.grace_s() or settings.DEFAULT_GRACE_S
        write_notice(
            args.file or Path(settings.notice_file() or settings.DEFAULT_NOTICE_FILE),
            after(grace_s),
            args.reason,
        )
    except (OSError, settings.SettingError) as error:
        print(f"ebb notice: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0
