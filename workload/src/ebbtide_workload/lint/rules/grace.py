"""How much of the window a pod asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...rehearse.launchers import wrapped
from ..model import DEFAULT_GRACE_S, Found, Path, PodUse, dig, items, mapping, show, words
from ..world import World

KILL_MARGIN_S = 3
SHORT_S = 60
_FIELD = "terminationGracePeriodSeconds"


def _fix(use: PodUse, world: World) -> str:
    return f"set {show((*use.path, _FIELD))}: {world.window_s}"


def missing(world: World) -> Iterator[Found]:
    """No grace named: Kubernetes gives its default of 30 s."""
    for use in world.reclaimable():
        if not use.partial and use.spec.get(_FIELD) is None:
            message = (
                f"you will get {DEFAULT_GRACE_S} s of the {world.window_s} s: no {_FIELD} is set, and a "
                f"drain "
                "does not add to a pod's own grace"
            )
            yield Found(use.doc, (*use.path, _FIELD), message, _fix(use, world))


def short(world: World) -> Iterator[Found]:
    """A grace named, but little of the window, for a pod with work to save."""
    for use in world.reclaimable():
        given = use.spec.get(_FIELD)
        if use.batch and isinstance(given, int) and given < SHORT_S:
            message = f"you will get {given} s of the {world.window_s} s"
            fix = f"{_fix(use, world)} (`ebb window` says how long the save takes)"
            yield Found(use.doc, (*use.path, _FIELD), message, fix)


def over_window(world: World) -> Iterator[Found]:
    """More grace than there is time."""
    granted_s = world.window_s - KILL_MARGIN_S
    for use in world.reclaimable():
        given = use.spec.get(_FIELD)
        if isinstance(given, int) and given > world.window_s:
            message = f"asks for {given} s, will get {granted_s} s: the node is gone after {world.window_s} s"
            fix = f"{_fix(use, world)}, and make the save fit into {granted_s} s"
            yield Found(use.doc, (*use.path, _FIELD), message, fix)


def untold(world: World) -> Iterator[Found]:
    """A container cannot see its pod's grace; `ebb run` and the guard then plan for the default."""
    granted_s = world.window_s - KILL_MARGIN_S
    for use in world.reclaimable():
        for path, container in use.containers():
            command = words(container)
            told = any(v.get("name") == "EBBTIDE_GRACE_S" for v in items(container.get("env")))
            if not wrapped(command) or told or container.get("envFrom") or "--grace" in " ".join(command):
                continue
            mine_s = granted_s if use.partial else min(use.grace_s, granted_s)
            if mine_s <= DEFAULT_GRACE_S:
                continue
            message = f"the program is not told that it has {mine_s} s and plans for {DEFAULT_GRACE_S} s"
            where = (*path, "env")
            fix = f'add to {show(where)}: {{name: EBBTIDE_GRACE_S, value: "{mine_s}"}}'
            yield Found(use.doc, where, message, fix)


def prestop_too_long(world: World) -> Iterator[Found]:
    """The grace starts with the preStop hook; what the hook takes, SIGTERM does not get."""
    for use in world.reclaimable():
        if use.partial:
            continue
        granted_s = min(use.grace_s, world.window_s - KILL_MARGIN_S)
        for path, container in use.containers():
            sleeps_s = prestop_sleep_s(container)
            if sleeps_s is None or sleeps_s <= granted_s / 2:
                continue
            left_s = max(0, granted_s - sleeps_s)
            message = (
                f"preStop sleeps {sleeps_s} s of the {granted_s} s: the hook's time is part of the grace, "
                f"SIGTERM "
                + (f"comes {left_s} s before the kill" if left_s else "never comes before the kill")
            )
            where: Path = (*path, "lifecycle", "preStop")
            fix = f"remove {show(where)}, or let it sleep a few seconds; work on SIGTERM instead"
            yield Found(use.doc, where, message, fix)


def prestop_sleep_s(container: Mapping[str, Any]) -> int | None:
    """How long a preStop hook sleeps, in seconds; None when it does not."""
    hook = mapping(dig(container, ("lifecycle", "preStop")))
    seconds = mapping(hook.get("sleep")).get("seconds")
    if isinstance(seconds, int):
        return seconds
    match = re.search(r"\bsleep\s+(\d+)\b", " ".join(prestop_words(container)))
    return int(match.group(1)) if match else None


def prestop_words(container: Mapping[str, Any]) -> list[str]:
    """The command a preStop hook runs; empty when it runs none."""
    command = dig(container, ("lifecycle", "preStop", "exec", "command"))
    return [str(w) for w in command] if isinstance(command, list) else []
