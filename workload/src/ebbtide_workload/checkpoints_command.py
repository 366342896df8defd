"""`ebb checkpoints FOLDER`: what is there, is it whole, how long do saves take, what happened to this run."""

from __future__ import annotations

import argparse
import json
import os
import sys

from .checkpoint import Checkpoint, Checkpoints
from .checkpoint_manifest import Incomplete
from .say import duration, read_journal, size
from .store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ebb checkpoints`."""
    parser.add_argument("folder", help="the folder given to the guard, or its URL")
    parser.add_argument("--verify", action="store_true", help="read everything and compare the checksums")
    parser.add_argument(
        "--timeline", action="store_true", help="what happened: resumed, noticed, saved, left"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def main(args: argparse.Namespace) -> int:
    """Print; 0 when there is at least one checkpoint and, with --verify, all are whole; else 1.

    2 for a path that is no folder.
    """
    if "://" not in args.folder and os.path.exists(args.folder) and not os.path.isdir(args.folder):
        print(
            f"ebb checkpoints: {args.folder} is a file; name the folder given to the guard", file=sys.stderr
        )
        return 2
    store = open_store(args.folder)
    found: list[Checkpoint] = store.all()
    bad: dict[int, str] = {}
    if args.verify:
        bad = _verify(store, found)
    timeline = read_journal(store.timeline_path) if store.timeline_path else []
    p95_s = store.times.p95_s
    store.release()  # nothing is held; an object store has something local to clear away
    if args.json:
        rows = [{**one._asdict(), "path": str(one.path), "problem": bad.get(one.step)} for one in found]
        print(json.dumps({"checkpoints": rows, "save_p95_s": p95_s, "timeline": timeline}, indent=1))
    else:
        _print(found, bad, p95_s)
        if args.timeline:
            _print_timeline(timeline)
    return 1 if bad or not found else 0


def _verify(store: object, found: list[Checkpoint]) -> dict[int, str]:
    if not isinstance(store, Checkpoints):
        print(
            "ebb checkpoints: an object store's checkpoints are verified as they are fetched", file=sys.stderr
        )
        return {}
    bad = {}
    for one in found:
        try:
            store.prove(one.step)
        except Incomplete as error:
            bad[one.step] = str(error)
    return bad


def _print(found: list[Checkpoint], bad: dict[int, str], p95_s: float | None) -> None:
    print(f"{'step':>10} {'size':>10} {'save took':>12}  saved at")
    for one in found:
        problem = f"  NOT WHOLE: {bad[one.step]}" if one.step in bad else ""
        saved_at = one.saved_at[:19] + "Z"
        print(f"{one.step:>10} {size(one.bytes):>10} {duration(one.save_s):>12}  {saved_at}{problem}")
    if not found:
        print("no complete checkpoint here")
    if p95_s is not None:
        print(f"19 of 20 saves take at most {duration(p95_s)}")


def _print_timeline(timeline: list[dict[str, object]]) -> None:
    print()
    for event in timeline:
        facts = {k: v for k, v in event.items() if k not in ("event", "at", "pid") and v not in (None, "")}
        print(
            f"{str(event.get('at'))[:19]}Z  {event['event']:<10} "
            + "  ".join(f"{k}={v}" for k, v in facts.items())
        )
