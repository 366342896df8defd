"""What makes the world go: acts at instants, and everything that follows from them by the passing of time.

Nothing ticks. Whoever looks or acts first lets everything happen that was due until now, each at its own
instant and in order, so that the outcome does not depend on when or how often somebody looked.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ebbtide.clock import Clock
from ebbtide.errors import EbbtideError
from ebbtide.playground.acts import ACTS, HAPPENINGS
from ebbtide.playground.behaviours import Habits
from ebbtide.playground.facts import Change
from ebbtide.playground.journal import Act, Journal
from ebbtide.playground.state import State

FACTS_KEPT = 100_000
_FACTS_IN_SNAPSHOT = 5_000
_CHANGES_KEPT = 50_000
_ACTS_BEFORE_COMPACTION = 20_000


class Engine:
    """A world's state, moved on by acts and by its clock."""

    def __init__(self, clock: Clock, *, seed: int, journal: Path | None, habits: Habits) -> None:
        self._clock = clock
        self._listeners: list[Callable[[str], None]] = []
        self._journal = Journal(journal) if journal else None
        self._state = self._restore(seed)
        self._state.habits = habits
        self._heard = self._state.counter
        if self._journal is not None:
            self._journal.begin(self._compact())

    def _restore(self, seed: int) -> State:
        state, acts = self._journal.read() if self._journal else (None, [])
        state = state or State(seed, self._clock.now())
        state.facts = deque(state.facts, maxlen=FACTS_KEPT)
        for act in acts:
            _pass_time(state, act.at)
            try:
                ACTS[act.verb](state, **act.said)
            except EbbtideError:
                continue  # it was refused then, too, and whoever asked was told
        return state

    def _compact(self) -> State:
        return replace(self._state, facts=deque(list(self._state.facts)[-_FACTS_IN_SNAPSHOT:]))

    def _look(self) -> State:
        """The world as it is now."""
        _pass_time(self._state, self._clock.now())
        self._announce()
        return self._state

    def _act(self, verb: str, **said: Any) -> Any:
        """Do an act now, after it was written down. Raises what the act raises."""
        self._look()
        if self._journal is not None:
            if self._journal.lines >= _ACTS_BEFORE_COMPACTION:
                self._journal.begin(self._compact())
            self._journal.write(Act(self._state.now, verb, said))
        try:
            return ACTS[verb](self._state, **said)
        finally:
            self._announce()

    def _announce(self) -> None:
        if not self._listeners or self._heard == self._state.counter:
            return
        news, self._heard = self.changes_after(self._heard), self._state.counter
        for cluster_id in dict.fromkeys(change.cluster_id for change in news):
            for listener in self._listeners:
                listener(cluster_id)

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with a cluster's id whenever somebody lets a change in it happen. Only a hint."""
        self._listeners.append(listener)

    def changes_after(self, number: int) -> list[Change]:
        """The newest change of each cluster and node after change `number`, oldest first.

        Lets happen what is due. A reader that keeps the last number it saw misses nothing, unless it is far
        behind.
        """
        _pass_time(self._state, self._clock.now())
        changed = self._state.changed
        while len(changed) > _CHANGES_KEPT:
            changed.popitem(last=False)
        found: list[Change] = []
        for change in reversed(changed.values()):
            if change.number <= number:
                break
            found.append(change)
        return found[::-1]

    def next_change_at(self) -> datetime | None:
        """The next instant at which something may happen by itself; None if nothing will."""
        agenda = self._look().agenda
        return agenda[0].at if agenda else None

    def close(self) -> None:
        """Let go of the journal. Nothing is lost without it."""
        if self._journal is not None:
            self._journal.close()


def _pass_time(state: State, until: datetime) -> None:
    while state.agenda and state.agenda[0].at <= until:
        due = heapq.heappop(state.agenda)
        state.now = max(state.now, due.at)
        HAPPENINGS[due.what](state, *due.keys)
    state.now = max(state.now, until)
