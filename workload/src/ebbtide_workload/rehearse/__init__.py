"""`ebb rehearse`: preempt a real job on purpose, and grade how it took it.

The job is started, works, gets its notice at a moment it cannot foresee, has the window to leave, is killed
at the deadline, and is started again. What happened is measured and graded from A to F; see
docs/workloads/rehearse.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import checkpoints, report
from .grade import GRADES, at_least
from .kubectl import Kubectl
from .kubernetes import ClusterJob
from .launchers import shutdown_timeout_s, torch_launcher, wrapped
from .listen import Patterns
from .local import LocalRun
from .model import KILL_MARGIN_S, Rehearsal, RehearsalError, Run
from .moments import Moment, choose, parse_range
from .runner import Start, Terms, hold

EXIT_GOOD, EXIT_BAD_GRADE, EXIT_USAGE, EXIT_NOT_HELD = 0, 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ebb rehearse`."""
    parser.usage = "ebb rehearse [options] -- CMD ...   |   ebb rehearse [options] --job NAME"
    parser.epilog = "exit code: 0 good enough, 1 graded below --pass, 2 wrong usage, 3 could not be held"
    add = parser.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="how many preemptions in a row (default 3)")
    add("--seed", type=int, default=1, help="chooses the moments; the same seed chooses the same (default 1)")
    add("--after", default="5..30", metavar="S..S", help="seconds of work before a notice (default 5..30)")
    add(
        "--window", type=float, default=300.0, metavar="S", help="notice to the end of the node (default 300)"
    )
    add("--grace", type=float, metavar="S", help="the pod's own grace; the window less 3 s caps it")
    add(
        "--first-step", type=float, default=600.0, metavar="S", help="how long a start may take (default 600)"
    )
    add("--step-pattern", metavar="RE", help="how a step looks in the log; its first group is the step")
    add("--save-pattern", metavar="RE", help="how a completed save looks in the log")
    add("--resume-pattern", metavar="RE", help="how a resume looks in the log")
    add(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="count the checkpoints in this folder after each round",
    )
    add("--keep", type=int, metavar="N", help="how many checkpoints the job means to keep")
    add(
        "--no-pid1",
        action="store_true",
        help="the job runs behind an init (tini): signals have their defaults",
    )
    add("--all-rounds", action="store_true", help="go on even when a round was hopeless")
    add(
        "--pass",
        dest="pass_grade",
        choices=list(GRADES),
        default="B",
        help="worst grade that passes (default B)",
    )
    add("--json", action="store_true", help="print the result as JSON (progress goes to stderr)")
    add("--verbose", action="store_true", help="show the job's output")
    cluster = parser.add_argument_group("in a Kubernetes cluster (through kubectl)")
    cluster.add_argument("--job", metavar="NAME", help="preempt a pod of this running Job")
    cluster.add_argument("--selector", metavar="LABELS", help="instead of --job: pods with these labels")
    cluster.add_argument("--namespace", "-n", metavar="NS", help="default: that of the kubectl context")
    cluster.add_argument("--context", metavar="NAME", help="kubectl context")
    parser.add_argument("child", nargs=argparse.REMAINDER, metavar="CMD", help="the job, after --")


def main(args: argparse.Namespace) -> int:
    """Hold the rehearsal; returns 0, or 1 below --pass, 2 for wrong usage, 3 when it could not be held."""
    child = [w for i, w in enumerate(args.child) if not (i == 0 and w == "--")]
    wrong = _usage_error(args, child)
    if wrong:
        print(f"ebb rehearse: {wrong}", file=sys.stderr)
        return EXIT_USAGE
    try:
        result = _rehearse_cluster(args) if args.job or args.selector else _rehearse_here(args, child)
    except RehearsalError as error:
        print(f"ebb rehearse: {error}", file=sys.stderr)
        return EXIT_NOT_HELD
    print(report.as_json(result) if args.json else report.as_text(result))
    return EXIT_GOOD if at_least(result.overall.grade, args.pass_grade) else EXIT_BAD_GRADE


def _usage_error(args: argparse.Namespace, child: Sequence[str]) -> str | None:
    if bool(child) + bool(args.job) + bool(args.selector) != 1:
        return "name one thing to rehearse: a command after --, or --job NAME, or --selector LABELS"
    if args.rounds < 1:
        return "--rounds must be at least 1"
    if args.window <= 0:
        return "--window must be more than 0"
    if args.grace is not None and args.grace <= 0:
        return "--grace must be more than 0"
    return None


def granted_s(window_s: float, own_s: float | None) -> float:
    """The grace a drain grants: the pod's own, cut to the window less the kill margin (less for short
    windows)."""
    longest_s = window_s - min(KILL_MARGIN_S, window_s / 100)
    return longest_s if own_s is None else min(own_s, longest_s)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _moments(args: argparse.Namespace) -> tuple[Moment, ...]:
    low_s, high_s = parse_range(args.after)
    return choose(args.seed, args.rounds, low_s, high_s)


def _patterns(args: argparse.Namespace) -> Patterns:
    return Patterns.of(args.step_pattern, args.save_pattern, args.resume_pattern)


def _hold(args: argparse.Namespace, what: str, start: Start, launcher: str | None) -> Rehearsal:
    terms = Terms(
        window_s=args.window,
        grace_s=granted_s(args.window, args.grace),
        first_step_s=args.first_step,
        all_rounds=args.all_rounds,
        launcher=launcher,
        keep=args.keep,
    )

    def measure() -> tuple[int | None, int | None]:
        return checkpoints.measure(args.checkpoints) if args.checkpoints else (None, None)

    return hold(what, args.seed, _moments(args), terms, start, measure, _tell)


def _rehearse_here(args: argparse.Namespace, child: Sequence[str]) -> Rehearsal:
    patterns = _patterns(args)
    grace_s = granted_s(args.window, args.grace)
    with tempfile.TemporaryDirectory(prefix="ebb-rehearse-") as folder:

        def start(number: int) -> Run:
            return LocalRun(
                child,
                folder=folder,
                number=number,
                patterns=patterns,
                grace_s=grace_s,
                as_pid1=not args.no_pid1,
                echo=sys.stderr if args.verbose else None,
            )

        return _hold(args, shlex.join(child), start, _limited_launcher(child, os.environ))


def _limited_launcher(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    limit_s = shutdown_timeout_s(words, environment)
    return None if wrapped(words) or limit_s is not None else torch_launcher(words)


def _rehearse_cluster(args: argparse.Namespace) -> Rehearsal:
    kubectl = Kubectl.find(args.namespace, args.context)
    job = ClusterJob(
        kubectl,
        args.job,
        args.selector,
        _patterns(args),
        args.seed,
        args.first_step,
        args.window,
        args.grace,
        _tell,
    )
    return _hold(args, job.describe(), job.start, _limited_launcher(job.command(), job.environment()))
