"""`ebb run -- CMD`: run a job so that a notice reaches it, and say afterwards how it went.

Exit codes: the command's own, except after a notice: 85 every guard that left had saved; 86 preempted without
proof of a save; 0 the job finished in spite of the notice. A death by signal N without a notice is 128 + N;
127 the command was not found, 126 it may not be executed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals

from . import settings
from .exits import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_PREEMPTED_SAVED,
    EXIT_PREEMPTED_UNSAVED,
    EXIT_USAGE,
    of_signal,
)
from .run_processes import ELASTIC_LIMIT
from .run_supervisor import Ended, Supervisor
from .say import duration, read_journal, say

TERMINATION_LOG = Path("/dev/termination-log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ebb run`."""
    parser.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="seconds from the notice to the kill (default: EBBTIDE_GRACE_S, else Kubernetes' 30)",
    )
    parser.add_argument(
        "--notice-signal",
        metavar="NAMES",
        help="signals that are a notice (default: EBBTIDE_SIGNALS, else TERM; in Slurm TERM,USR1)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write how it went as JSON")
    parser.add_argument("child", nargs=argparse.REMAINDER, metavar="-- CMD", help="the job and its arguments")


def main(args: argparse.Namespace) -> int:
    """Run the job and return the exit code for the scheduler."""
    if not args.child:
        print("ebb run: what is to be run? ebb run -- python train.py", file=sys.stderr)
        return EXIT_USAGE
    try:
        given = args.grace if args.grace is not None else settings.grace_s()
        names = {"EBBTIDE_SIGNALS": args.notice_signal} if args.notice_signal else {}
        signals = settings.notice_signals({**os.environ, **names})
    except settings.SettingError as error:
        print(f"ebb run: {error}", file=sys.stderr)
        return EXIT_USAGE
    grace_s = given if given and given > 0 else settings.DEFAULT_GRACE_S
    if given is None and settings.in_kubernetes():
        say("assuming a grace of 30 s: say --grace or set EBBTIDE_GRACE_S to what the pod's spec gives")
    own = Path(tempfile.mkdtemp(prefix="ebbtide-run-"))
    try:
        return _run(args, grace_s, signals, own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _run(args: argparse.Namespace, grace_s: float, signals: Sequence[Signals], own: Path) -> int:
    notice_file = Path(settings.notice_file() or own / "notice")
    journal = Path(os.environ.get("EBBTIDE_JOURNAL") or own / "journal.jsonl")
    heard_before = len(read_journal(journal))
    supervisor = Supervisor(args.child, grace_s, signals, notice_file)
    try:
        ended = supervisor.run(environment_of(os.environ, grace_s, notice_file, journal))
    except FileNotFoundError:
        print(f"ebb run: {args.child[0]}: not found", file=sys.stderr)
        return EXIT_NOT_FOUND
    except OSError as error:
        print(f"ebb run: {args.child[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_EXECUTABLE
    events = read_journal(journal)[heard_before:]
    code = exit_code(ended, events)
    _tell(args, ended, events, code)
    return code


def environment_of(
    env: Mapping[str, str], grace_s: float, notice_file: Path, journal: Path
) -> dict[str, str]:
    """The job's environment: where it hears, what it gets, and time for torch's launcher to let workers
    save."""
    seconds = str(int(grace_s))
    given = env.get(ELASTIC_LIMIT, seconds)
    if given.isdigit() and int(given) < int(grace_s):
        say(f"{ELASTIC_LIMIT} is {given}: raised to the grace, {seconds} s, or workers are killed early")
        given = seconds
    return {
        **env,
        "EBBTIDE_GRACE_S": f"{grace_s:g}",
        "EBBTIDE_NOTICE_FILE": str(notice_file),
        "EBBTIDE_JOURNAL": str(journal),
        ELASTIC_LIMIT: given,
    }


def exit_code(ended: Ended, events: Sequence[Mapping[str, object]]) -> int:
    """What to tell the scheduler, from how the command ended and what its guards wrote down.

    A launcher turns its workers' codes into its own, so the guards' word counts more than the command's code.
    A command that ends with 0 after a notice, without a guard that says it finished, is not taken as
    finished: a job wrongly called complete is lost, one wrongly called preempted only starts again.
    """
    left = [event for event in events if event["event"] == "left"]
    if left:
        return EXIT_PREEMPTED_SAVED if all(event.get("saved") for event in left) else EXIT_PREEMPTED_UNSAVED
    if ended.notice is None:
        return ended.status if ended.status >= 0 else of_signal(-ended.status)
    if ended.status == 0:
        finished = any(event["event"] == "closed" for event in events)
        return 0 if finished else EXIT_PREEMPTED_UNSAVED
    return EXIT_PREEMPTED_UNSAVED if ended.status < 0 or ended.status >= 128 else ended.status


def _tell(args: argparse.Namespace, ended: Ended, events: Sequence[Mapping[str, object]], code: int) -> None:
    steps = [event["step"] for event in events if event["event"] == "saved" or event.get("saved")]
    command = shlex.join(args.child)
    if ended.notice is not None or code in (EXIT_PREEMPTED_SAVED, EXIT_PREEMPTED_UNSAVED):
        gone = f" {duration(ended.seconds)} after the notice" if ended.seconds is not None else ""
        saved = f"step {steps[-1]} saved" if steps else "no save known"
        ignoring = "".join(f"; {process} ignored SIGTERM" for process in ended.ignoring)
        line = f"{command}: left{gone}, {saved}{ignoring}; exit {code}"
        say(line)
        if settings.in_kubernetes() and TERMINATION_LOG.exists():
            _write(TERMINATION_LOG, line + "\n")
    if args.report:
        told = [str(process) for process in ended.told]
        report = {
            "command": args.child,
            "exit_code": code,
            "command_status": ended.status,
            "noticed": None if ended.notice is None else ended.notice._asdict(),
            "gone_after_s": None if ended.seconds is None else round(ended.seconds, 3),
            "told": told,
            "ignored_sigterm": [str(process) for process in ended.ignoring],
            "saved_step": steps[-1] if steps else None,
            "events": list(events),
        }
        _write(args.report, json.dumps(report, indent=1, default=str) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        say(f"cannot write {path}: {error}")
