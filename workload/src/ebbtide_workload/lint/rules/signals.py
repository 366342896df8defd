"""Whether SIGTERM reaches the program that has to act on it, and once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...rehearse.launchers import TORCHRUN_LIMIT_S, shutdown_timeout_s, torch_launcher, wrapped
from ..model import Found, environment, show, words
from ..shells import hands_over, is_inline, shell_script
from ..world import World
from .grace import prestop_words

_DOES_WORK = re.compile(r"(?i)checkpoint|ckpt|save|snapshot|dump|\bkill\b|pkill|SIGTERM|SIGUSR")


def shell_pid1(world: World) -> Iterator[Found]:
    """A shell waits for its child and does not pass SIGTERM on; as process 1 it does not even die of it."""
    for use in world.reclaimable():
        for path, container in use.containers():
            command = words(container)
            script = shell_script(command)
            if script is None:
                continue
            where = (*path, "command" if container.get("command") else "args")
            inline = is_inline(command)
            if inline and not hands_over(script):
                message = (
                    "a shell is process 1: it does not pass SIGTERM on, the program behind it never "
                    "hears of it"
                )
                fix = f'write "exec" before the last command in {show(where)}, or start with: ebb, run, --'
                yield Found(use.doc, where, message, fix)
            elif not inline:
                message = (
                    f"the script {script} is process 1: SIGTERM stops there unless it ends in `exec program`"
                )
                fix = f"end {script} with exec, or start with: ebb, run, --"
                yield Found(use.doc, where, message, fix, severity="warning")


def torchrun_limit(world: World) -> Iterator[Found]:
    """The elastic agent has a time limit of its own between SIGTERM and SIGKILL."""
    for use in world.reclaimable():
        for path, container in use.containers():
            command = words(container)
            launcher = torch_launcher(command)
            limit_s = shutdown_timeout_s(command, environment(container))
            granted_s = min(use.grace_s, world.window_s)
            too_short = limit_s is None or (limit_s <= TORCHRUN_LIMIT_S < granted_s)
            if launcher is None or wrapped(command) or not too_short:
                continue
            where = (*path, "command" if container.get("command") else "args")
            message = (
                f"{launcher} kills its workers {limit_s or TORCHRUN_LIMIT_S} s after SIGTERM, whatever "
                f"the grace: "
                "a longer save is torn"
            )
            fix = (
                f"in {show(where)}, start with: ebb, run, --   or add "
                f"--shutdown-timeout={max(world.window_s - 20, 1)}"
            )
            yield Found(use.doc, where, message, fix)


def prestop_twice(world: World) -> Iterator[Found]:
    """The hook runs first, SIGTERM follows when it has ended: a program that acts on both acts twice."""
    for use in world.reclaimable():
        for path, container in use.containers():
            hook = " ".join(prestop_words(container))
            if not _DOES_WORK.search(hook) or re.search(r"\bebb(tide_workload)?\s+notice\b", hook):
                continue
            message = (
                "preStop does the work of a SIGTERM handler, and SIGTERM follows it: the save runs "
                "twice, or the "
                "second cuts the first"
            )
            where = (*path, "lifecycle", "preStop")
            fix = f"remove {show(where)} and act on SIGTERM; or let the hook only tell: ebb notice"
            yield Found(use.doc, where, message, fix)
