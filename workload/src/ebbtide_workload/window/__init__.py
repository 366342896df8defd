"""`ebb window`: will the checkpoint fit the window, what rate would it need, how often to save, what it
costs.

docs/workloads/window.md explains the arithmetic.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Callable, TypeVar

from . import plan, report
from .answer import Answer
from .measure import measure
from .observed import History, Rate, parse_observed, read_cluster, read_history
from .sizing import OPTIMIZERS, PRECISIONS, checkpoint_bytes
from .units import BadQuantity, parse_bytes, parse_count, parse_rate, parse_seconds

EXIT_FITS, EXIT_DOES_NOT_FIT, EXIT_USAGE = 0, 1, 2
T = TypeVar("T")


def _quantity(parse: Callable[[str], T]) -> Callable[[str], T]:
    """An argparse type that passes our message on."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except BadQuantity as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ebb window`."""
    parser.epilog = "exit code: 0 the save fits, 1 it does not (or barely), 2 wrong usage"
    size = parser.add_argument_group("how much").add_argument
    size(
        "--bytes", type=_quantity(parse_bytes), metavar="SIZE", help="bytes of one checkpoint, such as 3.5TB"
    )
    size(
        "--parameters",
        type=_quantity(parse_count),
        metavar="N",
        help="or: parameters of the model, such as 70B",
    )
    size("--optimizer", choices=OPTIMIZERS, default="adamw", help="with --parameters (default adamw)")
    size("--precision", choices=PRECISIONS, default="bf16", help="with --parameters (default bf16 mixed)")
    rate = parser.add_argument_group("how fast").add_argument
    rate(
        "--rate",
        type=_quantity(parse_rate),
        metavar="RATE",
        help="write rate of all writers, such as 14.6GB/s",
    )
    rate("--measure", type=Path, metavar="PATH", help="or: measure it on this folder's file system")
    rate(
        "--measure-bytes",
        type=_quantity(parse_bytes),
        default=10**9,
        metavar="SIZE",
        help="how much (default 1GB)",
    )
    rate(
        "--writers",
        type=int,
        default=4,
        metavar="N",
        help="files written at once while measuring (default 4)",
    )
    rate(
        "--nodes", type=int, default=1, metavar="N", help="nodes that will write as fast at once (default 1)"
    )
    rate("--save", type=_quantity(parse_seconds), metavar="TIME", help="or: how long a slow save takes (p95)")
    rate(
        "--history", type=Path, metavar="DIR", help="or: read size, save times and preemptions of this folder"
    )
    time = parser.add_argument_group("the window").add_argument
    time(
        "--window", type=_quantity(parse_seconds), default=plan.WINDOW_S, metavar="TIME", help="default 300s"
    )
    time(
        "--margin",
        type=_quantity(parse_seconds),
        default=plan.MARGIN_S,
        metavar="TIME",
        help="kept free (default 30s)",
    )
    time("--step", type=_quantity(parse_seconds), default=0.0, metavar="TIME", help="how long one step takes")
    often = parser.add_argument_group("how often it happens").add_argument
    often(
        "--preempted-every",
        type=_quantity(parse_seconds),
        metavar="TIME",
        help="mean time between preemptions",
    )
    often("--observed", type=_quantity(parse_observed), metavar="N/TIME", help="or: seen, such as 5/72h")
    often(
        "--cluster",
        metavar="FILE",
        help='or: a cluster\'s JSON with its lifecycle events ("-" is standard input)',
    )
    often(
        "--restart",
        type=_quantity(parse_seconds),
        default=120.0,
        metavar="TIME",
        help="kill to next step (120s)",
    )
    often("--gpus", type=int, metavar="N", help="GPUs of the job, for the cost in money")
    often("--price", metavar="DOLLARS", help="dollars per GPU-hour, for the cost in money")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def main(args: argparse.Namespace) -> int:
    """Answer; returns 0 when the save fits, 1 when it does not or barely, 2 for wrong usage."""
    try:
        answer = _answer(args)
    except (BadQuantity, OSError) as error:
        print(f"ebb window: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(json.dumps({"version": 1, **asdict(answer)}, indent=2) if args.json else report.as_text(answer))
    unknown = answer.fit is None
    return EXIT_FITS if unknown or (answer.fit and answer.fit.verdict == plan.FITS) else EXIT_DOES_NOT_FIT


def _answer(args: argparse.Namespace) -> Answer:
    history = read_history(args.history) if args.history else None
    count = _bytes(args, history)
    measured = measure(args.measure, args.measure_bytes, args.writers) if args.measure else None
    per_s: int | None = args.rate or (measured.bytes_per_s * args.nodes if measured else None)
    takes_s = _takes_s(args, count, per_s, history)
    usable_s = args.window - args.margin - args.step
    if usable_s <= 0:
        raise BadQuantity("the margin and the step leave nothing of the window")
    fit = None if takes_s is None else plan.fit(takes_s, args.window, args.margin, args.step)
    rate = _rate(args, history)
    cost = None
    if fit is not None and rate is not None:
        cost = plan.cost(fit.takes_s, rate.life_s, args.restart, fit.verdict == plan.FITS)
    return Answer(
        bytes=count,
        bytes_per_s=per_s,
        needed_bytes_per_s=None if count is None else round(count / usable_s),
        usable_s=usable_s,
        restart_s=args.restart,
        fit=fit,
        measured=measured,
        nodes=args.nodes,
        rate=rate,
        cost=cost,
        gpus=args.gpus,
        micro_dollars_per_gpu_hour=_price(args),
    )


def _bytes(args: argparse.Namespace, history: History | None) -> int | None:
    if args.bytes is not None and args.parameters is not None:
        raise BadQuantity("give --bytes or --parameters, not both")
    if args.bytes is not None:
        return int(args.bytes)
    if args.parameters is not None:
        return checkpoint_bytes(args.parameters, args.optimizer, args.precision)
    if history is not None and history.last_bytes:
        return history.last_bytes
    if args.save is None and history is None:
        raise BadQuantity(
            "say how much: --bytes 3.5TB, or --parameters 70B, or --save 200s, or --history DIR"
        )
    return None


def _takes_s(
    args: argparse.Namespace, count: int | None, per_s: int | None, history: History | None
) -> float | None:
    if args.save is not None:
        return float(args.save)
    if count is not None and per_s is not None:
        return count / per_s
    return None if history is None else history.p95_s


def _rate(args: argparse.Namespace, history: History | None) -> Rate | None:
    if args.preempted_every is not None:
        if args.preempted_every <= 0:
            raise BadQuantity("--preempted-every must be more than 0")
        return Rate(1, float(args.preempted_every), "as given")
    if args.observed is not None:
        return Rate(args.observed.count, args.observed.span_s, args.observed.source)
    if args.cluster is not None:
        return read_cluster(
            sys.stdin.read() if args.cluster == "-" else Path(args.cluster).read_text("utf-8")
        )
    return None if history is None else history.rate


def _price(args: argparse.Namespace) -> int | None:
    if args.price is None:
        return None
    try:
        return int(Decimal(args.price.lstrip("$")) * 1_000_000)
    except InvalidOperation as error:
        raise BadQuantity(f"{args.price!r} is no price such as 1.75") from error
