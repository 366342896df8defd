"""Whom to tell, so that each process hears exactly once. Pure: a table of processes in, pids out.

1. A process that handles SIGTERM is told, and is responsible for what is below it: a trainer must not lose
   its data loaders before it has saved, and a launcher that forwards must not be doubled.
2. A process that does not handle it is passed over when somebody below it does: a shell or a launcher in the
   way would only die and leave the trainer untold.
3. Where nobody handles it, everybody is told: they end as the system ends them.
4. A torch launcher that would kill its workers before our grace is over is passed over too: its workers are
   told.
5. Who ignores SIGTERM cannot be told; it is reported by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from .run_processes import Process

Key = tuple[int, str]


class Telling:
    """Remembers who was told, who is covered by somebody who was, and decides who comes next."""

    def __init__(self, root: int, impatient: Callable[[Process], bool]) -> None:
        self._root = root
        self._impatient = impatient
        self.told: dict[Key, Process] = {}
        self.covered: set[Key] = set()
        self.passed_over: dict[Key, Process] = {}
        self._first = True

    def next(self, table: Mapping[int, Process]) -> list[Process]:
        """Those to be told now; they count as told from here on."""
        children = _children(table)
        self._cover(table, children)
        chosen = self._handlers(self._root, children)
        if self._first and not chosen:
            chosen = [p for p in table.values() if not p.zombie and not p.ignores and self._open(p)]
        self._first = False
        for process in chosen:
            self.told[process.key] = process
        self._cover(table, children)
        return sorted(chosen)

    def last_call(self, table: Mapping[int, Process]) -> list[Process]:
        """Those never told and not covered, shortly before the end; they count as told from here on."""
        chosen = [p for p in table.values() if not p.zombie and not p.ignores and self._open(p)]
        for process in chosen:
            self.told[process.key] = process
        return sorted(chosen)

    def alive(self, table: Mapping[int, Process], of: Collection[Key]) -> list[Process]:
        """Those of `of` that still run."""
        return sorted(p for p in table.values() if p.key in of and not p.zombie)

    def _open(self, process: Process) -> bool:
        return process.key not in self.told and process.key not in self.covered

    def _handlers(self, pid: int, children: Mapping[int, list[Process]]) -> list[Process]:
        """The topmost processes below `pid` that handle the signal and have not heard it."""
        chosen: list[Process] = []
        for process in children.get(pid, ()):
            if not self._open(process):
                continue
            if process.catches and not process.zombie and not self._pass_over(process, children):
                chosen.append(process)
            else:
                chosen.extend(self._handlers(process.pid, children))
        return chosen

    def _pass_over(self, process: Process, children: Mapping[int, list[Process]]) -> bool:
        launches = not process.elastic and any(child.elastic for child in children.get(process.pid, ()))
        if process.key in self.passed_over or (launches and self._impatient(process)):
            self.passed_over[process.key] = process
            return True
        return False

    def _cover(self, table: Mapping[int, Process], children: Mapping[int, list[Process]]) -> None:
        """Whatever is below a told process is that one's business, also after it is gone."""
        waiting = [p for p in table.values() if not self._open(p)]
        while waiting:
            for child in children.get(waiting.pop().pid, ()):
                if self._open(child):
                    self.covered.add(child.key)
                    waiting.append(child)


def _children(table: Mapping[int, Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    return children
